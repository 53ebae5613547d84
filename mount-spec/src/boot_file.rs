//! The output file of a boot image. One process at a time reads the old image, merges and replaces
//! it, so that of two recordings that end at the same time neither is lost. Temporary files of
//! killed writers are removed by a later writer.
//!
//! Other users may have write permission to the directory. If they replace the lock by a symbolic
//! link, a FIFO or another file, it is never followed, waited for or written to.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{BufWriter, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use quell_boot::FrameSink;
use quell_vfs::{Error, ErrorKind, Result, errno};
use rustix::fs::{FileType, FlockOperation, Gid, Mode, OFlags, flock, fstat, lstat};
use rustix::io::Errno;

use crate::display::shown;
use crate::output::{ASIDE, BOOT_IMAGE, Output, aside_prefix, directory_of};

/// The time after which a wait for the lock is reported.
const REPORT_WAIT_AFTER: Duration = Duration::from_secs(5);
/// Number of tries: on a shared file system, a file that another node has just removed may appear
/// to exist, or be stale, for a moment.
const TRIES_MAX: u32 = 10;
/// Frames are written in pieces of this size.
const FRAME_BUFFER_BYTES: usize = 1 << 20;
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// A temporary file that was not changed for this time belongs to no running writer.
const ABANDONED_AGE: Duration = Duration::from_secs(3600);
/// The id that the kernel shows for a group that the user namespace does not map.
const NO_GROUP: u32 = 65534;

/// An image's path with its lock, which is held until this value is dropped.
#[derive(Debug)]
pub struct LockedBootFile {
    path: PathBuf,
    lock: PathBuf,
    _lock_file: File,
}

/// The frames of an image that is being written. They are copied behind its tables, which are
/// complete only after the last frame.
#[derive(Debug)]
pub struct FrameFile {
    file: BufWriter<File>,
    bytes: u64,
    path: PathBuf,
}

impl FrameFile {
    /// Returns the size of all frames.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl FrameSink for FrameFile {
    fn append(&mut self, frame: &[u8]) -> Result<()> {
        self.bytes += frame.len() as u64;
        self.file.write_all(frame).map_err(|e| Error::from_io(e, "write", self.path.as_os_str().as_bytes()))
    }
}

impl LockedBootFile {
    /// Waits until no other process writes the image. Calls `waiting` with the lock's path if that
    /// takes long. On a file system without locks, writers are not excluded, and the last one wins.
    pub fn claim(path: &Path, waiting: &(dyn Fn(&Path) + Sync)) -> Result<LockedBootFile> {
        let lock = lock_path(path);
        let mut tries = 0;
        loop {
            match claim_once(&lock, waiting) {
                Ok(Some((file, is_exclusive))) => {
                    let locked = LockedBootFile { path: path.into(), lock, _lock_file: file };
                    if is_exclusive {
                        locked.remove_abandoned();
                    }
                    return Ok(locked);
                }
                Ok(None) => {}
                Err(e) if matches!(e.errno(), errno::ESTALE | errno::ENOENT) && tries < TRIES_MAX => {
                    tries += 1;
                    tracing::debug!(lock = %shown(&lock), tries, error = %e, "another process replaced the lock: trying again");
                    std::thread::sleep(RETRY_PAUSE);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Checks that an existing lock is usable, and that an existing image may be replaced. Creates
    /// no lock and does not wait.
    pub fn check(path: &Path, force: bool) -> Result<()> {
        Output { path, format: BOOT_IMAGE, force }.check()?;
        let lock = lock_path(path);
        match open_lock(&lock) {
            Err(e) if matches!(e.errno(), errno::ESTALE | errno::ENOENT) => Ok(()),
            Err(e) => Err(e),
            Ok(file) => match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::BADF) => Err(foreign_lock(&lock)),
                _ => Ok(()),
            },
        }
    }

    /// Returns an empty file for the frames of the new image, in its directory and without a name.
    pub fn frames(&self) -> Result<FrameFile> {
        let failed = |e| Error::from_io(e, "write", self.path.as_os_str().as_bytes());
        let file = tempfile::tempfile_in(directory_of(&self.path)).map_err(failed)?;
        Ok(FrameFile {
            file: BufWriter::with_capacity(FRAME_BUFFER_BYTES, file),
            bytes: 0,
            path: self.path.clone(),
        })
    }

    /// Replaces the image atomically. `head`: the part before the frames. If the caller owns the
    /// old image, the new one gets its mode and group; otherwise only its owner has access.
    pub fn replace(&self, head: &[u8], frames: FrameFile, force: bool) -> Result<()> {
        let old = fs::symlink_metadata(&self.path).ok();
        let own = old.filter(|old| {
            old.is_file() && old.nlink() == 1 && old.uid() == rustix::process::geteuid().as_raw()
        });
        let write = |file: &mut File| {
            file.write_all(head)?;
            let mut frames = frames.file.into_inner()?;
            frames.rewind()?;
            std::io::copy(&mut frames, file).map(drop)
        };
        Output { path: &self.path, format: BOOT_IMAGE, force }.replace_with(write, |file| {
            let Some(own) = &own else { return Ok(()) };
            let mut mode = own.mode() & 0o777;
            let is_groups = own.gid() != NO_GROUP
                && (file.metadata()?.gid() == own.gid()
                    || rustix::fs::fchown(file, None, Some(Gid::from_raw(own.gid()))).is_ok());
            if !is_groups {
                // If the group cannot be set, its members get no access.
                mode &= !0o070;
            }
            file.set_permissions(Permissions::from_mode(mode))
        })
    }

    /// Removes temporary files of killed writers. A live writer holds the lock, or is on another
    /// node where locks are not visible; in that case its file is recent.
    fn remove_abandoned(&self) {
        let directory = self.lock.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(entries) = fs::read_dir(directory) else { return };
        let prefix = aside_prefix(&self.path);
        for entry in entries.flatten() {
            let name: OsString = entry.file_name();
            let middle = name
                .as_bytes()
                .strip_prefix(prefix.as_bytes())
                .and_then(|n| n.strip_suffix(ASIDE.as_bytes()));
            let is_aside = middle.is_some_and(|random| random.iter().all(u8::is_ascii_alphanumeric));
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            if is_aside && age().is_some_and(|age| age > ABANDONED_AGE) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for LockedBootFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.lock);
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = aside_prefix(path);
    name.push("lock");
    path.with_file_name(name)
}

fn failed(lock: &Path, cause: Errno) -> Error {
    Error::from_io(cause.into(), "lock", lock.as_os_str().as_bytes())
}

fn refused(lock: &Path, kind: ErrorKind, why: &str) -> Error {
    let source = Some(std::io::Error::other(why.to_owned()).into());
    Error { source, ..Error::new(kind, "lock", lock.as_os_str().as_bytes()) }
}

fn foreign_lock(lock: &Path) -> Error {
    let why = "another user's recording holds it, or was killed; remove it if that user records nothing";
    refused(lock, ErrorKind::PermissionDenied, why)
}

/// Opens an existing lock. Refuses symbolic links and files that are not regular.
fn open_lock(lock: &Path) -> Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |access| rustix::fs::open(lock, flags | access, Mode::empty());
    let opened = match open(OFlags::RDWR) {
        // Read access is sufficient, except on a file system of another node, where locking needs
        // write access.
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => open(OFlags::RDONLY),
        other => other,
    };
    let not_regular = || refused(lock, ErrorKind::InvalidInput, "it is not a regular file: remove it");
    let file = match opened {
        Ok(file) => file,
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(not_regular()),
        Err(Errno::ACCESS | Errno::PERM) => return Err(foreign_lock(lock)),
        Err(e) => return Err(failed(lock, e)),
    };
    let stat = fstat(&file).map_err(|e| failed(lock, e))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(not_regular()),
    }
}

/// Opens and locks the lock file. Returns whether the lock excludes other processes; returns `None`
/// if the file was replaced meanwhile.
fn claim_once(lock: &Path, waiting: &(dyn Fn(&Path) + Sync)) -> Result<Option<(File, bool)>> {
    let file = match open_lock(lock) {
        Err(e) if e.errno() == errno::ENOENT => {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::open(lock, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => file.into(),
                Err(Errno::EXIST) => return Ok(None),
                Err(e) => return Err(failed(lock, e)),
            }
        }
        other => other?,
    };
    let is_exclusive = match wait(&file, &|| waiting(lock)) {
        Ok(()) => true,
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => false,
        Err(Errno::BADF) => return Err(foreign_lock(lock)),
        Err(e) => return Err(failed(lock, e)),
    };
    // The previous holder of the lock may have removed the file.
    let ours = fstat(&file).map_err(|e| failed(lock, e))?;
    let is_there = lstat(lock).is_ok_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino));
    Ok(is_there.then_some((file, is_exclusive)))
}

fn wait(file: &File, waiting: &(dyn Fn() + Sync)) -> std::result::Result<(), Errno> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK | Errno::INTR) => {}
        other => return other,
    }
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(REPORT_WAIT_AFTER) == Err(RecvTimeoutError::Timeout) {
                waiting();
            }
        });
        let locked = loop {
            match flock(file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        drop(done);
        locked
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_holder_at_a_time_has_the_lock_and_no_file_remains() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.boot");
        let (inside, rounds) = (AtomicU32::new(0), 50);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let locked = LockedBootFile::claim(&path, &|_| {}).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        let old = fs::read(&path).unwrap_or_default();
                        let frames = locked.frames().unwrap();
                        locked.replace(&[old, vec![1]].concat(), frames, true).unwrap();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(fs::read(&path).unwrap().len(), 4 * rounds);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn temporary_files_of_killed_writers_are_removed_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let mut others = [
            ".app.boot.backup",
            ".app.boot.a-b.aside",
            ".app.bootx.123456.aside",
            "app.boot.123456.aside",
            // This file may belong to a running writer.
            ".app.boot.fresh1.aside",
        ];
        for name in others.iter().chain(&[".app.boot.aB3456.aside", ".app.boot.lock"]) {
            let file = File::create(directory.path().join(name)).unwrap();
            if !name.contains("fresh") {
                file.set_modified(std::time::SystemTime::now() - 2 * ABANDONED_AGE).unwrap();
            }
        }
        drop(LockedBootFile::claim(&directory.path().join("app.boot"), &|_| {}).unwrap());
        let mut left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        others.sort_unstable();
        assert_eq!(left, others);
    }

    #[test]
    fn a_foreign_file_under_the_locks_name_is_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, lock) = (directory.path().join("app.boot"), directory.path().join(".app.boot.lock"));
        let elsewhere = directory.path().join("elsewhere");
        let refused = || {
            for error in
                [LockedBootFile::check(&path, false).err(), LockedBootFile::claim(&path, &|_| {}).err()]
            {
                let message = error.expect("it was taken for a lock").to_string();
                assert!(message.contains("not a regular file"), "{message}");
            }
            assert!(fs::symlink_metadata(&lock).is_ok(), "it was removed");
        };
        std::os::unix::fs::symlink(&elsewhere, &lock).unwrap();
        refused();
        assert!(!elsewhere.exists(), "a link was followed");
        fs::write(&elsewhere, "").unwrap();
        refused();
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
        refused();
        fs::remove_dir(&lock).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &lock, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused();
    }

    #[test]
    fn the_lock_can_be_held_by_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.boot");
        let locked = LockedBootFile::claim(&path, &|_| {}).unwrap();
        assert_eq!(fs::metadata(&locked.lock).unwrap().mode() & 0o177, 0);
        LockedBootFile::check(&path, false).unwrap();
    }

    #[test]
    fn replacing_a_boot_image_keeps_its_wider_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.boot");
        let locked = LockedBootFile::claim(&path, &|_| {}).unwrap();
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        let replace = |head: &[u8]| {
            let mut frames = locked.frames().unwrap();
            frames.append(b" frame").unwrap();
            locked.replace(head, frames, true).unwrap();
        };
        replace(b"one");
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        replace(b"two");
        assert_eq!((mode(), &fs::read(&path).unwrap()[..]), (0o644, &b"two frame"[..]));
    }
}
