//! The probe's own directory: created, filled, examined, locked and removed. All names are reached
//! from open directories and are names that a probe creates. No link in the directory is followed,
//! and files with other names are left alone.
//!
//! ```text
//! DIR/.quell-probe-XXXXXX/          mode 0700
//!     owner                         "HOST PROCESS SECONDS\n", locked (flock) while the probe lives
//!     d00/ f00 .. f16               empty files
//!     d01/ ...
//! ```

use std::hash::{BuildHasher, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quell_threads::lock;
use quell_vfs::Error;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;

use crate::kind::OperationKind;
use crate::leftover::{Leftover, Owner, PREFIX, is_probe_directory_name};
use crate::pool::{LimitReached, TaskLimits, Worker, WorkerPool};
use crate::progress::{ProbeProgress, Stage};
use crate::refusal::Refusal;

const OWNER: &str = "owner";
/// Longer content is not an owner's line.
const OWNER_BYTES_MAX: usize = 512;
/// The maximum number of directories, and of files in each, that a probe creates, regardless of its
/// limits.
const DIRECTORIES_MAX: u32 = 16;
const FILES_MAX: u32 = 17;
/// The characters of a name's suffix, and the number of names tried.
const SUFFIX: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const NAMES_TRIED: u32 = 8;
/// The size of the buffer for names, in bytes.
const NAMES_BUFFER_BYTES: usize = 64 << 10;
/// The part of a large directory that is searched for other probes, in system calls.
const LISTING_CALLS_MAX: u32 = 8;
const LEFTOVERS_MAX: usize = 16;
/// The number of attempts to lock the owner's file: another probe that checks whether this one is
/// running holds the lock for a moment.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// The time limit for removing everything: at least a hundred milliseconds per name.
pub const REMOVING_MAX: Duration = Duration::from_secs(60);

const ENTER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The reason why the work in the directory stopped: the limits allow no further call, or a call
/// failed.
#[derive(Debug)]
pub enum Stopped {
    LimitReached,
    Failed(Error),
}

impl From<LimitReached> for Stopped {
    fn from(_: LimitReached) -> Stopped {
        Stopped::LimitReached
    }
}

/// Adds the operation and its subject to an error number.
pub fn failed(errno: Errno, operation: &'static str, subject: impl AsRef<[u8]>) -> Error {
    Error::from_io(errno.into(), operation, subject)
}

fn directory_name(number: u32) -> String {
    format!("d{number:02}")
}

fn file_name(number: u32) -> String {
    format!("f{number:02}")
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn host() -> String {
    // The fields of the owner's line are separated by blanks.
    rustix::system::uname().nodename().to_string_lossy().replace(char::is_whitespace, "_")
}

/// One directory of the probe's tree.
#[derive(Debug)]
pub struct Subdirectory {
    name: String,
    /// `None` if it could be created but not opened.
    fd: Option<OwnedFd>,
    files: u32,
}

/// The probe's own directory.
#[derive(Debug)]
pub struct ProbeDirectory {
    parent: Arc<OwnedFd>,
    pub name: String,
    fd: OwnedFd,
    /// Closed before the file is removed, because NFS keeps removed files that are open.
    owner: Mutex<Option<OwnedFd>>,
    subdirectories: Vec<Subdirectory>,
}

impl ProbeDirectory {
    /// Creates the directory, empty.
    pub fn create(parent: &Arc<OwnedFd>, worker: &mut Worker) -> Result<ProbeDirectory, Stopped> {
        let random = RandomState::new();
        let mut tried = 0;
        let name = loop {
            let mut bits = random.hash_one((tried, seconds_now(), std::process::id()));
            let letters = (0..6).map(|_| {
                let letter = SUFFIX[(bits % SUFFIX.len() as u64) as usize];
                bits /= SUFFIX.len() as u64;
                char::from(letter)
            });
            let name: String = PREFIX.chars().chain(letters).collect();
            match worker.call(OperationKind::Create, || rustix::fs::mkdirat(parent, &*name, Mode::RWXU))? {
                Ok(()) => break name,
                Err(Errno::EXIST) if tried < NAMES_TRIED => tried += 1,
                Err(e) => return Err(Stopped::Failed(failed(e, "create directory", &name))),
            }
        };
        // `call_regardless_of_limits`, because the created directory must be opened to be removed.
        match worker.call_regardless_of_limits(OperationKind::Other, || {
            rustix::fs::openat(parent, &*name, ENTER, Mode::empty())
        }) {
            Ok(fd) => Ok(ProbeDirectory {
                parent: parent.clone(),
                name,
                fd,
                owner: Mutex::default(),
                subdirectories: Vec::new(),
            }),
            Err(e) => {
                let _ = worker.call_regardless_of_limits(OperationKind::Remove, || {
                    rustix::fs::unlinkat(parent, &*name, AtFlags::REMOVEDIR)
                });
                Err(Stopped::Failed(failed(e, "open", &name)))
            }
        }
    }

    /// Writes the owner's file and locks it.
    pub fn write_owner(&self, worker: &mut Worker) -> Result<(), Stopped> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = worker
            .call(OperationKind::Create, || rustix::fs::openat(&self.fd, OWNER, flags, mode))?
            .map_err(|e| Stopped::Failed(failed(e, "create", OWNER)))?;
        let owner = Owner { host: host(), process: std::process::id(), started: seconds_now() };
        let written = worker
            .call(OperationKind::Other, || rustix::io::write(&file, format!("{owner}\n").as_bytes()))?;
        let mut locked = false;
        for _ in 0..LOCK_TRIES {
            let lock = FlockOperation::NonBlockingLockExclusive;
            match worker.call(OperationKind::Other, || rustix::fs::flock(&file, lock))? {
                Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
                answer => {
                    locked = answer.is_ok();
                    break;
                }
            }
        }
        // Either the line or the lock is sufficient to identify the owner.
        if let (Err(e), false) = (written, locked) {
            return Err(Stopped::Failed(failed(e, "write", OWNER)));
        }
        *lock(&self.owner) = Some(file);
        Ok(())
    }

    /// Creates directories with files, until all exist or the limits allow no further call.
    pub fn fill(&mut self, directories: u32, files: u32, worker: &mut Worker) -> Result<(), Stopped> {
        for number in 0..directories.min(DIRECTORIES_MAX) {
            let name = directory_name(number);
            let created =
                worker.call(OperationKind::Create, || rustix::fs::mkdirat(&self.fd, &*name, Mode::RWXU))?;
            // Recorded before the result is checked, because a failed call may have created it.
            self.subdirectories.push(Subdirectory { name: name.clone(), fd: None, files: 0 });
            created.map_err(|e| Stopped::Failed(failed(e, "create directory", &name)))?;
            let fd = worker
                .call(OperationKind::Other, || rustix::fs::openat(&self.fd, &*name, ENTER, Mode::empty()))?
                .map_err(|e| Stopped::Failed(failed(e, "open", &name)))?;
            let subdirectory = self.subdirectories.last_mut().expect("just pushed");
            let fd = subdirectory.fd.insert(fd);
            for number in 0..files.min(FILES_MAX) {
                let (name, mode) = (file_name(number), Mode::RUSR | Mode::WUSR);
                let created = worker.call(OperationKind::Create, || {
                    rustix::fs::mknodat(&*fd, &*name, FileType::RegularFile, mode, 0)
                })?;
                subdirectory.files += 1;
                created.map_err(|e| Stopped::Failed(failed(e, "create", &name)))?;
            }
        }
        Ok(())
    }

    /// Returns the directories for requests.
    pub fn subdirectories(&self) -> impl Iterator<Item = &OwnedFd> {
        self.subdirectories.iter().filter_map(|subdirectory| subdirectory.fd.as_ref())
    }

    /// Removes all created names and returns whether all of them are gone. The owner's file is
    /// removed last: as long as other names remain, it shows the next probe that this one has
    /// ended.
    pub fn remove(&self, worker: &mut Worker) -> bool {
        let mut gone = true;
        for subdirectory in self.subdirectories.iter().rev() {
            for number in (0..subdirectory.files).rev() {
                if let Some(fd) = &subdirectory.fd {
                    gone &= unlink(fd, &file_name(number), AtFlags::empty(), worker);
                }
            }
            gone &= unlink(&self.fd, &subdirectory.name, AtFlags::REMOVEDIR, worker);
        }
        drop(lock(&self.owner).take());
        gone && unlink(&self.fd, OWNER, AtFlags::empty(), worker)
            && unlink(&self.parent, &self.name, AtFlags::REMOVEDIR, worker)
    }

    /// Returns the number of names to remove.
    pub fn names(&self) -> u64 {
        // The directory itself and the owner's file.
        2 + self.subdirectories.iter().map(|subdirectory| 1 + u64::from(subdirectory.files)).sum::<u64>()
    }
}

/// Removes a name; returns whether it is gone.
fn unlink(directory: &OwnedFd, name: &str, flags: AtFlags, worker: &mut Worker) -> bool {
    loop {
        match worker.call(OperationKind::Remove, || rustix::fs::unlinkat(directory, name, flags)) {
            Ok(Err(Errno::INTR)) => {}
            Ok(answer) => return matches!(answer, Ok(()) | Err(Errno::NOENT)),
            Err(LimitReached) => return false,
        }
    }
}

/// Opens the directory that the user named.
pub fn open(path: &Path, worker: &mut Worker) -> Result<OwnedFd, Stopped> {
    // Symbolic links in the path, which the user chose, are followed.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = worker.call(OperationKind::Other, || rustix::fs::openat(CWD, path, flags, Mode::empty()))?;
    opened.map_err(|e| Stopped::Failed(failed(e, "open", path.as_os_str().as_encoded_bytes())))
}

/// Returns the directories of probes other than `own` in this directory. Only the first part of a
/// very large directory is searched.
pub fn leftovers(parent: &OwnedFd, own: Option<&str>, worker: &mut Worker) -> Result<Vec<Leftover>, Stopped> {
    let open = || rustix::fs::openat(parent, ".", READ, Mode::empty());
    let fd = worker.call(OperationKind::Other, open)?.map_err(|e| Stopped::Failed(failed(e, "list", ".")))?;
    let mut names = Vec::new();
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); NAMES_BUFFER_BYTES];
    let mut entries = RawDir::new(&fd, &mut buffer);
    for _ in 0..LISTING_CALLS_MAX {
        // Only reading the first entry of a buffer makes a system call.
        let first = worker.call(OperationKind::Other, || match entries.next() {
            None => Ok(None),
            Some(Err(e)) => Err(e),
            Some(Ok(entry)) => Ok(Some(entry.file_name().to_bytes().to_vec())),
        })?;
        let Some(first) = first.map_err(|e| Stopped::Failed(failed(e, "list", ".")))? else { break };
        names.push(first);
        while !entries.is_buffer_empty() {
            if let Some(Ok(entry)) = entries.next() {
                names.push(entry.file_name().to_bytes().to_vec());
            }
        }
        names.retain(|name| is_probe_directory_name(name) && own.is_none_or(|own| own.as_bytes() != name));
    }
    names.sort();
    names.truncate(LEFTOVERS_MAX);
    let mut found = Vec::new();
    for name in names {
        let name = String::from_utf8_lossy(&name).into_owned();
        // `None`: it no longer exists, or is not a directory.
        found.extend(examine(parent, name, worker)?.map(|(leftover, _)| leftover));
    }
    Ok(found)
}

/// A probe's directory and its owner's file, locked if no other process holds the lock.
type LeftoverFds = (OwnedFd, Option<OwnedFd>);

/// Examines the directory of another probe without blocking.
fn examine(
    parent: &OwnedFd,
    name: String,
    worker: &mut Worker,
) -> Result<Option<(Leftover, LeftoverFds)>, Stopped> {
    let entered =
        worker.call(OperationKind::Other, || rustix::fs::openat(parent, &*name, ENTER, Mode::empty()))?;
    let Ok(fd) = entered else { return Ok(None) };
    let flags = AtFlags::EMPTY_PATH;
    let found =
        worker.call(OperationKind::Other, || rustix::fs::statx(&fd, "", flags, StatxFlags::BASIC_STATS))?;
    let Ok(found) = found else { return Ok(None) };
    let mut leftover = Leftover {
        name,
        uid: found.stx_uid,
        owner: None,
        locked: None,
        modified: found.stx_mtime.tv_sec.try_into().unwrap_or(0),
    };
    // NONBLOCK: the open must not wait if the name is a fifo. RDWR: NFS locks only files open for
    // writing.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened =
        worker.call(OperationKind::Other, || rustix::fs::openat(&fd, OWNER, flags, Mode::empty()))?;
    let Ok(file) = opened else { return Ok(Some((leftover, (fd, None)))) };
    let mut buffer = [0; OWNER_BYTES_MAX];
    let read = worker.call(OperationKind::Other, || rustix::io::read(&file, &mut buffer[..]))?.unwrap_or(0);
    leftover.owner = std::str::from_utf8(&buffer[..read]).ok().and_then(Owner::parse);
    let lock = FlockOperation::NonBlockingLockExclusive;
    leftover.locked = match worker.call(OperationKind::Other, || rustix::fs::flock(&file, lock))? {
        Ok(()) => Some(false),
        Err(Errno::WOULDBLOCK) => Some(true),
        Err(_) => None,
    };
    Ok(Some((leftover, (fd, Some(file)))))
}

/// Returns the first probe that may still be running.
pub fn first_live(leftovers: &[Leftover]) -> Option<&Leftover> {
    let (here, now) = (host(), seconds_now());
    leftovers.iter().find(|leftover| leftover.is_live(&here, now))
}

/// The result of cleaning up the directories of killed probes.
#[derive(Debug, Default)]
pub struct Cleaned {
    /// The names of the directories that were removed.
    pub removed: Vec<String>,
    /// The directories that remain, and the reason for each.
    pub kept: Vec<(String, String)>,
}

/// Removes the directories that killed probes of this user left in `directory`.
pub fn clean(directory: &Path, progress: &Arc<ProbeProgress>) -> Result<Cleaned, Refusal> {
    progress.enter(Stage::Removing);
    let path = directory.to_owned();
    let until = Instant::now() + REMOVING_MAX;
    let task_limits = TaskLimits { threads: 1, operations: 0, until, removing: true };
    let done = WorkerPool::new(progress.clone()).run(task_limits, move |worker| {
        let parent = open(&path, worker)?;
        let mut cleaned = Cleaned::default();
        for leftover in leftovers(&parent, None, worker)? {
            let name = leftover.name.clone();
            match clean_one(&parent, leftover, worker)? {
                None => {
                    tracing::debug!(%name, "removed the directory of an ended probe");
                    cleaned.removed.push(name);
                }
                Some(why) => {
                    tracing::debug!(%name, why, "kept the directory of another probe");
                    cleaned.kept.push((name, why));
                }
            }
        }
        Ok(cleaned)
    });
    match done.map(|mut done| done.results.pop()) {
        Ok(Some(Ok(cleaned))) => Ok(cleaned),
        Ok(Some(Err(Stopped::Failed(error)))) => Err(error.into()),
        _ => Err(Refusal::Unanswered),
    }
}

fn is_empty_but_for_owner(fd: &OwnedFd, worker: &mut Worker) -> Result<bool, Stopped> {
    let opened = worker.call(OperationKind::Other, || rustix::fs::openat(fd, ".", READ, Mode::empty()))?;
    let Ok(listed) = opened else { return Ok(false) };
    let answer = worker.call(OperationKind::Other, || {
        let mut buffer = vec![MaybeUninit::<u8>::uninit(); NAMES_BUFFER_BYTES];
        let mut entries = RawDir::new(&listed, &mut buffer);
        while let Some(entry) = entries.next() {
            if ![&b"."[..], b"..", OWNER.as_bytes()].contains(&entry?.file_name().to_bytes()) {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    Ok(answer == Ok(true))
}

/// Removes one directory, or returns the reason why it was not removed.
fn clean_one(parent: &OwnedFd, leftover: Leftover, worker: &mut Worker) -> Result<Option<String>, Stopped> {
    // Examined again, and the lock is kept during the removal.
    let Some((leftover, (fd, owner))) = examine(parent, leftover.name, worker)? else { return Ok(None) };
    if leftover.uid != rustix::process::geteuid().as_raw() {
        return Ok(Some(format!("it is user {}'s", leftover.uid)));
    }
    if leftover.is_live(&host(), seconds_now()) {
        return Ok(Some(format!("its probe may be running: {}", leftover.describe_owner())));
    }
    for number in 0..DIRECTORIES_MAX {
        let name = directory_name(number);
        let entered =
            worker.call(OperationKind::Other, || rustix::fs::openat(&fd, &*name, ENTER, Mode::empty()))?;
        let Ok(subdirectory) = entered else { continue };
        for number in 0..FILES_MAX {
            unlink(&subdirectory, &file_name(number), AtFlags::empty(), worker);
        }
        unlink(&fd, &name, AtFlags::REMOVEDIR, worker);
    }
    drop(owner);
    // If foreign files remain in the directory, the owner's file stays and shows that its probe has
    // ended.
    let gone = is_empty_but_for_owner(&fd, worker)?
        && unlink(&fd, OWNER, AtFlags::empty(), worker)
        && unlink(parent, &leftover.name, AtFlags::REMOVEDIR, worker);
    Ok((!gone).then(|| "something in it was not created by a probe, or could not be removed".into()))
}
