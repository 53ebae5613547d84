//! MPI-IO through the components for Open MPI: files of log stores without a mount and without a
//! changed program. The data is checked by `mpiio_cases.c`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::log::walk;
use crate::skip;
use crate::stage::{MPIRUN_VARIABLES, Stage, has, is_root, why_no_openmpi};

pub const CASES: &str = include_str!("mpiio_cases.c");
const RANKS: usize = 4;

/// An Open MPI with the components, a compiled program, and a virtual directory.
pub struct Fixture {
    pub stage: Stage,
    pub components: PathBuf,
    program: PathBuf,
    pub store: PathBuf,
    pub view: PathBuf,
}

impl Fixture {
    /// Compiles the components and the program. Returns the reason if that is not possible here.
    pub fn new() -> Result<Fixture, String> {
        if let Some(reason) = why_no_openmpi() {
            return Err(reason.into());
        }
        let stage = Stage::new();
        let components = stage.path("components");
        stage.run(stage.quell().args(["mpi", "build", "--output"]).arg(&components)).expect(0);
        let program = stage.mpi_program("mpicc", "mpiio_cases", CASES);
        let (store, view) = (stage.dir("store"), stage.path("view"));
        Ok(Fixture { components, program, store, view, stage })
    }

    /// Returns the variables that `quell mpi env` prints, for this virtual directory.
    pub fn variables(&self, options: &[&str]) -> Vec<(String, String)> {
        self.variables_for(&[(&self.store, &self.view)], options)
    }

    fn variables_for(&self, logs: &[(&Path, &Path)], options: &[&str]) -> Vec<(String, String)> {
        let mut command = self.stage.quell();
        command.args(["mpi", "env", "--json", "--components"]).arg(&self.components).args(options);
        for (store, view) in logs {
            command.arg("--log").arg(format!("{}={}", store.display(), view.display()));
        }
        let report = self.stage.run(&mut command).expect(0).json();
        let variables = report["variables"].as_object().unwrap().iter();
        variables.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
    }

    /// Returns the command that runs a case with these variables.
    fn case(&self, ranks: usize, variables: &[(String, String)], case: &str, path: &Path) -> Command {
        let mut command = self.stage.mpirun(ranks);
        command.args(["--mca", "io", "ompio"]).arg(&self.program).arg(case).arg(path);
        command.envs(variables.iter().cloned()).env("MPIEXEC_TIMEOUT", "120");
        command
    }

    #[track_caller]
    fn succeeds(&self, ranks: usize, variables: &[(String, String)], case: &str, path: &Path) {
        let ended = self.stage.run(&mut self.case(ranks, variables, case, path)).expect(0);
        assert!(ended.text().contains(&format!("{case}: {ranks} ranks\n")), "{case}: {}", ended.text());
    }

    /// Returns the paths of the files in a container whose names end or begin with `pattern`.
    pub fn files(&self, name: &str, pattern: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.store.join(format!("{name}.container")), &mut |path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(pattern) || name.starts_with(pattern) {
                found.push(path.to_owned());
            }
        });
        found
    }
}

/// Returns a fixture, or ends the test with the reason why there is none.
#[macro_export]
macro_rules! mpiio_fixture {
    () => {
        match $crate::mpiio::Fixture::new() {
            Ok(fixture) => fixture,
            Err(reason) => $crate::skip!("{reason}"),
        }
    };
}

#[test]
fn the_operations_of_mpi_io_have_the_same_results_as_on_a_plain_file() {
    let fixture = mpiio_fixture!();
    let (variables, plain) = (fixture.variables(&[]), fixture.stage.dir("plain"));
    for case in [
        "strided",
        "irregular",
        "independent",
        "large",
        "modes",
        "deletion",
        "sizes",
        "nonblocking",
        "split_collective",
        "shared_pointer",
        "atomic",
    ] {
        fixture.succeeds(RANKS, &variables, case, &fixture.view.join(case));
        // Open MPI does not lock a plain file in atomic mode, so its own results can be mixed.
        if case == "atomic" {
            continue;
        }
        let name = fixture.stage.mpi_name(case);
        fixture.succeeds(RANKS, &variables, case, &plain.join(&name));
        // A plain file is not touched by the components.
        assert!(!plain.join(format!("{name}.container")).exists(), "{case}");
        assert_eq!(plain.join(&name).exists(), case != "deletion", "{case}");
    }
    assert!(!fixture.view.exists());
    assert!(fixture.store.join("strided.container").is_dir());
    // One append and one batch of the index for the one collective call of each rank.
    assert_eq!(fixture.files("strided", ".data").len(), RANKS);
    // Fewer ranks than logs, and more.
    fixture.succeeds(RANKS, &variables, "random_write", &fixture.view.join("random"));
    fixture.succeeds(RANKS, &variables, "random_read", &fixture.view.join("random"));
    fixture.stage.expect_nothing_left();
}

/// Runs a command as on another node: with a host name of its own.
const AGENT: &str = "#!/bin/sh\nhost=$1; shift\n\
                     exec unshare --uts sh -c 'hostname \"$1\"; shift; exec sh -c \"$*\"' sh \"$host\" \"$@\"\n";

#[test]
fn ranks_on_two_nodes_share_a_file() {
    if !is_root() {
        skip!("only root gives processes a host name of their own");
    }
    let fixture = mpiio_fixture!();
    let agent = fixture.stage.file("agent", AGENT);
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    let variables = fixture.variables(&[]);
    for case in ["strided", "independent", "modes", "sizes", "shared_pointer", "atomic"] {
        let mut command = fixture.stage.command("mpirun");
        command.args(["-n", "4", "--oversubscribe", "--allow-run-as-root", "--host", "first:2,second:2"]);
        command.args(["--mca", "plm_rsh_agent"]).arg(&agent).args(["--mca", "oob_tcp_if_include", "lo"]);
        command.args(["--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", "lo"]);
        command.args(["--mca", "pml", "ob1", "--mca", "io", "ompio", "-x", "QUELL_VIEW"]);
        command.arg(&fixture.program).arg(case).arg(fixture.view.join(case));
        command.envs(variables.iter().cloned()).env("MPIEXEC_TIMEOUT", "120");
        command.envs(MPIRUN_VARIABLES);
        let ended = fixture.stage.run(&mut command).expect(0);
        assert!(ended.text().contains(&format!("{case}: 4 ranks\n")), "{case}: {}", ended.text());
    }
    // The file of a shared file pointer is removed when the file is closed.
    let names = fs::read_dir(&fixture.store).unwrap().map(|entry| entry.unwrap().file_name());
    let rest: Vec<_> = names.filter(|name| name.to_string_lossy().contains("pointer-")).collect();
    assert!(rest.is_empty(), "{rest:?}");
    fixture.stage.expect_nothing_left();
}

#[test]
fn hints_select_the_buffer_and_the_index() {
    let fixture = mpiio_fixture!();
    for (index, flat) in [("parallel", 0), ("flatten", 1)] {
        let path = fixture.view.join(index);
        let mut command = fixture.case(RANKS, &fixture.variables(&[]), "hints", &path);
        let ended = fixture.stage.run(command.arg(index)).expect(0);
        assert!(ended.text().contains("hints: 4 ranks"), "{}", ended.text());
        assert_eq!(fixture.files(index, "flat-").len(), flat, "{index}");
    }
    // The option of the virtual directory.
    let variables = fixture.variables(&["--index", "flatten"]);
    fixture.succeeds(RANKS, &variables, "strided", &fixture.view.join("flattened"));
    assert_eq!(fixture.files("flattened", "flat-").len(), 1);
    let variables = fixture.variables(&["--index", "flatten", "--flatten-threshold", "10"]);
    fixture.succeeds(RANKS, &variables, "strided", &fixture.view.join("large"));
    assert_eq!(fixture.files("large", "flat-").len(), 0);
}

#[test]
fn a_job_reads_each_index_log_once() {
    if !has("strace") {
        skip!("no strace");
    }
    let fixture = mpiio_fixture!();
    fixture.succeeds(RANKS, &fixture.variables(&[]), "random_write", &fixture.view.join("file"));
    let logs = fixture.files("file", ".index");
    let bytes: u64 = logs.iter().map(|log| fs::metadata(log).unwrap().len()).sum();
    assert_eq!(logs.len(), RANKS);
    for ranks in [RANKS, RANKS - 1, RANKS + 2] {
        // With more or fewer ranks than writers, the records of some ranks do not exist.
        let case = if ranks == RANKS { "random_read" } else { "open_only" };
        assert_eq!(bytes_read(&fixture, ranks, case, ".index>"), bytes, "{ranks} ranks");
    }
    // The flat index is read by one rank.
    fixture
        .stage
        .run(fixture.stage.quell().args(["log", "flatten"]).arg(&fixture.store).arg("file"))
        .expect(0);
    let flat = fs::metadata(&fixture.files("file", "flat-")[0]).unwrap().len();
    assert_eq!(bytes_read(&fixture, RANKS, "random_read", ".index>"), 0);
    let read = bytes_read(&fixture, RANKS, "random_read", "/flat-");
    assert!((flat..2 * flat).contains(&read), "{flat}: {read}");
}

fn bytes_read(fixture: &Fixture, ranks: usize, case: &str, words: &str) -> u64 {
    let mut command = fixture.stage.mpirun(ranks);
    command.args(["--mca", "io", "ompio"]).envs(fixture.variables(&[]));
    let path = fixture.view.join("file");
    traced_bytes(&fixture.stage, command, &[&fixture.program, Path::new(case), &path], words)
}

/// Adds a program with its arguments to a command that starts the ranks of a job, runs it, and
/// returns the number of bytes that all ranks together have read from files whose path contains
/// `words`.
pub fn traced_bytes(stage: &Stage, mut launcher: Command, program: &[&Path], words: &str) -> u64 {
    let traces = tempfile::tempdir_in(stage.path(".")).unwrap();
    launcher.args(["strace", "-ff", "-y", "-e", "trace=read,pread64,preadv", "-o"]);
    let ended = stage.run(launcher.arg(traces.path().join("rank")).args(program)).expect(0);
    assert!(ended.text().contains(" ranks"), "{}", ended.text());
    let mut read = 0;
    for trace in fs::read_dir(traces.path()).unwrap() {
        let trace = fs::read(trace.unwrap().path()).unwrap();
        for line in String::from_utf8_lossy(&trace).lines().filter(|line| line.contains(words)) {
            read += line.rsplit_once(" = ").unwrap().1.parse::<u64>().unwrap();
        }
    }
    read
}

#[test]
fn an_error_on_one_rank_is_an_error_on_all() {
    let fixture = mpiio_fixture!();
    let refused = |variables: &[(String, String)], reason: &str| {
        let mut command = fixture.case(RANKS, variables, "refusal", &fixture.view.join("file"));
        let ended = fixture.stage.run(command.arg(reason)).expect(0);
        assert!(ended.text().contains("refusal: 4 ranks"), "{}", ended.text());
    };
    let gone = fixture.stage.dir("gone");
    let variables = fixture.variables_for(&[(&gone, &fixture.view)], &[]);
    fs::remove_dir(&gone).unwrap();
    refused(&variables, "gone: No such file or directory");
    let mut invalid = fixture.variables(&[]);
    invalid.iter_mut().find(|(name, _)| name == "QUELL_VIEW").unwrap().1 = "{".into();
    refused(&invalid, "QUELL_VIEW");
    if is_root() {
        println!("a store without write permission: only as an ordinary user");
    } else {
        let variables = fixture.variables(&[]);
        fs::set_permissions(&fixture.store, fs::Permissions::from_mode(0o555)).unwrap();
        refused(&variables, "ermission denied");
        fs::set_permissions(&fixture.store, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // Half of the ranks have another store at the path. They do not find the file that rank 0 has
    // created, and all ranks get the error.
    let other = fixture.stage.dir("other");
    let variables = fixture.variables(&[]);
    let others = fixture.variables_for(&[(&other, &fixture.view)], &[]);
    let view = |variables: &[(String, String)]| {
        let (_, value) = variables.iter().find(|(name, _)| name == "QUELL_VIEW").unwrap();
        format!("QUELL_VIEW={value}")
    };
    let mut command = fixture.stage.mpirun(2);
    command.args(["--mca", "io", "ompio", "env", &view(&variables)]);
    let words = [fixture.program.as_path(), Path::new("refusal"), &fixture.view.join("new")];
    command.args(words).arg("No such file").args([":", "-n", "2", "env", &view(&others)]);
    command.args(words).arg("No such file").envs(variables);
    let ended = fixture.stage.run(&mut command).expect(0);
    assert!(ended.text().contains("refusal: 4 ranks"), "{}", ended.text());
}

#[test]
fn a_job_uses_several_virtual_directories() {
    let fixture = mpiio_fixture!();
    let (second_store, second_view) = (fixture.stage.dir("second"), fixture.stage.path("second-view"));
    let logs = [(&*fixture.store, &*fixture.view), (&*second_store, &*second_view)];
    let variables = fixture.variables_for(&logs, &[]);
    fixture.succeeds(RANKS, &variables, "strided", &fixture.view.join("file"));
    fixture.succeeds(RANKS, &variables, "strided", &second_view.join("file"));
    assert!(fixture.store.join("file.container").is_dir() && second_store.join("file.container").is_dir());
}

/// A directory at the path of the semaphore that Open MPI's component for shared file pointers
/// opens. Like the semaphore of another user, it cannot be opened.
struct UnusableSemaphore(PathBuf);

impl UnusableSemaphore {
    fn new(file: &str) -> UnusableSemaphore {
        let path = Path::new("/dev/shm").join(format!("sem.OMPIO_{file}"));
        fs::create_dir(&path).unwrap();
        UnusableSemaphore(path)
    }
}

impl Drop for UnusableSemaphore {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).unwrap();
    }
}

#[test]
fn a_file_of_a_store_is_opened_without_the_semaphore_of_its_name() {
    let fixture = mpiio_fixture!();
    if !Path::new("/dev/shm").is_dir() {
        skip!("the machine has no /dev/shm");
    }
    let name = fixture.stage.mpi_name("pointer");
    let _semaphore = UnusableSemaphore::new(&name);
    fixture.succeeds(RANKS, &fixture.variables(&[]), "shared_pointer", &fixture.view.join(&name));
}

#[test]
fn components_of_another_open_mpi_are_refused() {
    let fixture = mpiio_fixture!();
    let script = "#!/bin/sh\ncase $* in\n*--showme*) exec mpicc \"$@\" ;;\nesac\n\
                  exec mpicc -include opal_config.h -include other.h \"$@\"\n";
    let compiler = fixture.stage.file("other-mpicc", script);
    fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755)).unwrap();
    let include = fixture.stage.dir("include");
    fs::write(
        include.join("other.h"),
        "#include \"opal_config.h\"\n#undef OMPI_RELEASE_VERSION\n#define OMPI_RELEASE_VERSION 99\n",
    )
    .unwrap();
    let mut command = fixture.stage.quell();
    command.args(["mpi", "build", "--compiler"]).arg(&compiler).arg("--output").arg(&fixture.components);
    fixture.stage.run(command.env("CPATH", &include)).expect(0);
    let ended = fixture.stage.run(&mut fixture.case(
        RANKS,
        &fixture.variables(&[]),
        "strided",
        &fixture.view.join("file"),
    ));
    assert_ne!(ended.code(), Some(0));
    assert_eq!(ended.err.matches("the MPI-IO components were compiled for").count(), 1, "{}", ended.err);
    assert!(ended.err.contains("quell mpi build") && !ended.err.contains("Signal:"), "{}", ended.err);
}

#[test]
fn wrong_usage_of_the_command_is_reported() {
    let stage = Stage::new();
    let store = stage.dir("store");
    let missing = ["mpi", "build", "--compiler", "/nonexistent/mpicc"];
    stage.run(stage.quell().args(missing)).expect(3).says("--compiler");
    stage.run(stage.quell().args(["mpi", "build", "--compiler", "true"])).expect(3).says("Open MPI");
    if let Some(reason) = why_no_openmpi() {
        skip!("{reason}");
    }
    stage.run(stage.quell().args(["mpi", "build", "--library", "/nonexistent"])).expect(2);
    let env = |log: &str| {
        let mut command = stage.quell();
        command.args(["mpi", "env", "--log", log, "--components"]).arg(stage.path("."));
        stage.run(&mut command)
    };
    env("x").expect(2).says("does not contain the components");
    for name in ["fs", "fbtl", "fcoll", "sharedfp"] {
        stage.file(&format!("mca_{name}_quell.so"), "");
    }
    stage.file("libquell_mpi.so", "");
    let store = store.display();
    env(&format!("{store}")).expect(2).says("STORE[,STORE...]=DIR");
    env(&format!("{store}=relative")).expect(2).says("absolute");
    env(&format!("{store}=/")).expect(2).says("lies below");
    env(&format!("{store}={store}/inner")).expect(2);
    env(&format!("{store}/none=/v")).expect(2);
    let shell = env(&format!("{store}=/v'w")).expect(0).text();
    assert!(shell.contains("\nexport OMPI_MCA_mca_base_component_path="), "{shell}");
    let value = stage.sh(&format!("{shell}\nprintf %s \"$QUELL_VIEW\""), &[]).expect(0).text();
    assert!(value.contains("\"/v'w\""), "{value}");
}
