//! The examples of docs/guides/mpi.md: HDF5, NetCDF, PnetCDF, h5py and mpi4py through the
//! components for Open MPI, and the hints for ROMIO.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mpiio::{CASES, Fixture, traced_bytes};
use crate::mpiio_fixture;
use crate::skip;
use crate::stage::{checkout, has};

const RANKS: usize = 4;
/// Debian's interpreter, which has Debian's modules.
const PYTHON: &str = "/usr/bin/python3";

/// Returns the block of code of the guide that contains `words`.
fn example(words: &str) -> String {
    let guide = fs::read_to_string(checkout().join("docs/guides/mpi.md")).unwrap();
    let mut blocks = guide.split("```").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(words)).unwrap_or_else(|| panic!("no example: {words}"));
    block.split_once('\n').unwrap().1.to_owned()
}

/// Returns a command that runs a program with the components, on every rank.
fn on_all_ranks(fixture: &Fixture, program: &[&Path]) -> Command {
    let mut command = fixture.stage.mpirun(RANKS);
    command.args(["--mca", "io", "ompio"]).args(program);
    command.envs(fixture.variables(&[])).env("MPIEXEC_TIMEOUT", "120");
    command
}

/// Compiles and runs an example, which creates `name`, and returns a plain copy of the file.
fn run_c(fixture: &Fixture, name: &str, compile: &str) -> PathBuf {
    let source = fixture.stage.file(&format!("{name}.c"), example(&format!("{name}.c")));
    let program = fixture.stage.path(name);
    fixture.stage.sh(&format!("{compile} -o \"$1\" \"$2\" $3"), &[&program, &source]).expect(0);
    fixture.stage.run(&mut on_all_ranks(fixture, &[&program, &fixture.view.join(name)])).expect(0);
    exported(fixture, name)
}

fn exported(fixture: &Fixture, name: &str) -> PathBuf {
    let copy = fixture.stage.path(format!("{name}.copy"));
    let mut export = fixture.stage.quell();
    fixture.stage.run(export.args(["log", "export"]).arg(&fixture.store).arg(name).arg(&copy)).expect(0);
    copy
}

/// Checks a file of HDF5 with the serial library.
fn check_hdf5(fixture: &Fixture, file: &Path) {
    let script = "import sys, h5py, numpy\n\
                  with h5py.File(sys.argv[1], 'r') as f: assert (f['values'][:] == numpy.arange(400)).all()\n";
    fixture.stage.run(fixture.stage.command(PYTHON).args(["-c", script]).arg(file)).expect(0);
}

#[test]
fn hdf5_writes_a_file() {
    let fixture = mpiio_fixture!();
    if !has("h5pcc.openmpi") {
        skip!("h5pcc.openmpi (libhdf5-openmpi-dev) is not installed");
    }
    check_hdf5(&fixture, &run_c(&fixture, "hdf5", "h5pcc.openmpi"));
}

#[test]
fn netcdf_writes_a_file() {
    let fixture = mpiio_fixture!();
    let has_library = fixture.stage.sh("pkg-config --exists netcdf-mpi", &[]).code() == Some(0);
    if !has_library {
        skip!("netcdf-mpi (libnetcdf-mpi-dev) is not installed");
    }
    let compile = "link() { mpicc \"$@\" -I$(pkg-config --variable=prefix netcdf-mpi)/include \
                   $(pkg-config --cflags --libs netcdf-mpi); }; link";
    // NetCDF 4 is HDF5.
    check_hdf5(&fixture, &run_c(&fixture, "netcdf", compile));
}

#[test]
fn pnetcdf_writes_a_file() {
    let fixture = mpiio_fixture!();
    if !Path::new("/usr/include/pnetcdf.h").exists() {
        skip!("pnetcdf.h (libpnetcdf-dev) is not installed");
    }
    let copy = run_c(&fixture, "pnetcdf", "link() { mpicc \"$@\" -lpnetcdf; }; link");
    // The values are at the end of the file, in the order of the network.
    let bytes = fs::read(copy).unwrap();
    assert!(bytes.starts_with(b"CDF\x05"));
    let values: Vec<u8> = (0..400_i32).flat_map(i32::to_be_bytes).collect();
    assert!(bytes.ends_with(&values));
}

/// Runs an example in Python with an argument, unless a module is missing.
fn run_python(fixture: &Fixture, words: &str, modules: &str, argument: &Path) -> bool {
    let imports = format!("import {modules}");
    if fixture.stage.run(fixture.stage.command(PYTHON).args(["-c", &imports])).code() != Some(0) {
        println!("SKIPPED: the Python modules {modules} are not installed");
        return false;
    }
    let script = fixture.stage.file("example.py", example(words));
    let mut command = on_all_ranks(fixture, &[Path::new(PYTHON), &script, argument]);
    let built = fixture
        .stage
        .run(fixture.stage.quell().args(["mpi", "build", "--json", "--output"]).arg(&fixture.components));
    let library = PathBuf::from(built.expect(0).json()["library"].as_str().unwrap());
    let package = [checkout().join("frontends/python"), library.parent().unwrap().join("python")];
    let package = package.iter().find(|package| package.is_dir());
    command.env("LD_LIBRARY_PATH", library.parent().unwrap());
    if let Some(package) = package {
        command.env("PYTHONPATH", package);
    }
    fixture.stage.run(command.env("PYTHONDONTWRITEBYTECODE", "1")).expect(0);
    true
}

#[test]
fn h5py_writes_and_reads_a_file() {
    let fixture = mpiio_fixture!();
    if run_python(&fixture, "import h5py", "mpi4py, h5py, numpy", &fixture.view.join("h5py")) {
        check_hdf5(&fixture, &exported(&fixture, "h5py"));
    }
}

#[test]
fn mpi4py_writes_and_reads_a_file() {
    let fixture = mpiio_fixture!();
    if run_python(&fixture, "MPI.File.Open", "mpi4py", &fixture.view.join("mpi4py")) {
        assert!(fixture.store.join("mpi4py.container").is_dir());
    }
}

#[test]
fn mpi4py_exchanges_shares_of_an_index() {
    let fixture = mpiio_fixture!();
    run_python(&fixture, "import quell", "mpi4py", &fixture.store);
}

/// A program that prints the hints of a file.
const PRINT_HINTS: &str = r#"
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    MPI_File file;
    MPI_Info info;
    char value[MPI_MAX_INFO_VAL + 1];
    int is_set;
    MPI_Init(&argc, &argv);
    MPI_Info_create(&info);
    if (argc > 2)
        MPI_Info_set(info, "romio_ds_write", argv[2]);
    if (MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file))
        return 1;
    MPI_File_get_info(file, &info);
    MPI_Info_get(info, "romio_ds_write", MPI_MAX_INFO_VAL, value, &is_set);
    printf("romio_ds_write=%s\n", is_set ? value : "not set");
    MPI_File_close(&file);
    MPI_Finalize();
    return 0;
}
"#;

#[test]
fn romio_gets_hints_for_virtual_files_alone() {
    let fixture = mpiio_fixture!();
    let (plain, virtual_) = (fixture.stage.dir("plain"), fixture.stage.dir("virtual"));
    // The wrapper needs no preload library; without it the file is plain.
    let view = format!(r#"{{"log":[{{"path":{virtual_:?},"stores":["/nowhere"]}}]}}"#);
    for (compiler, mpirun) in [("mpicc.openmpi", "mpirun.openmpi"), ("mpicc.mpich", "mpirun.mpich")] {
        if !has(compiler) || !has(mpirun) {
            println!("SKIPPED: {compiler} is not installed");
            continue;
        }
        let components = fixture.stage.dir(compiler);
        let mut build = fixture.stage.quell();
        build.args(["mpi", "build", "--compiler", compiler, "--output"]).arg(&components);
        fixture.stage.run(&mut build).expect(0);
        let source = fixture.stage.file("print_hints.c", PRINT_HINTS);
        let program = components.join("print_hints");
        fixture.stage.sh(&format!("{compiler} -o \"$1\" \"$2\""), &[&program, &source]).expect(0);
        let hint = |path: PathBuf, option: &[&str]| {
            let mut command = fixture.stage.command(&program);
            command.arg(path).args(option).env("QUELL_VIEW", &view).env("OMPI_MCA_io", "romio321");
            command.env("LD_PRELOAD", components.join("libquell_mpi.so"));
            fixture.stage.run(&mut command).expect(0).text().trim().to_owned()
        };
        assert_eq!(hint(virtual_.join("file"), &[]), "romio_ds_write=disable", "{compiler}");
        assert_eq!(hint(virtual_.join("file"), &["enable"]), "romio_ds_write=enable", "{compiler}");
        assert_ne!(hint(plain.join("file"), &[]), "romio_ds_write=disable", "{compiler}");
    }
}

/// A job of MPICH over the preload library.
struct Mpich {
    fixture: Fixture,
    program: PathBuf,
    variables: Vec<String>,
}

impl Mpich {
    /// Returns the reason if the program cannot be built here.
    fn new() -> Result<Mpich, String> {
        let fixture = Fixture::new()?;
        if !has("mpicc.mpich") || !has("mpirun.mpich") {
            return Err("mpicc.mpich (libmpich-dev) is not installed".into());
        }
        let stage = &fixture.stage;
        let components = stage.dir("mpich");
        let compiler = ["--compiler", "mpicc.mpich"];
        let mut build = stage.quell();
        stage.run(build.args(["mpi", "build"]).args(compiler).arg("--output").arg(&components)).expect(0);
        let program = stage.mpi_program("mpicc.mpich", "mpich_cases", CASES);
        let mut env = stage.quell();
        env.args(["mpi", "env", "--json", "--components"]).arg(&components).args(compiler);
        env.arg("--log").arg(format!("{}={}", fixture.store.display(), fixture.view.display()));
        let printed = stage.run(&mut env).expect(0).json();
        let variables = printed["variables"].as_object().unwrap().iter();
        let variables =
            variables.map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
        Ok(Mpich { fixture, program, variables })
    }

    /// Returns the command that runs a program on the ranks of a job.
    fn launcher(&self) -> Command {
        let mut command = self.fixture.stage.command("mpirun.mpich");
        command.args(["-n", "3", "env"]).args(&self.variables);
        command
    }
}

macro_rules! mpich {
    () => {
        match Mpich::new() {
            Ok(mpich) => mpich,
            Err(reason) => skip!("{reason}"),
        }
    };
}

#[test]
fn romio_of_mpich_uses_the_preload_library() {
    let mpich = mpich!();
    let Fixture { stage, view, store, .. } = &mpich.fixture;
    // In these cases MPI defines the result, or the ranks call MPI_File_sync, a barrier and
    // MPI_File_sync.
    for case in ["strided", "independent", "modes", "nonblocking", "atomic"] {
        let mut command = mpich.launcher();
        command.arg(&mpich.program).arg(case).arg(view.join(case));
        let ended = stage.run(&mut command).expect(0);
        assert!(ended.text().contains(&format!("{case}: 3 ranks")), "{case}: {}", ended.text());
        assert!(store.join(format!("{case}.container")).is_dir(), "{case}");
    }
}

#[test]
fn a_job_of_mpich_reads_each_index_log_once() {
    if !has("strace") {
        skip!("no strace");
    }
    let mpich = mpich!();
    let Fixture { stage, view, .. } = &mpich.fixture;
    let path = view.join("file");
    let mut command = mpich.launcher();
    stage.run(command.arg(&mpich.program).arg("random_write").arg(&path)).expect(0);
    let logs = mpich.fixture.files("file", ".index");
    assert_eq!(logs.len(), 3);
    let bytes: u64 = logs.iter().map(|log| fs::metadata(log).unwrap().len()).sum();
    let program = [&mpich.program, Path::new("random_read"), &path];
    assert_eq!(traced_bytes(stage, mpich.launcher(), &program, ".index>"), bytes);
}
