//! The runtime directory, the names of holders in it, and which runs share a holder.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_index::Image;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use xxhash_rust::xxh3::xxh3_64;

use crate::failure::Failure;
use crate::inputs::{Named, shown};
use crate::plan::Plan;

/// Variables that launchers of parallel jobs set for all ranks of a job on a node, the most
/// specific first. The first one that is set identifies the job.
const JOB_VARIABLES: [&[&str]; 10] = [
    &["PMIX_NAMESPACE"],
    &["OMPI_MCA_ess_base_jobid"],
    &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    &["FLUX_JOB_ID"],
    &["PMI_JOBID"],
    &["PALS_APID"],
    &["PBS_JOBID"],
    &["LSB_JOBID"],
    &["COBALT_JOBID"],
    &["JOB_ID", "SGE_TASK_ID"],
];

/// Number of directories in /tmp that are tried: another user may have created some of them.
const SHARED_DIRECTORIES_MAX: u32 = 16;

/// Returns a directory that only this user can access: `$QUELL_RUNTIME_DIR`,
/// `$XDG_RUNTIME_DIR/quell`, for root `/run/quell`, or `/tmp/quell-UID`. If another user owns the
/// last one, it is the first of `/tmp/quell-UID-1`, `-2`, ... that exists and belongs to this user,
/// or the first that can be created. All processes of a user therefore find the same directory.
pub fn directory() -> Result<PathBuf, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let own = |variable: &str| std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    let session = own("XDG_RUNTIME_DIR")
        .filter(|path| std::fs::metadata(path).is_ok_and(|m| m.uid() == uid))
        .map(|path| path.join("quell"));
    match own("QUELL_RUNTIME_DIR").or(session) {
        Some(path) => {
            make_private(&path).map_err(|e| Failure::cannot(format!("{}: {e}", shown(&path))))?;
            match is_private(&path, uid) {
                true => Ok(path),
                false => Err(Failure::cannot(format!(
                    "{} must be a directory that is yours alone (mode 700); set QUELL_RUNTIME_DIR to another",
                    shown(&path)
                ))),
            }
        }
        None => shared_directory(uid, Path::new("/run"), Path::new("/tmp")),
    }
}

/// Returns the runtime directory if no variable names one. `run`: a directory in which only root
/// can create entries; `shared`: one in which all users can.
fn shared_directory(uid: u32, run: &Path, shared: &Path) -> Result<PathBuf, Failure> {
    let numbered = (0..SHARED_DIRECTORIES_MAX).map(|number| match number {
        0 => shared.join(format!("quell-{uid}")),
        number => shared.join(format!("quell-{uid}-{number}")),
    });
    let of_root = (uid == 0).then(|| run.join("quell"));
    let paths: Vec<PathBuf> = of_root.into_iter().chain(numbered).collect();
    if let Some(found) = paths.iter().find(|path| is_private(path, uid)) {
        return Ok(found.clone());
    }
    let mut reason = String::new();
    for path in &paths {
        match make_private(path) {
            // Another process of this user may have created it meanwhile.
            Ok(()) if is_private(path, uid) => return Ok(path.clone()),
            Ok(()) => reason = "is not a directory of yours with mode 700".into(),
            Err(e) => reason = e.to_string(),
        }
    }
    let last = paths.last().expect("there are several");
    Err(Failure::cannot(format!(
        "{} and all before it cannot be used ({reason}); set QUELL_RUNTIME_DIR to a directory of yours with mode 700",
        shown(last)
    )))
}

/// Creates a directory with mode 0700. It is no error if the name exists.
fn make_private(path: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Returns whether `path` is a directory of this user that others cannot access. Another user may
/// have created it, or a symbolic link in its place.
fn is_private(path: &Path, uid: u32) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}

/// A FIFO in the runtime directory, which another Quell process opens for writing. The FIFO is
/// removed when this value is dropped.
#[derive(Debug)]
pub struct Pipe {
    pub path: PathBuf,
    /// The read end, in non-blocking mode.
    pub end: File,
}

impl Pipe {
    pub fn make(purpose: &str) -> Result<Pipe, Failure> {
        let directory = directory()?;
        sweep_pipes(&directory);
        let path = directory.join(format!("{purpose}-{}", std::process::id()));
        let failed = |e: rustix::io::Errno| Failure::cannot(format!("{}: {e}", shown(&path)));
        // It may exist from a killed process with the same process id.
        let _ = std::fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(failed)?;
        let end = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        Ok(Pipe { end: end.map_err(failed)?.into(), path: path.clone() })
    }
}

/// Opens the write end. Fails at once if no process has the FIFO open for reading.
pub fn open_pipe(path: &Path) -> Result<File, Failure> {
    let failed = |e: rustix::io::Errno| match e {
        rustix::io::Errno::NXIO => {
            Failure::cannot(format!("{}: the process that read from it has ended", shown(path)))
        }
        e => Failure::cannot(format!("{}: {e}", shown(path))),
    };
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let end = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    // From here on writes block, as programs expect.
    rustix::io::ioctl_fionbio(&end, false).map_err(failed)?;
    Ok(end.into())
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the FIFOs of killed processes: their process id does not exist, and no process reads
/// from them.
fn sweep_pipes(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let is_pipe = entry.file_type().is_ok_and(|kind| std::os::unix::fs::FileTypeExt::is_fifo(&kind));
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.rsplit_once('-')?.1.parse::<u32>().ok());
        let lives = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
        if !is_pipe || owner.is_none_or(lives) {
            continue;
        }
        // The FIFO may belong to a process in another PID namespace, for example a container.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if matches!(rustix::fs::open(entry.path(), flags, Mode::empty()), Err(rustix::io::Errno::NXIO)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns the number of processors that this process may use, for work that does no I/O.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the job of which this process is a rank, if any.
pub fn job() -> Option<String> {
    let value = |name: &&str| std::env::var(name).ok().filter(|v| !v.is_empty());
    JOB_VARIABLES.iter().find_map(|names| {
        let first = value(names.first()?)?;
        let rest = names.iter().skip(1).filter_map(value);
        let parts: Vec<String> = std::iter::once(first).chain(rest).collect();
        Some(format!("{}={}", names[0], parts.join(".")))
    })
}

/// The version of the messages between processes and holders. It must change with them.
const PROTOCOL: &str = "protocol 2";

/// Returns the name of a holder for exactly this plan and job, in the caller's namespaces. `job` is
/// `None` for a holder that is not shared.
pub fn key(plan: &Plan, files: &[Named], job: Option<&str>) -> Result<String, Failure> {
    let cannot = |e: std::io::Error| Failure::cannot(format!("/proc/self/ns: {e}"));
    let mut text = OsString::new();
    for namespace in ["/proc/self/ns/mnt", "/proc/self/ns/user"] {
        text.push(std::fs::read_link(namespace).map_err(cannot)?);
    }
    // Processes of other versions use another protocol.
    text.push(PROTOCOL);
    // The creator, `quiet` and `verbose` do not change the view.
    let shared = Plan { creator: 0, quiet: false, verbose: false, ..plan.clone() };
    text.push(serde_json::to_string(&shared).map_err(|e| Failure::cannot(e.to_string()))?);
    for Named { path, file } in files {
        // Another file at the same path is another generation.
        let found = file.metadata().map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))?;
        text.push(format!("{}.{}.{}.{}", found.ino(), found.size(), found.mtime(), found.mtime_nsec()));
    }
    let own = format!("process {}", plan.creator);
    text.push(job.unwrap_or(&own));
    Ok(format!("view-{:016x}", xxh3_64(text.as_encoded_bytes())))
}

const STAMP: &str = "checked-";

/// Returns the path of a file whose age is the time since the tree was last found equal to this
/// generation of its index.
pub fn stamp_of(plan: &Plan, image: &Image, source: &Path) -> PathBuf {
    let text = [image.generation().to_string().as_bytes(), source.as_os_str().as_bytes()].concat();
    plan.directory.join(format!("{STAMP}{:016x}", xxh3_64(&text)))
}

/// Removes all other stamps that are older than `lasts`.
pub fn sweep_stamps(but: &Path, lasts: Duration) {
    let Some(entries) = but.parent().and_then(|directory| std::fs::read_dir(directory).ok()) else { return };
    for entry in entries.flatten() {
        let is_stamp = entry.file_name().to_str().is_some_and(|name| name.starts_with(STAMP));
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if is_stamp && entry.path() != but && age().is_none_or(|age| age >= lasts) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns the name of the holder that serves a mount point.
pub fn mount_key(mountpoint: &Path) -> String {
    format!("mount-{:016x}", xxh3_64(mountpoint.as_os_str().as_encoded_bytes()))
}

/// Removes the lock file of a holder that was not created. The caller holds the lock; processes
/// that wait for it then create a new file.
pub fn remove_lock(plan: &Plan) {
    let _ = std::fs::remove_file(plan.directory.join(format!("{}.lock", plan.key)));
}

/// Returns the names of all holders with a socket in the directory.
pub fn keys(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut keys: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned()))
        .collect();
    keys.sort();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_another_user_occupies_is_passed_over() {
        use std::os::unix::fs::PermissionsExt;
        let (run, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let uid = rustix::process::geteuid().as_raw();
        let find = |run: &Path| shared_directory(uid, run, shared.path());
        // Stand-ins for entries of another user: a mode that is not private, a symbolic link, a
        // file.
        let name = |number: &str| shared.path().join(format!("quell-{uid}{number}"));
        std::fs::create_dir(name("")).unwrap();
        std::fs::set_permissions(name(""), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(run.path(), name("-1")).unwrap();
        std::fs::write(name("-2"), "").unwrap();
        let none = Path::new("/nonexistent");
        assert_eq!(find(none).unwrap(), name("-3"));
        // An existing directory is found, although one with a lower number could be created now.
        std::fs::remove_file(name("-1")).unwrap();
        assert_eq!(find(none).unwrap(), name("-3"));
        for number in 1..SHARED_DIRECTORIES_MAX {
            let path = name(&format!("-{number}"));
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
            std::fs::write(path, "").unwrap();
        }
        let failure = find(none).unwrap_err().to_string();
        assert!(failure.contains("QUELL_RUNTIME_DIR"), "{failure}");
        let of_root = shared_directory(0, run.path(), shared.path());
        assert_eq!(of_root.is_ok(), uid == 0, "{of_root:?}");
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for() {
        let directory = std::env::temp_dir().join(format!("quell-pipe-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let failure = open_pipe(&path).unwrap_err();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let _reader = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let end = open_pipe(&path);
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(failure.to_string().contains("has ended"), "{failure}");
        let flags = rustix::fs::fcntl_getfl(end.unwrap()).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "a program would not wait for who reads slowly");
    }
}
