//! `quell mpi`: compiles the components for Open MPI and the wrapper for ROMIO, whose sources are
//! part of this program, and prints the environment variables with which MPI programs use them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use quell_mount_spec::{NewFiles, VIEW_VARIABLE, View};
use quell_supervisor::LogOptions;
use serde_json::json;

use crate::arguments::{MpiBuildArgs, MpiCommand, MpiEnvArgs};
use crate::failure::Failure;
use crate::inputs::{real_path, shown, text_of};
use crate::installed::{self, PRELOAD_LIBRARY};
use crate::output::outln;
use crate::views::log_of_argument;

/// The sources of the components and of the wrapper, and the header of the library.
const SOURCES: [(&str, &str); 11] = [
    ("components.h", include_str!("../../../frontends/mpiio/ompi/components.h")),
    ("agreement.c", include_str!("../../../frontends/mpiio/ompi/agreement.c")),
    ("fs.c", include_str!("../../../frontends/mpiio/ompi/fs.c")),
    ("fbtl.c", include_str!("../../../frontends/mpiio/ompi/fbtl.c")),
    ("fcoll.c", include_str!("../../../frontends/mpiio/ompi/fcoll.c")),
    ("sharedfp.c", include_str!("../../../frontends/mpiio/ompi/sharedfp.c")),
    ("exchange.h", include_str!("../../../frontends/mpiio/exchange.h")),
    ("exchange.c", include_str!("../../../frontends/mpiio/exchange.c")),
    ("quell_collective.h", include_str!("../../../frontends/mpiio/quell_collective.h")),
    ("libquell_mpi.c", include_str!("../../../frontends/mpiio/romio/libquell_mpi.c")),
    ("quell.h", include_str!("../../../frontends/capi/include/quell.h")),
];

/// The frameworks of Open MPI for which there is a component.
const FRAMEWORKS: [&str; 4] = ["fs", "fbtl", "fcoll", "sharedfp"];

/// The wrapper of `MPI_File_open`, for ROMIO.
const WRAPPER: &str = "libquell_mpi.so";

/// The variable by which the dynamic linker loads libraries.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// A header that only an Open MPI with its internal headers has.
const INTERNAL_HEADER: &str = "ompi/mca/fs/fs.h";

/// The variable by which Open MPI finds components.
const COMPONENT_PATH: &str = "OMPI_MCA_mca_base_component_path";

pub fn run(command: MpiCommand, quiet: bool) -> Result<ExitCode, Failure> {
    match command {
        MpiCommand::Build(args) => build(&args, quiet),
        MpiCommand::Env(args) => environment(&args),
    }
}

/// The implementation of MPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    OpenMpi,
    /// MPICH, or an implementation that is derived from it.
    Mpich,
}

/// An installed MPI.
struct Mpi {
    compiler: PathBuf,
    kind: Kind,
    /// The version, such as `4.1.4`.
    version: String,
}

impl Mpi {
    fn find(compiler: &Path) -> Result<Mpi, Failure> {
        // The preprocessor prints all macros of mpi.h.
        let arguments = ["-E", "-dM", "-include", "mpi.h", "-x", "c", "/dev/null"];
        let output = Command::new(compiler).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| {
            Failure::cannot(format!(
                "{} does not run: {error}; install an MPI (Debian: libopenmpi-dev), or name its compiler with --compiler",
                shown(compiler)
            ))
        })?;
        match kind_and_version(&String::from_utf8_lossy(&output.stdout)) {
            Some((kind, version)) => Ok(Mpi { compiler: compiler.to_owned(), kind, version }),
            None => Err(Failure::cannot(format!(
                "{} is not the compiler of an Open MPI or MPICH; name it with --compiler",
                shown(compiler)
            ))),
        }
    }

    /// Returns the directories of headers, of which one has the internal headers.
    fn header_directories(&self) -> Result<Vec<PathBuf>, Failure> {
        let output = Command::new(&self.compiler).arg("--showme:incdirs").stdin(Stdio::null()).output();
        let output =
            output.map_err(|error| Failure::cannot(format!("{}: {error}", shown(&self.compiler))))?;
        let listed = String::from_utf8_lossy(&output.stdout);
        // The compiler lists the directory of the internal headers, which is below the others, only
        // if Open MPI was configured so.
        let listed: Vec<PathBuf> = listed.split_whitespace().map(PathBuf::from).collect();
        let below = listed.iter().map(|directory| directory.join("openmpi"));
        let all: Vec<PathBuf> = listed.iter().cloned().chain(below).collect();
        match all.iter().any(|directory| directory.join(INTERNAL_HEADER).is_file()) {
            true => Ok(all),
            false => Err(Failure::cannot(format!(
                "the header {INTERNAL_HEADER} of Open MPI {} is missing; install the development package (Debian: \
                 libopenmpi-dev), or an Open MPI that was configured with --with-devel-headers",
                self.version
            ))),
        }
    }

    /// Returns the name and the version.
    fn name(&self) -> String {
        match self.kind {
            Kind::OpenMpi => format!("Open MPI {}", self.version),
            Kind::Mpich => format!("MPICH {}", self.version),
        }
    }

    /// Returns the name of the directory of the components for this version.
    fn directory_name(&self) -> String {
        match self.kind {
            Kind::OpenMpi => format!("openmpi-{}", self.version),
            Kind::Mpich => format!("mpich-{}", self.version),
        }
    }

    /// Returns the names of the files that are compiled for this MPI.
    fn files(&self) -> Vec<String> {
        let components = FRAMEWORKS.iter().filter(|_| self.kind == Kind::OpenMpi);
        components.map(|framework| component(framework)).chain([WRAPPER.to_owned()]).collect()
    }
}

fn component(framework: &str) -> String {
    format!("mca_{framework}_quell.so")
}

/// Returns the implementation and the version that the macros of mpi.h state.
fn kind_and_version(macros: &str) -> Option<(Kind, String)> {
    let value = |name: &str| {
        // The names of some macros begin with the names of others.
        let value_in = |line: &str| {
            line.strip_prefix("#define ")?.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned)
        };
        macros.lines().find_map(value_in).map(|value| value.trim().trim_matches('"').to_owned())
    };
    let (kind, version) = match value("OMPI_MAJOR_VERSION") {
        Some(major) => {
            let (minor, release) = (value("OMPI_MINOR_VERSION")?, value("OMPI_RELEASE_VERSION")?);
            (Kind::OpenMpi, format!("{major}.{minor}.{release}"))
        }
        None => (Kind::Mpich, value("MPICH_VERSION")?),
    };
    let is_version = version.chars().all(|each| each.is_ascii_alphanumeric() || each == '.');
    (is_version && !version.starts_with('.')).then_some((kind, version))
}

fn build(args: &MpiBuildArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let mpi = Mpi::find(&args.compiler.compiler)?;
    let library = match &args.library {
        Some(library) => real_path(library)?,
        None => installed_library()?,
    };
    let output = match &args.output {
        Some(output) => output.clone(),
        None => own_directory()?.join(mpi.directory_name()),
    };
    let failed = |path: &Path| {
        let path = shown(path);
        move |error: std::io::Error| Failure::cannot(format!("{path}: {error}"))
    };
    fs::create_dir_all(&output).map_err(failed(&output))?;
    let output = real_path(&output)?;
    // Components that are in use are replaced, not changed.
    let work = output.join(format!(".build-{}", std::process::id()));
    fs::create_dir(&work).map_err(failed(&work))?;
    let built = compile_all(&mpi, &library, &work).and_then(|()| {
        mpi.files().iter().try_for_each(|name| {
            let target = output.join(name);
            fs::rename(work.join(name), &target).map_err(failed(&target))
        })
    });
    // The sources that remain have no effect.
    let _ = fs::remove_dir_all(&work);
    built?;
    if args.json {
        let result = json!({
            "schema": "quell-mpi-build/1",
            "mpi": mpi.name(),
            "components": text_of(&output),
            "library": text_of(&library),
        });
        outln!("{result:#}");
    } else if !quiet {
        outln!("compiled the components for {} in {}", mpi.name(), shown(&output));
    }
    Ok(ExitCode::SUCCESS)
}

/// Compiles all files for an MPI in `work`.
fn compile_all(mpi: &Mpi, library: &Path, work: &Path) -> Result<(), Failure> {
    for (name, text) in SOURCES {
        let path = work.join(name);
        fs::write(&path, text).map_err(|error| Failure::cannot(format!("{}: {error}", shown(&path))))?;
    }
    let compile = |target: &str, command: &mut Command| {
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| Failure::cannot(format!("{}: {error}", shown(&mpi.compiler))))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Failure::cannot(format!(
                "{} could not compile {target} for {}:\n{}",
                shown(&mpi.compiler),
                mpi.name(),
                String::from_utf8_lossy(&output.stderr).trim_end()
            ))),
        }
    };
    let compiler = || {
        let mut command = Command::new(&mpi.compiler);
        command.args(["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread"]);
        command.arg(argument("-I", work));
        command
    };
    if mpi.kind == Kind::OpenMpi {
        let headers = mpi.header_directories()?;
        let libraries = library.parent().unwrap_or(Path::new("/"));
        for framework in FRAMEWORKS {
            let mut command = compiler();
            command.arg("-shared").args(headers.iter().map(|directory| argument("-I", directory)));
            command.arg("-o").arg(work.join(component(framework))).arg(work.join(format!("{framework}.c")));
            command.args([work.join("agreement.c"), work.join("exchange.c")]);
            command.arg(library).arg(argument("-Wl,-rpath,", libraries)).arg("-lmca_common_ompio");
            compile(&format!("the component {framework}"), &mut command)?;
        }
    }
    // The wrapper is loaded into programs without MPI, too, so it is not linked with MPI's library.
    let mut objects = Vec::new();
    for source in ["libquell_mpi", "exchange"] {
        let object = work.join(format!("{source}.o"));
        let mut command = compiler();
        let literal = format!("-DQUELL_LIBRARY={}", c_string(library));
        command.arg(literal).arg("-c").arg(work.join(format!("{source}.c"))).arg("-o").arg(&object);
        compile("the wrapper of MPI_File_open", &mut command)?;
        objects.push(object);
    }
    let mut link = Command::new("cc");
    link.args(["-shared", "-Wl,-z,lazy", "-o"]).arg(work.join(WRAPPER)).args(&objects).arg("-ldl");
    compile("the wrapper of MPI_File_open", &mut link)
}

/// Returns a path as a string of C.
fn c_string(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes().iter();
    let escaped: String = bytes.map(|byte| format!("\\{byte:03o}")).collect();
    format!("\"{escaped}\"")
}

/// Returns an option of a compiler with a path.
fn argument(option: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(path);
    argument
}

/// Returns the library that was installed, or built, together with this program.
fn installed_library() -> Result<PathBuf, Failure> {
    installed::library("libquell.so", "install the library with `make install`, or name it with --library")
}

/// Returns the directory for the components of a user.
fn own_directory() -> Result<PathBuf, Failure> {
    match std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) {
        Some(home) => Ok(home.join(".local/lib/quell")),
        None => Err(Failure::wrong_input("HOME is not set; name the directory with --output")),
    }
}

fn environment(args: &MpiEnvArgs) -> Result<ExitCode, Failure> {
    let mpi = Mpi::find(&args.compiler.compiler)?;
    let components = components_directory(args, &mpi)?;
    let options = args.options.options(None, None);
    // Usually, all ranks write one file.
    let options = LogOptions { new_files: options.new_files.or(Some(NewFiles::Container)), ..options };
    let logs = args.logs.iter().map(|log| log_of_argument(log, options)).collect::<Result<_, _>>()?;
    let view = View { logs, ..View::default() };
    let value = view.to_json().map_err(Failure::from)?;
    View::parse(value.as_bytes()).map_err(|error| Failure::wrong_input(error.to_string()))?;
    let mut variables = vec![(VIEW_VARIABLE, value)];
    if mpi.kind == Kind::OpenMpi && !args.romio {
        let mut path = components.into_os_string();
        path.push(":SYSTEM_DEFAULT:USER_DEFAULT");
        variables.push((COMPONENT_PATH, text_of(&path)));
    } else {
        let preload = installed::library(PRELOAD_LIBRARY, "install it with `make install`: ROMIO needs it")?;
        let mut libraries = format!("{}:{}", text_of(components.join(WRAPPER)), text_of(&preload));
        if let Some(earlier) = std::env::var_os(LD_PRELOAD).filter(|earlier| !earlier.is_empty()) {
            libraries = format!("{libraries}:{}", text_of(&earlier));
        }
        variables.push((LD_PRELOAD, libraries));
        if mpi.kind == Kind::OpenMpi {
            variables.push(("OMPI_MCA_io", "romio321".to_owned()));
        }
    }
    if args.json {
        let variables: serde_json::Map<_, _> =
            variables.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        let result = json!({ "schema": "quell-mpi-env/1", "variables": variables });
        outln!("{result:#}");
    } else {
        for (name, value) in variables {
            let quoted = shlex::try_quote(&value)
                .map_err(|_| Failure::wrong_input("a path with a zero byte cannot be a variable"))?;
            outln!("export {name}={quoted}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the directory with the files for this MPI.
fn components_directory(args: &MpiEnvArgs, mpi: &Mpi) -> Result<PathBuf, Failure> {
    let is_complete = |directory: &PathBuf| mpi.files().iter().all(|name| directory.join(name).is_file());
    if let Some(directory) = &args.components {
        let directory = real_path(directory)?;
        return match is_complete(&directory) {
            true => Ok(directory),
            false => Err(Failure::wrong_input(format!(
                "{} does not contain the components for {}",
                shown(&directory),
                mpi.name()
            ))),
        };
    }
    let name = mpi.directory_name();
    let installed = installed::program_directory()?.join("../lib/quell").join(&name);
    let own = own_directory().ok().map(|directory| directory.join(&name));
    match own.into_iter().chain([installed]).find(is_complete) {
        Some(directory) => real_path(&directory),
        None => Err(Failure::cannot(format!(
            "there are no components for {}; run `quell mpi build`, or name their directory with --components",
            mpi.name()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_macros_of_the_header() {
        let macros = "#define A 1\n#define OMPI_MAJOR_VERSION 4\n#define OMPI_MINOR_VERSION 1\n\
                      #define OMPI_RELEASE_VERSION 14\n#define OMPI_MAJOR 5\n";
        assert_eq!(kind_and_version(macros), Some((Kind::OpenMpi, "4.1.14".into())));
        let macros = "#define MPICH_VERSION_NUMBER 3\n#define MPICH_VERSION \"4.0.2rc1\"\n";
        assert_eq!(kind_and_version(macros), Some((Kind::Mpich, "4.0.2rc1".into())));
        assert_eq!(kind_and_version("#define MPICH_VERSION \"../4\"\n"), None);
        assert_eq!(kind_and_version("#define MPI_VERSION 3\n"), None);
    }

    #[test]
    fn a_path_is_a_string_of_c() {
        assert_eq!(c_string(Path::new("/\"a")), "\"\\057\\042\\141\"");
    }
}
