//! The file `access` of a container as the file on which locks are taken (docs/formats/log.md,
//! Locks).

use std::sync::atomic::{AtomicUsize, Ordering};

use quell_posix::{LockedRange, OFFSET_MAX, OpenFile, RangeLocks, WritableDir};
use quell_vfs::{Error, ErrorKind, LockMode, Result, errno};

use crate::format::ACCESS;

/// The largest number of descriptors for locks in this process: half of the usual limit of 1,024
/// descriptors per process.
const DESCRIPTORS_MAX: usize = 512;

static DESCRIPTORS: AtomicUsize = AtomicUsize::new(0);

/// The byte of `access` that represents the whole file. No file has a byte at this offset.
pub(crate) const WHOLE_FILE: u64 = OFFSET_MAX;

/// An open `access`, which counts as one of the descriptors for locks.
pub(crate) struct LockFile {
    file: Box<dyn OpenFile>,
    /// Exclusive locks are possible.
    pub may_write: bool,
}

impl LockFile {
    /// Opens `access` in the directory of a container for writing, or for reading if this user may
    /// not write to it.
    pub fn open(container: &dyn WritableDir) -> Result<LockFile> {
        if DESCRIPTORS.fetch_add(1, Ordering::Relaxed) >= DESCRIPTORS_MAX {
            DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
            return Err(no_locks("this process has too many owners of locks"));
        }
        let opened = match container.open_writable_file(ACCESS) {
            Ok(file) => Ok((file as Box<dyn OpenFile>, true)),
            Err(error) if matches!(error.kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnly) => {
                container.open_file(ACCESS).map(|file| (file, false))
            }
            Err(error) => Err(error),
        };
        match opened {
            Ok((file, may_write)) => {
                let file = LockFile { file, may_write };
                file.check()?;
                Ok(file)
            }
            Err(error) => {
                DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Refuses a file with another name: another user may have put it here.
    fn check(&self) -> Result<()> {
        // This node may have cached a link count of 2 while another process created the file.
        if self.file.stat()?.nlink > 1 && self.file.stat_from_server()?.nlink > 1 {
            return Err(Error {
                source: Some("it has another name, which may be in another directory".into()),
                ..Error::new(ErrorKind::Damaged, "lock", ACCESS)
            });
        }
        Ok(())
    }

    pub fn locks(&self) -> Result<&dyn RangeLocks> {
        self.file.locks().ok_or_else(|| no_locks("this store keeps no locks"))
    }

    /// Returns true if it is still the file `access` of the container.
    pub fn is_current(&self, container: &dyn WritableDir) -> Result<bool> {
        Ok(self.file.stat()?.identity() == container.stat(ACCESS)?.identity())
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn no_locks(reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Os(errno::ENOLCK), "lock", ACCESS) }
}

/// Calls `act`, which replaces or moves `access`, while no owner on any node can take a lock. If
/// the store keeps no locks, or this user may not open `access` for writing, only calls `act`.
///
/// # Errors
///
/// `Busy` if an owner on any node holds a lock; then `act` is not called.
pub(crate) fn with_locks_excluded<T>(
    container: &dyn WritableDir,
    act: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Ok(file) = container.open_writable_file(ACCESS) else { return act() };
    let Some(locks) = file.locks() else { return act() };
    match locks.try_lock(LockedRange { first: 0, last: WHOLE_FILE, mode: LockMode::Exclusive }) {
        Ok(true) => {}
        Ok(false) => {
            return Err(Error {
                source: Some("a process has locked the file".into()),
                ..Error::new(ErrorKind::Busy, "lock", ACCESS)
            });
        }
        Err(error) if error.errno() == errno::ENOLCK => return act(),
        Err(error) => return Err(error),
    }
    let result = act();
    // Closing the descriptor is not enough: Linux does not tell a FUSE server that a description
    // with locks was closed. An error concerns a file that was replaced, and is ignored.
    let _ = locks.unlock(0, WHOLE_FILE);
    result
}
