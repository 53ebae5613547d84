//! Where this user's holders on this node meet, and which runs share one.

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

/// Set by the launchers of parallel jobs for every rank of a job on a node, most exact first. The first
/// one that is set names the job.
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

/// Directories in /tmp that are tried: another user may have made some of them.
const SHARED_DIRECTORIES_MAX: u32 = 16;

/// A directory that only this user may enter: `$QUELL_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/quell`, for root `/run/quell`, or
/// `/tmp/quell-UID`. Where that is another user's it is the first of `/tmp/quell-UID-1`, `-2`, ... that exists and belongs to this
/// user, or the first that can be made: all processes of a user find the same one.
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

/// `run`: where root alone may make directories; `shared`: where every user may.
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
            // Another process of this user may have made it meanwhile.
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

/// No error if there is something of that name.
fn make_private(path: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Another user may have made it, or put a link there.
fn is_private(path: &Path, uid: u32) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}

/// A named pipe of this process in the directory above, whose other end some process of ours opens later. Removed when
/// this goes.
#[derive(Debug)]
pub struct Pipe {
    pub path: PathBuf,
    /// To read from, without waiting.
    pub end: File,
}

impl Pipe {
    pub fn make(purpose: &str) -> Result<Pipe, Failure> {
        let directory = directory()?;
        sweep_pipes(&directory);
        let path = directory.join(format!("{purpose}-{}", std::process::id()));
        let failed = |e: rustix::io::Errno| Failure::cannot(format!("{}: {e}", shown(&path)));
        // Of a process that had this number before and was killed.
        let _ = std::fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(failed)?;
        let end = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        Ok(Pipe { end: end.map_err(failed)?.into(), path: path.clone() })
    }
}

/// The other end, to write to. A pipe that nobody reads any more is an error, and not waited for.
pub fn open_pipe(path: &Path) -> Result<File, Failure> {
    let failed = |e: rustix::io::Errno| match e {
        rustix::io::Errno::NXIO => Failure::cannot(format!("{}: who reads it has gone", shown(path))),
        e => Failure::cannot(format!("{}: {e}", shown(path))),
    };
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let end = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    // From here on writing waits for the reader, as programs expect.
    rustix::io::ioctl_fionbio(&end, false).map_err(failed)?;
    Ok(end.into())
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the pipes of processes that were killed: nobody of that number lives, and nobody reads.
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
        // It may belong to a process that is numbered elsewhere, in a container.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if matches!(rustix::fs::open(entry.path(), flags, Mode::empty()), Err(rustix::io::Errno::NXIO)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Processors that this process may use: threads for work that waits for nothing else.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The job that this process is a rank of, if it is one.
pub fn job() -> Option<String> {
    let value = |name: &&str| std::env::var(name).ok().filter(|v| !v.is_empty());
    JOB_VARIABLES.iter().find_map(|names| {
        let first = value(names.first()?)?;
        let rest = names.iter().skip(1).filter_map(value);
        let parts: Vec<String> = std::iter::once(first).chain(rest).collect();
        Some(format!("{}={}", names[0], parts.join(".")))
    })
}

/// Changes with what processes and holders say to each other.
const PROTOCOL: &str = "protocol 2";

/// The name of a holder that serves exactly this plan to exactly this job, seen from the namespaces that
/// the caller is in. `job`: `None` for a holder of one's own.
pub fn key(plan: &Plan, files: &[Named], job: Option<&str>) -> Result<String, Failure> {
    let cannot = |e: std::io::Error| Failure::cannot(format!("/proc/self/ns: {e}"));
    let mut text = OsString::new();
    for namespace in ["/proc/self/ns/mnt", "/proc/self/ns/user"] {
        text.push(std::fs::read_link(namespace).map_err(cannot)?);
    }
    // Processes of another version ask their holder in another way.
    text.push(PROTOCOL);
    // Who says less is served no less.
    let shared = Plan { creator: 0, quiet: false, ..plan.clone() };
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

/// A file whose age says when a tree was last seen to be as this generation of its index has it.
pub fn stamp_of(plan: &Plan, image: &Image, source: &Path) -> PathBuf {
    let text = [image.generation().to_string().as_bytes(), source.as_os_str().as_bytes()].concat();
    plan.directory.join(format!("{STAMP}{:016x}", xxh3_64(&text)))
}

/// Removes all other stamps that are too old to say anything.
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

/// The name of the holder behind a mount point.
pub fn mount_key(mountpoint: &Path) -> String {
    format!("mount-{:016x}", xxh3_64(mountpoint.as_os_str().as_encoded_bytes()))
}

/// Removes the lock file of a holder that was not made. The caller holds the lock; processes that wait for it make another file.
pub fn remove_lock(plan: &Plan) {
    let _ = std::fs::remove_file(plan.directory.join(format!("{}.lock", plan.key)));
}

/// The names of all holders that have a socket in the directory.
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
        // As if another user had made them: a mode that is not private, a link, a file.
        let name = |number: &str| shared.path().join(format!("quell-{uid}{number}"));
        std::fs::create_dir(name("")).unwrap();
        std::fs::set_permissions(name(""), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(run.path(), name("-1")).unwrap();
        std::fs::write(name("-2"), "").unwrap();
        let none = Path::new("/nonexistent");
        assert_eq!(find(none).unwrap(), name("-3"));
        // Once made it is found, though another could be made now.
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
        assert!(failure.to_string().contains("has gone"), "{failure}");
        let flags = rustix::fs::fcntl_getfl(end.unwrap()).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "a program would not wait for who reads slowly");
    }
}
