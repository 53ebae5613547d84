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
    /// Opens `access` in the directory of a container for writing, or for reading if this user may not write to it.
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
        match self.file.stat()?.nlink {
            0 | 1 => Ok(()),
            _ => Err(Error {
                source: Some("it has another name, which may be in another directory".into()),
                ..Error::new(ErrorKind::Damaged, "lock", ACCESS)
            }),
        }
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

/// Excludes locks of all owners while `access` is replaced or moved, until the result is
/// dropped. Returns `None` if the store keeps no locks, or if this user may not open `access`
/// for writing.
///
/// # Errors
///
/// `Busy` if an owner on any node holds a lock.
pub(crate) fn exclude_locks(container: &dyn WritableDir) -> Result<Option<Box<dyn OpenFile>>> {
    let Ok(file) = container.open_writable_file(ACCESS) else { return Ok(None) };
    let file = file as Box<dyn OpenFile>;
    let range = LockedRange { first: 0, last: WHOLE_FILE, mode: LockMode::Exclusive };
    let taken = match file.locks() {
        None => return Ok(None),
        Some(locks) => locks.try_lock(range),
    };
    match taken {
        Ok(true) => Ok(Some(file)),
        Ok(false) => Err(Error {
            source: Some("a process has locked the file".into()),
            ..Error::new(ErrorKind::Busy, "lock", ACCESS)
        }),
        Err(error) if error.errno() == errno::ENOLCK => Ok(None),
        Err(error) => Err(error),
    }
}
