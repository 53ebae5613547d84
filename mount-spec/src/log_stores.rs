//! The stores of a log mount as a file system, and the identity of this node and process.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use quell_log::{Choices, Holder, Host, LogFs, Role, Root, Scratch, StoreMap, Stores};
use quell_posix::{PosixDir, WritableDir, WritableFile};
use quell_threads::TimedCalls;
use quell_vfs::{Error, ErrorKind, Result, errno};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::display::shown;

/// Number of log directories of a new container: PLFS's default.
const DIRECTORIES: u32 = 32;

/// The time limit for reading the start time of a process.
const START_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest number of processes whose start times this process waits for at the same time, apart
/// from those that threads read at the same moment.
const BLOCKED_STARTS_MAX: usize = 8;

/// The time that a process waits until a mount that is the only user of a store shares it, which
/// takes up to seven seconds, and is noticed up to a second later.
const SHARE_TIMEOUT: Duration = Duration::from_secs(30);
/// The first and the longest pause of a waiting process before it looks again whether the store is
/// shared. Thousands of processes of a job can wait for the same file system.
const SHARE_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// Opens the stores as one file system. Stores that are added later are opened as well.
pub fn open_log(stores: &[impl AsRef<Path>], choices: Choices) -> Result<LogFs> {
    Ok(LogFs::new(open_stores(stores)?.with_opener(Box::new(open_added)), choices))
}

/// Does the same as `open_log`, for a mount at `mountpoint`, a path without symbolic links: an
/// added store that is below or above it is not opened.
pub fn open_log_at(stores: &[impl AsRef<Path>], choices: Choices, mountpoint: &Path) -> Result<LogFs> {
    let mountpoint = mountpoint.to_owned();
    let opener = move |path: &[u8]| open_added_outside(&mountpoint, path);
    Ok(LogFs::new(open_stores(stores)?.with_opener(Box::new(opener)), choices))
}

/// Does the same as `open_added`, but refuses a directory that is below or above `mountpoint`.
fn open_added_outside(mountpoint: &Path, path: &[u8]) -> Result<Arc<dyn WritableDir>> {
    let named = Path::new(OsStr::from_bytes(path));
    if named.starts_with(mountpoint) || mountpoint.starts_with(named) {
        let source = format!("it is above or below the mount point {}", shown(mountpoint));
        return Err(Error {
            source: Some(source.into()),
            ..Error::new(ErrorKind::InvalidInput, "open", path)
        });
    }
    open_added(path)
}

/// Opens the directory at a path from a placement map, which other users may have written. The path
/// must be absolute; it is opened one component at a time, without following symbolic links.
fn open_added(path: &[u8]) -> Result<Arc<dyn WritableDir>> {
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let [b"", ancestors @ .., last] = &names[..] else {
        return Err(Error::new(ErrorKind::InvalidInput, "open", path));
    };
    if ancestors.iter().chain([last]).any(|name| matches!(*name, b"" | b"." | b"..")) {
        return Err(Error::new(ErrorKind::InvalidInput, "open", path));
    }
    let root: Arc<dyn WritableDir> = Arc::new(PosixDir::start_shared(Path::new("/"))?);
    ancestors.iter().try_fold(root, |dir, name| dir.enter_writable(name))?.open_writable_dir(last)
}

/// Opens the stores, and creates their `.quell` directories where they are missing.
pub fn open_stores(stores: &[impl AsRef<Path>]) -> Result<Stores> {
    begin_use(Stores::open_named(roots(stores)?, this_host()?, DIRECTORIES)?)
}

/// Registers this process as a user of opened stores, which it may then change; see
/// `Stores::begin_use`.
pub fn begin_use(stores: Stores) -> Result<Stores> {
    stores.begin_use(&mut pauses())
}

/// Returns a function that pauses before this process checks again whether a store is shared,
/// longer each time, and returns false after the end of `SHARE_TIMEOUT`.
fn pauses() -> impl FnMut() -> bool {
    let deadline = Instant::now() + SHARE_TIMEOUT;
    let mut durations = pause_durations(random);
    move || {
        std::thread::sleep(durations());
        Instant::now() < deadline
    }
}

/// Returns a function that returns the durations of successive pauses. Up to half of each pause is
/// random, so that processes that began at the same time do not send their requests together.
fn pause_durations(random: impl Fn() -> u64) -> impl FnMut() -> Duration {
    let [mut duration, longest] = SHARE_PAUSES;
    move || {
        let half = duration / 2;
        let random_part = half.mul_f64((random() >> 11) as f64 / (1u64 << 53) as f64);
        duration = (duration * 2).min(longest);
        half + random_part
    }
}

/// Returns whether a directory is a store.
pub fn is_store(path: &Path) -> Result<bool> {
    quell_log::is_store(&*root(path)?.dir)
}

/// Opens existing stores. Nothing is written, so they may be read-only.
pub fn open_existing_stores(stores: &[impl AsRef<Path>]) -> Result<Stores> {
    let roots = roots(stores)?;
    for (root, path) in roots.iter().zip(stores) {
        if !quell_log::is_store(&*root.dir)? {
            let path = path.as_ref().as_os_str().as_encoded_bytes();
            let source = Some("not a store".into());
            return Err(Error { source, ..Error::new(ErrorKind::NotFound, "open", path) });
        }
    }
    Stores::open_existing(roots, this_host()?, DIRECTORIES)
}

/// Adds, drains and keeps stores; see `Stores::change`.
pub fn change_stores(stores: &[(impl AsRef<Path>, Role)]) -> Result<Stores> {
    Stores::change(roles(stores)?, this_host()?, DIRECTORIES, &mut pauses())
}

/// Returns the map that `change_stores` would create; nothing is written.
pub fn plan_stores(stores: &[(impl AsRef<Path>, Role)]) -> Result<StoreMap> {
    Stores::planned_map(roles(stores)?, &this_host()?)
}

fn roles(stores: &[(impl AsRef<Path>, Role)]) -> Result<Vec<(Root, Role)>> {
    stores.iter().map(|(path, role)| Ok((root(path.as_ref())?, *role))).collect()
}

fn roots(stores: &[impl AsRef<Path>]) -> Result<Vec<Root>> {
    stores.iter().map(|path| root(path.as_ref())).collect()
}

/// Opens the root directory of a store. Its path, without symbolic links, is written to the
/// placement map, from which other processes open the store.
fn root(path: &Path) -> Result<Root> {
    let full = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    tracing::debug!(path = %shown(&full), "opening a store");
    Ok(Root { dir: Arc::new(PosixDir::open_shared(path)?), path: full.into_os_string().into_encoded_bytes() })
}

/// Returns the identity of this process on this node.
fn this_host() -> Result<Host> {
    let pid = std::process::id();
    // `self` is correct even if `/proc` belongs to another PID namespace, in which this process has
    // another number.
    let start = match process_start("self") {
        ProcessStart::At(start) => start,
        _ => return Err(Error::new(ErrorKind::Os(errno::EIO), "read", "/proc/self/stat")),
    };
    let node = ProcessScope::current()?;
    let holder = Holder::new(pid, start, &node.text);
    let own = holder.clone();
    Ok(Host {
        holder,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        random: Box::new(random),
        is_gone: Box::new(move |holder| {
            // The most frequent holder is this process. After a fork, the child is another one.
            let is_this = *holder == own && std::process::id() == own.pid;
            holder.node == own.node && !is_this && node.has_ended(holder)
        }),
        scratch: Scratch::new(scratch_file),
    })
}

/// Creates an unlinked temporary file in the system's directory for temporary files. It exists
/// until this process ends.
fn scratch_file() -> Result<Box<dyn WritableFile>> {
    let dir = PosixDir::open(&std::env::temp_dir())?;
    let name = format!("quell-index-{:016x}", random());
    let file = dir.create_file(name.as_bytes(), 0o600)?;
    dir.remove(name.as_bytes())?;
    Ok(file)
}

/// The scope in which a process id and a start time identify one process: one boot of one kernel,
/// one PID namespace, and one time namespace, which determines the time since boot.
struct ProcessScope {
    /// The form in the names of writers: `BOOT-PIDS-TIME.NAME`. The boot id and the inode numbers
    /// of the two namespaces are hexadecimal; an unknown namespace has the number 0. The kernel
    /// reuses a namespace's number only when no process is left in it.
    text: String,
    /// Whether both namespaces are known.
    is_known: bool,
    /// Whether `/proc` shows the processes of this PID namespace.
    has_own_proc: bool,
}

impl ProcessScope {
    fn current() -> Result<ProcessScope> {
        let path = "/proc/sys/kernel/random/boot_id";
        let boot = std::fs::read_to_string(path).map_err(|cause| Error::from_io(cause, "read", path))?;
        let name = rustix::system::uname();
        let namespace =
            |kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |found| found.ino());
        let (pids, mut time) = (namespace("pid"), namespace("time"));
        // Before Linux 5.6 there were no time namespaces.
        let has_time = time != 0 || !Path::new("/proc/self/timens_offsets").exists();
        time = if has_time { time } else { 0 };
        let boot = boot.trim().replace('-', "");
        let text = format!("{boot}-{pids:x}-{time:x}.{}", name.nodename().to_string_lossy());
        let own = std::fs::read_link("/proc/self").ok();
        let has_own_proc = own.is_some_and(|link| link.as_os_str() == &*std::process::id().to_string());
        Ok(ProcessScope { text, is_known: pids != 0 && has_time, has_own_proc })
    }

    /// Returns whether the process of `holder`, which is on this node, has certainly ended. A
    /// process whose state is unknown counts as alive.
    fn has_ended(&self, holder: &Holder) -> bool {
        let Some(pid) = i32::try_from(holder.pid).ok().and_then(Pid::from_raw) else { return false };
        if !self.is_known {
            return false;
        }
        // kill(2) is used, because `/proc` may belong to another namespace, or hide processes of
        // other users.
        match rustix::process::test_kill_process(pid) {
            Err(Errno::SRCH) => true,
            _ if !self.has_own_proc => false,
            // On some kernels (Linux 6.18) the start time of a process that executes a program
            // cannot be read until the kernel has closed the files of the previous program, and a
            // user can delay that without limit and write the number of such a process to a name in
            // a store. If the start time cannot be read in time, the writer counts as alive: logs
            // of a live writer would otherwise be treated as complete.
            _ => match PROCESS_STARTS.results([pid.as_raw_nonzero().get()])[..] {
                // Process ids are reused, but never with the same start time.
                [Some(ProcessStart::At(start))] => start != holder.start,
                [Some(ProcessStart::Ended)] => true,
                _ => false,
            },
        }
    }
}

/// The start time of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessStart {
    /// In clock ticks after the boot of the node.
    At(u64),
    /// The process has ended, and its parent has not waited for it yet.
    Ended,
    Unknown,
}

/// Reads the start time of a process by its number.
static PROCESS_STARTS: LazyLock<TimedCalls<i32, ProcessStart>> = LazyLock::new(|| {
    TimedCalls::new(|pid: &i32| process_start(&pid.to_string()), START_TIMEOUT, BLOCKED_STARTS_MAX)
});

fn process_start(process: &str) -> ProcessStart {
    std::fs::read_to_string(format!("/proc/{process}/stat"))
        .map_or(ProcessStart::Unknown, |stat| parse_process_start(&stat))
}

fn parse_process_start(stat: &str) -> ProcessStart {
    // The second field is a name in parentheses, which may contain any character. After it, the
    // first field is the state, the eighteenth the number of threads, and the twentieth the start
    // time.
    let Some((_, rest)) = stat.rsplit_once(')') else { return ProcessStart::Unknown };
    let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
    let [state, .., threads, _, start] = fields[..] else { return ProcessStart::Unknown };
    // Other threads of a process may still run after its first thread has ended.
    match start.parse() {
        _ if fields.len() < 20 => ProcessStart::Unknown,
        _ if matches!(state, "Z" | "X") && matches!(threads, "0" | "1") => ProcessStart::Ended,
        Ok(start) => ProcessStart::At(start),
        Err(_) => ProcessStart::Unknown,
    }
}

/// Returns a random number. Once the kernel's generator is initialized, getrandom(2) returns up to
/// 256 bytes at once.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(bytes.len()), "the kernel gives up to 256 bytes at once");
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_process_looks_less_often_each_time() {
        let milliseconds = |random: u64| {
            let mut durations = pause_durations(move || random);
            (0..8).map(|_| durations().as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(milliseconds(0), [10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(milliseconds(1 << 63), [15, 30, 60, 120, 240, 480, 750, 750]);
        assert_eq!(milliseconds(u64::MAX), [20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert!(SHARE_PAUSES[1] * 10 < SHARE_TIMEOUT);
    }

    #[test]
    fn a_scratch_file_has_no_name() {
        let file = scratch_file().unwrap();
        file.write_at(b"beyond memory", 5).unwrap();
        let mut bytes = [0; 20];
        assert_eq!(file.read_at(&mut bytes, 5).unwrap(), 13);
        assert_eq!(file.stat().unwrap().nlink, 0);
    }

    #[test]
    fn a_zombie_without_other_threads_has_ended() {
        let stat = |state, threads| {
            format!("7 (a) b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0 0")
        };
        assert_eq!(parse_process_start(&stat("S", 1)), ProcessStart::At(4711));
        assert_eq!(parse_process_start(&stat("Z", 3)), ProcessStart::At(4711));
        assert_eq!(parse_process_start(&stat("Z", 1)), ProcessStart::Ended);
        assert_eq!(parse_process_start("7 (a) S"), ProcessStart::Unknown);
    }

    #[test]
    fn paths_of_a_placement_map_are_opened_without_links_and_dots() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("parent/store")).unwrap();
        std::os::unix::fs::symlink("parent", real.join("link")).unwrap();
        let open = |path: &Path| open_added(path.as_os_str().as_bytes());
        assert!(open(&real.join("parent/store")).is_ok());
        for wrong in [
            "link/store",
            "parent/../parent/store",
            "parent/./store",
            "parent//store",
            "parent/store/",
            "none",
            "link",
        ] {
            assert!(open(&real.join(wrong)).is_err(), "{wrong}");
        }
        for wrong in ["", "/", "parent/store", "."] {
            assert!(open(Path::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_added_store_below_or_above_the_mount_point_is_refused() {
        for (mountpoint, path) in [("/mount\nhere", "/mount\nhere/store"), ("/s/mount", "/s"), ("/s", "/s")] {
            let refused = open_added_outside(Path::new(mountpoint), path.as_bytes());
            let message = refused.map(drop).unwrap_err().to_string();
            let point = mountpoint.replace('\n', "\\n");
            assert!(message.ends_with(&format!("the mount point {point}")), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn a_process_is_identified_by_its_id_and_start_time() {
        let host = this_host().unwrap();
        assert!(!(host.is_gone)(&host.holder));
        assert!((host.is_gone)(&Holder { start: host.holder.start + 1, ..host.holder.clone() }));
        assert!(
            (host.is_gone)(&Holder { pid: i32::MAX as u32, ..host.holder.clone() }),
            "no process has this number"
        );
        let (boot, rest) = host.holder.node.split_once('-').unwrap();
        let (namespaces, name) = rest.split_once('.').unwrap();
        assert_eq!(namespaces.split('-').count(), 2);
        for node in [
            "elsewhere".to_owned(),
            format!("{boot}.{name}"), // the form of earlier versions: the namespace is unknown
            format!("{boot}-1-{}.{name}", namespaces.split_once('-').unwrap().1),
            format!("{boot}-{namespaces}.another-{name}"),
            format!("0{}-{rest}", &boot[1..]),
        ] {
            for start in [1, host.holder.start + 1] {
                assert!(
                    !(host.is_gone)(&Holder { start, node: node.clone(), ..host.holder.clone() }),
                    "{node}"
                );
            }
        }
        let node = ProcessScope { has_own_proc: false, ..ProcessScope::current().unwrap() };
        assert!(
            !node.has_ended(&Holder { start: 1, ..host.holder.clone() }),
            "/proc of another namespace does not show start times"
        );
        assert!(node.has_ended(&Holder { pid: i32::MAX as u32, ..host.holder.clone() }));
        assert_ne!((host.random)(), (host.random)());
    }
}
