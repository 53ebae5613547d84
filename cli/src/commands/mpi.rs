//! `quell mpi`: compiles the components for Open MPI, whose sources are part of this program, and
//! prints the environment variables with which MPI programs use them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use quell_mount_spec::View;
use serde_json::json;

use crate::arguments::{MpiBuildArgs, MpiCommand, MpiEnvArgs};
use crate::failure::Failure;
use crate::inputs::{real_path, shown, text_of};
use crate::installed;
use crate::output::outln;
use crate::views::log_of_argument;

/// The sources of the components, and the header of the library.
const SOURCES: [(&str, &str); 7] = [
    ("components.h", include_str!("../../../frontends/mpiio/ompi/components.h")),
    ("agreement.c", include_str!("../../../frontends/mpiio/ompi/agreement.c")),
    ("fs.c", include_str!("../../../frontends/mpiio/ompi/fs.c")),
    ("fbtl.c", include_str!("../../../frontends/mpiio/ompi/fbtl.c")),
    ("fcoll.c", include_str!("../../../frontends/mpiio/ompi/fcoll.c")),
    ("sharedfp.c", include_str!("../../../frontends/mpiio/ompi/sharedfp.c")),
    ("quell.h", include_str!("../../../frontends/capi/include/quell.h")),
];

/// The frameworks of Open MPI for which there is a component.
const FRAMEWORKS: [&str; 4] = ["fs", "fbtl", "fcoll", "sharedfp"];

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

/// An installed Open MPI.
struct OpenMpi {
    compiler: PathBuf,
    /// Such as `4.1.4`.
    version: String,
}

impl OpenMpi {
    fn find(compiler: &Path) -> Result<OpenMpi, Failure> {
        let output = Command::new(compiler).arg("--showme:version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| {
            Failure::cannot(format!(
                "{} does not run: {error}; install Open MPI (Debian: libopenmpi-dev), or name its compiler with --compiler",
                shown(compiler)
            ))
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        match version_in(&text) {
            Some(version) if output.status.success() => {
                Ok(OpenMpi { compiler: compiler.to_owned(), version: version.to_owned() })
            }
            _ => Err(Failure::cannot(format!(
                "{} is not the compiler of an Open MPI; name it with --compiler (for MPICH, see docs/guides/mpi.md)",
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

    /// Returns the name of the directory of the components for this version.
    fn directory_name(&self) -> String {
        format!("openmpi-{}", self.version)
    }
}

/// Returns the version in the output of `mpicc --showme:version`.
fn version_in(text: &str) -> Option<&str> {
    let version = text.split_once("Open MPI ")?.1.split_whitespace().next()?;
    let is_version = version.starts_with(|first: char| first.is_ascii_digit())
        && version.chars().all(|each| each.is_ascii_alphanumeric() || each == '.');
    is_version.then_some(version)
}

fn build(args: &MpiBuildArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let mpi = OpenMpi::find(&args.compiler.compiler)?;
    let headers = mpi.header_directories()?;
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
    let built = compile_all(&mpi, &headers, &library, &work).and_then(|components| {
        components.iter().try_for_each(|name| {
            let target = output.join(name);
            fs::rename(work.join(name), &target).map_err(failed(&target))
        })
    });
    // What remains are sources, which have no effect.
    let _ = fs::remove_dir_all(&work);
    built?;
    if args.json {
        let result = json!({
            "schema": "quell-mpi-build/1",
            "mpi": format!("Open MPI {}", mpi.version),
            "components": text_of(&output),
            "library": text_of(&library),
        });
        outln!("{result:#}");
    } else if !quiet {
        outln!("compiled the components for Open MPI {} in {}", mpi.version, shown(&output));
    }
    Ok(ExitCode::SUCCESS)
}

/// Compiles all components in `work`, and returns the names of their files.
fn compile_all(
    mpi: &OpenMpi,
    headers: &[PathBuf],
    library: &Path,
    work: &Path,
) -> Result<Vec<String>, Failure> {
    for (name, text) in SOURCES {
        let path = work.join(name);
        fs::write(&path, text).map_err(|error| Failure::cannot(format!("{}: {error}", shown(&path))))?;
    }
    let libraries = library.parent().unwrap_or(Path::new("/"));
    FRAMEWORKS
        .iter()
        .map(|framework| {
            let name = format!("mca_{framework}_quell.so");
            let mut command = Command::new(&mpi.compiler);
            command.args(["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]);
            command.arg(argument("-I", work)).args(headers.iter().map(|directory| argument("-I", directory)));
            command.arg("-o").arg(work.join(&name));
            command.arg(work.join(format!("{framework}.c"))).arg(work.join("agreement.c"));
            command.arg(library).arg(argument("-Wl,-rpath,", libraries)).arg("-lmca_common_ompio");
            let output = command.stdin(Stdio::null()).output();
            let output =
                output.map_err(|error| Failure::cannot(format!("{}: {error}", shown(&mpi.compiler))))?;
            if !output.status.success() {
                let messages = String::from_utf8_lossy(&output.stderr);
                return Err(Failure::cannot(format!(
                    "{} could not compile the component {framework} for Open MPI {}:\n{}",
                    shown(&mpi.compiler),
                    mpi.version,
                    messages.trim_end()
                )));
            }
            Ok(name)
        })
        .collect()
}

/// Returns an option of a compiler with a path.
fn argument(option: &str, path: &Path) -> std::ffi::OsString {
    let mut argument = std::ffi::OsString::from(option);
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
    let mpi = OpenMpi::find(&args.compiler.compiler)?;
    let components = components_directory(args, &mpi)?;
    let view = View {
        trees: Vec::new(),
        logs: args
            .logs
            .iter()
            .map(|log| log_of_argument(log, args.options.options(None)))
            .collect::<Result<_, _>>()?,
    };
    let value = view.to_json().map_err(Failure::from)?;
    View::parse(value.as_bytes()).map_err(|error| Failure::wrong_input(error.to_string()))?;
    let mut path = components.into_os_string();
    path.push(":SYSTEM_DEFAULT:USER_DEFAULT");
    let variables = [(COMPONENT_PATH, text_of(&path)), (quell_mount_spec::VIEW_VARIABLE, value)];
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

/// Returns the directory with the components for this version of Open MPI.
fn components_directory(args: &MpiEnvArgs, mpi: &OpenMpi) -> Result<PathBuf, Failure> {
    let is_complete = |directory: &PathBuf| {
        FRAMEWORKS.iter().all(|framework| directory.join(format!("mca_{framework}_quell.so")).is_file())
    };
    if let Some(directory) = &args.components {
        let directory = real_path(directory)?;
        return match is_complete(&directory) {
            true => Ok(directory),
            false => {
                Err(Failure::wrong_input(format!("{} does not contain the components", shown(&directory))))
            }
        };
    }
    let name = mpi.directory_name();
    let installed = installed::program_directory()?.join("../lib/quell").join(&name);
    let own = own_directory().ok().map(|directory| directory.join(&name));
    match own.into_iter().chain([installed]).find(is_complete) {
        Some(directory) => real_path(&directory),
        None => Err(Failure::cannot(format!(
            "there are no components for Open MPI {}; run `quell mpi build`, or name their directory with --components",
            mpi.version
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_output_of_the_compiler() {
        assert_eq!(version_in("mpicc: Open MPI 4.1.4 (Language: C)\n"), Some("4.1.4"));
        assert_eq!(version_in("mpicc: Open MPI 5.0.0rc12 (Language: C)\n"), Some("5.0.0rc12"));
        assert_eq!(version_in("mpicc: Open MPI ../x (Language: C)\n"), None);
        assert_eq!(version_in("gcc (Debian 12.2.0-14) 12.2.0\n"), None);
    }
}
