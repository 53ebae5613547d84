//! The environment of one test: a directory of its own, a runtime directory of its own, and
//! programs with a time limit. On drop it checks that no process and no mount of the test remains.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Time limit for a hang. The slowest program, which reads a large trace, takes two minutes in a
/// debug build on a machine with ten times as many busy processes as processors.
pub const PATIENCE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(10);

/// Variables that launchers of parallel jobs set. A test that runs inside such a job is not one of
/// its ranks.
pub const JOB_VARIABLES: [&str; 26] = [
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "FLUX_JOB_ID",
    "FLUX_JOB_ID_PATH",
    "FLUX_ENCLOSING_ID",
    "PMI_JOBID",
    "PALS_APID",
    "PBS_JOBID",
    "LSB_JOBID",
    "COBALT_JOBID",
    "JOB_ID",
    "SGE_TASK_ID",
    "PMIX_RANK",
    "PMI_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "JSM_NAMESPACE_RANK",
    "SLURM_NODEID",
    "PALS_NODEID",
    "PBS_NODENUM",
    "SLURM_NNODES",
    "XDG_RUNTIME_DIR",
];

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the path of the binary under test.
pub fn quell() -> PathBuf {
    match std::env::var_os("QUELL") {
        Some(path) => path.into(),
        None => checkout().join("target/demo/quell"),
    }
}

/// Returns the path of the checkout, or of a copy of its documents, `tests`, `testbed`, `scripts`
/// and `demo` that every user may read. The directory of compilation is not used if a copy is
/// given, because the ordinary user may have no access to it.
pub fn checkout() -> PathBuf {
    std::env::var_os("QUELL_SOURCE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), PathBuf::from)
}

/// Prints the reason why a test, or a part of one, is not run, and returns.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        println!("SKIPPED: {}", format!($($reason)*));
        return;
    }};
}

/// Returns true if a program is installed.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Returns whether a user may create a user namespace and mount in it.
pub fn can_unshare(stage: &Stage) -> bool {
    stage.run(stage.command("unshare").args(["-U", "-r", "-m", "true"])).code() == Some(0)
}

/// Variables for each `mpirun` of Open MPI. The ranks are not bound to processors, because the
/// tests share the processors. The dynamic loader resolves all functions of a library when it loads
/// the library: Open MPI's progress thread calls `event_base_loop` for the first time while the
/// main thread loads and closes components, and a resolution at that time sometimes ends with
/// SIGSEGV.
pub const MPIRUN_VARIABLES: [(&str, &str); 2] =
    [("OMPI_MCA_hwloc_base_binding_policy", "none"), ("LD_BIND_NOW", "1")];

/// Returns the reason why OpenMPI programs cannot be compiled and run here.
pub fn why_no_openmpi() -> Option<&'static str> {
    if !has("mpirun") || !has("mpicc") {
        return Some("no OpenMPI (mpirun, mpicc)");
    }
    let version = Command::new("mpirun").arg("--version").output().unwrap();
    let is_open = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
    (!is_open).then_some("mpirun is not OpenMPI's")
}

/// Polls until the condition is true. Returns false after the time limit.
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// The exit status and the output of a program.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    /// Standard error without the lines in `waits`.
    pub err: String,
    /// The lines of `quell run` about a file system that has not answered for a few seconds. On a
    /// busy machine any access can take that long.
    pub waits: Vec<String>,
}

impl Ended {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Ended {
        assert_eq!(
            self.code(),
            Some(code),
            "signal {:?}\n-- stdout\n{}\n-- stderr\n{}",
            self.status.signal(),
            self.text(),
            self.err
        );
        self
    }

    /// Checks that standard error contains the words.
    #[track_caller]
    pub fn says(self, words: &str) -> Ended {
        assert!(self.err.contains(words), "no {words:?} in standard error:\n{}", self.err);
        self
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|e| panic!("{e} in {}", self.text()))
    }
}

/// A running program, which is killed on drop.
#[derive(Debug)]
pub struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    ended: Option<ExitStatus>,
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn stdin(&mut self) -> std::process::ChildStdin {
        self.child.stdin.take().expect("started with a pipe")
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap_or_default()).into_owned()
    }

    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap();
        }
        self.ended.is_none()
    }

    /// Waits until standard output contains the words.
    #[track_caller]
    pub fn wait_for_output(&mut self, words: &str) {
        let came = eventually(|| self.out().contains(words) || !self.is_running());
        assert!(
            came && self.out().contains(words),
            "no {words:?}\n-- stdout\n{}\n-- stderr\n{}",
            self.out(),
            self.err()
        );
    }

    #[track_caller]
    pub fn wait_for_error(&mut self, words: &str) {
        let came = eventually(|| self.err().contains(words) || !self.is_running());
        assert!(came && self.err().contains(words), "no {words:?} in {}", self.err());
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    #[track_caller]
    pub fn wait(mut self) -> Ended {
        let ended = eventually(|| !self.is_running());
        assert!(ended, "it hangs: {:?}\n-- stdout\n{}\n-- stderr\n{}", self.child, self.out(), self.err());
        let (err, waits) = split_waits(&self.err());
        Ended { status: self.ended.take().unwrap(), out: fs::read(&self.out).unwrap_or_default(), err, waits }
    }
}

/// Returns standard error without the lines about a file system that does not answer, and these
/// lines.
pub fn split_waits(err: &str) -> (String, Vec<String>) {
    let is_wait = |line: &&str| line.starts_with("quell: waiting for ") && line.contains(": no answer for ");
    let (waits, others): (Vec<&str>, Vec<&str>) = err.split_inclusive('\n').partition(is_wait);
    (others.concat(), waits.into_iter().map(str::to_owned).collect())
}

#[test]
fn lines_about_waiting_are_not_part_of_standard_error() {
    let wait = "quell: waiting for /shared/env: no answer for 3 s\n";
    let other = "quell: /shared/env is out of date\nwaiting for input";
    assert_eq!(split_waits(&[wait, other].concat()), (other.to_owned(), vec![wait.to_owned()]));
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub fn send(pid: i32, signal: Signal) {
    let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// A view and the command that shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launch {
    /// `quell run`: at the tree's own path.
    Run(&'static str),
    /// `quell mount`: at a mount point.
    Mount(&'static str),
}

impl Launch {
    pub fn view(self) -> &'static str {
        let (Launch::Run(view) | Launch::Mount(view)) = self;
        view
    }

    /// Returns true if the view is an overlayfs, over a tmpfs or over Quell's FUSE mount.
    pub fn is_overlay(self) -> bool {
        self.view() != "fuse"
    }

    /// Returns true if programs run in a user namespace that maps one user.
    pub fn maps_one_user(self) -> bool {
        !is_root() && matches!(self, Launch::Run(_))
    }
}

const VIEWS: [&str; 3] = ["overlay", "overlay-fuse", "fuse"];

/// Reads the views that an earlier test of the same user in the same `make test` found to work.
/// Each test is a process of its own, and trying the views takes longer than many tests.
///
/// Errors: the file to write, if there is none yet; `None` outside of `make test`.
fn views_found_before() -> Result<String, Option<PathBuf>> {
    let run = std::env::var_os("QUELL_TEST_RUN").ok_or(None)?;
    let uid = rustix::process::geteuid().as_raw();
    let cache = Path::new(&run).join(format!("tmp/views-{uid}"));
    fs::read_to_string(&cache).map_err(|_| Some(cache))
}

fn try_views() -> Vec<&'static str> {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::write(tree.join("file"), "x").unwrap();
    let index = stage.index(&tree);
    let works = |view: &&str| {
        stage.run(stage.quell_run(&index, view).arg("--strict").args(["--", "true"])).code() == Some(0)
    };
    VIEWS.into_iter().filter(works).collect()
}

/// Returns the views that `quell run` supports here, and prints the others.
pub fn views() -> &'static [&'static str] {
    static WORKING: OnceLock<Vec<&'static str>> = OnceLock::new();
    let working = WORKING.get_or_init(|| match views_found_before() {
        Ok(names) => VIEWS.into_iter().filter(|view| names.lines().any(|name| name == *view)).collect(),
        Err(cache) => {
            let working = try_views();
            if let Some(cache) = cache {
                // Tests that run at the same time write the same file, and must not read an
                // incomplete one.
                let own = cache.with_extension(std::process::id().to_string());
                fs::write(&own, working.join("\n")).unwrap();
                fs::rename(&own, &cache).unwrap();
            }
            working
        }
    });
    for view in VIEWS {
        if !working.contains(&view) {
            println!("SKIPPED: the view {view} does not work for this user on this machine");
        }
    }
    working
}

/// Returns all combinations of command and view for tests of a view's content.
pub fn launches() -> Vec<Launch> {
    let mut launches: Vec<Launch> = views().iter().map(|view| Launch::Run(view)).collect();
    if is_root() {
        launches.extend(views().iter().map(|view| Launch::Mount(view)));
    } else if has("fusermount3") && views().contains(&"fuse") {
        launches.push(Launch::Mount("fuse"));
    } else {
        println!("SKIPPED: an ordinary user mounts through fusermount3, which is not there");
    }
    launches
}

/// Returns the same for a tree with files that not every user may read, for which root mounts only
/// fuse views.
pub fn launches_of_private_tree() -> Vec<Launch> {
    launches()
        .into_iter()
        .filter(|launch| !matches!(launch, Launch::Mount(view) if *view != "fuse"))
        .collect()
}

/// A view at a mount point, which is unmounted on drop.
#[derive(Debug)]
pub struct Mounted<'a> {
    stage: &'a Stage,
    pub point: PathBuf,
}

impl<'a> Mounted<'a> {
    /// Takes over a mount that was created by other means.
    pub fn at(stage: &'a Stage, point: PathBuf) -> Mounted<'a> {
        Mounted { stage, point }
    }

    #[track_caller]
    pub fn umount(self) {
        let (code, error) = self.unmounted();
        assert!(code == Some(0) && error.is_empty(), "{error}");
    }

    /// Unmounts, and checks that `quell umount` reports, with this reason, that data could not be
    /// saved.
    pub fn umount_with_lost_data(self, reason: &str) {
        let (code, error) = self.unmounted();
        assert!(is_lost_data(code, &error) && error.contains(reason), "{error}");
    }

    /// Unmounts, and checks that `quell umount` reports nothing except that data could not be
    /// saved.
    pub fn umount_with_or_without_lost_data(self) {
        let (code, error) = self.unmounted();
        assert!(is_lost_data(code, &error) || code == Some(0) && error.is_empty(), "{error}");
    }

    /// Unmounts, and returns the exit code and the messages.
    pub fn unmounted(self) -> (Option<i32>, String) {
        // A program that another test starts has this process's descriptors open until its exec.
        let mut last = (None, String::new());
        let is_done = eventually(|| {
            let ended = self.stage.run(self.stage.quell().arg("umount").arg(&self.point));
            last = (ended.code(), ended.err.clone());
            last.0 == Some(0) || !(last.1.contains("in use") || last.1.contains("busy"))
        });
        assert!(is_done && !is_mounted(&self.point), "{}", last.1);
        last
    }
}

/// Returns true if `quell umount` has reported that data could not be saved.
fn is_lost_data(code: Option<i32>, error: &str) -> bool {
    code == Some(3) && error.contains("could not be saved")
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if is_mounted(&self.point) {
            let _ = self.stage.quell().args(["umount", "--force"]).arg(&self.point).status();
        }
    }
}

/// The directory of one test, with its programs and the check for remains.
#[derive(Debug)]
pub struct Stage {
    dir: Option<tempfile::TempDir>,
    path: PathBuf,
    number: AtomicU32,
}

impl Stage {
    pub fn new() -> Stage {
        let dir = tempfile::Builder::new().prefix("quell-system.").tempdir().unwrap();
        // Other users must have access, because some tests examine views as another user.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir(path.join("out")).unwrap();
        Stage { dir: Some(dir), path, number: AtomicU32::new(0) }
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    pub fn runtime(&self) -> PathBuf {
        self.path.join("runtime")
    }

    /// Returns the state directory, through which the nodes of a job exchange results of checks.
    pub fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    /// Creates a directory.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn fresh(&self, stream: &str) -> PathBuf {
        self.path(format!("out/{}.{stream}", self.number.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns a command with this stage's runtime directory in its environment. Its working
    /// directory is the stage's, which every user can enter; the checkout may be below a directory
    /// that other users cannot.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for variable in JOB_VARIABLES {
            command.env_remove(variable);
        }
        command.env("QUELL_RUNTIME_DIR", self.runtime()).env("XDG_STATE_HOME", self.state());
        command.current_dir(&self.path).stdin(Stdio::null());
        command
    }

    pub fn quell(&self) -> Command {
        self.command(quell())
    }

    /// Compiles a C program with an MPI compiler. It may include `mpi_ranks.h`.
    pub fn mpi_program(&self, compiler: &str, name: &str, source: &str) -> PathBuf {
        self.file("mpi_ranks.h", include_str!("mpi_ranks.h"));
        let (source, program) = (self.file(&format!("{name}.c"), source), self.path(name));
        self.run(self.command(compiler).args(["-O1", "-o"]).args([&program, &source])).expect(0);
        program
    }

    /// Returns an incomplete command of OpenMPI's `mpirun` with `ranks` ranks on this machine.
    pub fn mpirun(&self, ranks: usize) -> Command {
        let mut command = self.command("mpirun");
        command.args(["-n", &ranks.to_string(), "--oversubscribe", "--mca", "btl", "self,vader"]);
        command.args(["--mca", "plm_rsh_agent", "/bin/false"]);
        command.envs(MPIRUN_VARIABLES);
        if is_root() {
            command.arg("--allow-run-as-root");
        }
        command
    }

    /// Returns a name for a file that Open MPI's own component for shared file pointers opens. The
    /// component makes a semaphore for the machine, named after the file's name without its
    /// directory, so tests that run at the same time as different users need different names.
    pub fn mpi_name(&self, name: &str) -> String {
        format!("{name}-{}", std::process::id())
    }

    /// Returns the incomplete command `quell run --view VIEW -i INDEX`.
    pub fn quell_run(&self, index: &Path, view: &str) -> Command {
        let mut command = self.quell();
        command.args(["run", "--view", view, "-i"]).arg(index);
        command
    }

    pub fn start(&self, command: &mut Command) -> Running {
        let (out, err) = (self.fresh("stdout"), self.fresh("stderr"));
        // Files instead of pipes: a view that outlives the program would keep a pipe open.
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Running { child, out, err, ended: None }
    }

    #[track_caller]
    pub fn run(&self, command: &mut Command) -> Ended {
        self.start(command).wait()
    }

    /// Runs a shell script with arguments.
    #[track_caller]
    pub fn sh(&self, script: &str, arguments: &[&Path]) -> Ended {
        self.run(self.command("sh").args(["-c", script, "sh"]).args(arguments))
    }

    /// Creates an index of a tree with the default options.
    #[track_caller]
    pub fn index(&self, tree: &Path) -> PathBuf {
        let file = self.fresh("quell");
        self.run(self.quell().args(["index", "--quiet"]).arg(tree).arg("-o").arg(&file)).expect(0);
        file
    }

    #[track_caller]
    pub fn mount(&self, index: &Path, view: &str, options: &[&str]) -> Mounted<'_> {
        let point = self.fresh("mount");
        fs::create_dir(&point).unwrap();
        let mut command = self.quell();
        command.args(["mount", "--view", view]).args(options).arg(index).arg(&point);
        self.run(&mut command).expect(0);
        Mounted { stage: self, point }
    }

    /// Runs the command that `make` returns for the view's root, in the view.
    #[track_caller]
    pub fn run_in_view(
        &self,
        launch: Launch,
        index: &Path,
        tree: &Path,
        make: impl FnOnce(&Path) -> Vec<OsString>,
    ) -> Ended {
        match launch {
            Launch::Run(view) => {
                let command = make(tree);
                self.run(self.quell_run(index, view).args(["--strict", "--quiet", "--"]).args(command))
            }
            Launch::Mount(view) => {
                let mounted = self.mount(index, view, &["--quiet"]);
                let words = make(&mounted.point);
                let ended = self.run(self.command(&words[0]).args(&words[1..]));
                mounted.umount();
                ended
            }
        }
    }

    /// Returns the processes with this stage's runtime directory in their environment: programs and
    /// holders.
    pub fn processes(&self) -> Vec<i32> {
        let mut wanted = OsString::from("QUELL_RUNTIME_DIR=");
        wanted.push(self.runtime());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let Some(environment) = environment_of(&entry.path()) else { continue };
            if environment.split(|b| *b == 0).any(|variable| variable == wanted.as_bytes()) {
                found.push(pid);
            }
        }
        found
    }

    /// Returns the holders among these processes.
    pub fn holders(&self) -> Vec<i32> {
        let is_holder = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|b| *b == 0).nth(1) == Some(b"holder")
        };
        self.processes().into_iter().filter(is_holder).collect()
    }

    /// Waits until there is exactly one holder.
    #[track_caller]
    pub fn holder(&self) -> i32 {
        assert!(eventually(|| self.holders().len() == 1), "{:?}", self.holders());
        self.holders()[0]
    }

    /// Checks that no process and no mount remains, after waiting for the last process of a view to
    /// end.
    #[track_caller]
    pub fn expect_nothing_left(&self) {
        eventually(|| self.processes().is_empty());
        let left: Vec<String> = self.processes().into_iter().map(describe).collect();
        assert!(left.is_empty(), "processes are left: {left:?}");
        assert_eq!(self.mounts(), Vec::<PathBuf>::new(), "mounts are left");
        let left = left_in(&self.runtime());
        // A log with messages stays, and shows the cause.
        let content = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default();
        let left: Vec<_> = left.iter().map(|path| (path, content(path))).collect();
        assert!(left.is_empty(), "files are left: {left:?}");
    }

    /// Returns the mounts below the stage's directory, the deepest first.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let mut points: Vec<PathBuf> = mount_points();
        points.retain(|point| point.starts_with(&self.path));
        points.sort();
        points.reverse();
        points
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let mut left = Vec::new();
        if !std::thread::panicking() {
            eventually(|| self.processes().is_empty());
            left.extend(self.processes().into_iter().map(describe));
        }
        for pid in self.processes() {
            send(pid, Signal::KILL);
        }
        let mounts = self.mounts();
        for point in &mounts {
            if rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH).is_err() {
                let _ = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(point).status();
            }
        }
        left.extend(mounts.iter().map(|point| format!("mount {}", point.display())));
        let dir = self.dir.take().unwrap();
        if self.mounts().is_empty() {
            make_deletable(&self.path);
            let _ = dir.close();
        } else {
            // Deleting would descend into the mounts.
            let _ = dir.keep();
        }
        if !left.is_empty() && !std::thread::panicking() {
            panic!("left behind: {left:?}");
        }
    }
}

/// Adds permissions to directories that an ordinary user could not empty without them.
fn make_deletable(directory: &Path) {
    if is_root() {
        return;
    }
    let Ok(metadata) = fs::symlink_metadata(directory) else { return };
    if !metadata.is_dir() {
        return;
    }
    if metadata.permissions().mode() & 0o700 != 0o700 {
        let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_deletable(&entry.path());
        }
    }
}

/// Returns the environment of a process. During an exec the kernel shows neither an environment nor
/// a command line; this function waits for its end, so that the process is not overlooked.
fn environment_of(process: &Path) -> Option<Vec<u8>> {
    loop {
        let environment = fs::read(process.join("environ")).ok()?;
        let is_between_programs = environment.is_empty()
            && fs::read(process.join("cmdline")).ok()?.is_empty()
            && fs::read_link(process.join("exe")).is_ok();
        if !is_between_programs {
            return Some(environment);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn describe(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("process {pid}: {}", String::from_utf8_lossy(&line).replace('\0', " "))
}

pub fn mount_points() -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").unwrap();
    table
        .split(|b| *b == b'\n')
        .filter_map(|line| line.split(|b| *b == b' ').nth(4))
        .map(|field| OsString::from_vec(unescape(field)).into())
        .collect()
}

pub fn is_mounted(point: &Path) -> bool {
    mount_points().iter().any(|mounted| mounted == point)
}

/// Decodes the octal escapes in the mount table.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < field.len() {
        let digits = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\');
        let code =
            digits.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        bytes.push(code.unwrap_or(field[at]));
        at += if code.is_some() { 4 } else { 1 };
    }
    bytes
}

/// Returns the words as owned strings.
pub fn words(words: &[&dyn AsRef<OsStr>]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// Returns the lines that only one of two texts has.
pub fn difference(left: &str, right: &str) -> String {
    let (a, b): (BTreeSet<&str>, BTreeSet<&str>) = (left.lines().collect(), right.lines().collect());
    let only = |these: &BTreeSet<&str>, those: &BTreeSet<&str>, sign: &str| -> String {
        these.difference(those).take(20).map(|line| format!("{sign} {line}\n")).collect()
    };
    only(&a, &b, "-") + &only(&b, &a, "+")
}

/// Returns the entries of a runtime directory, except the stamps of checks, of which each tree has
/// one.
pub fn left_in(runtime: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(runtime).into_iter().flatten().flatten().map(|entry| entry.path());
    // Files that are valid for a short time and are removed by a later run.
    let is_short_lived = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("checked-")
            || name.starts_with("check-")
            || name.starts_with("said-")
            || name.ends_with(".refused")
    };
    paths.filter(|path| !is_short_lived(path)).collect()
}
