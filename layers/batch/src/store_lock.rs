//! The locks of a store: bytes of its file `lock`, which the file system of the store locks between
//! all nodes (fcntl(2), `F_OFD_SETLK`). docs/formats/batch.md lists them.

use std::fmt;

use quell_posix::{LockedRange, PosixDir, WritableDir, WritableFile};
use quell_vfs::{Error, ErrorKind, LockMode, Result};

/// The file whose bytes are locked. It is never removed or replaced.
pub(crate) const LOCK: &[u8] = b"lock";

/// A byte of the file, and its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Prevents the removal of data files to which no inode refers yet: held by clients of a
    /// server.
    KeepData,
    /// Excludes all clients of a server: held by the collection of garbage.
    ExcludeClients,
    /// Held by the process that has the key-value store open.
    Keys,
    /// Held by the process that uses the batch with this number.
    Batch(u64),
}

impl LockKind {
    fn range(self) -> LockedRange {
        let (byte, mode) = match self {
            LockKind::KeepData => (0, LockMode::Shared),
            LockKind::ExcludeClients => (0, LockMode::Exclusive),
            LockKind::Keys => (1, LockMode::Exclusive),
            // The first batch has the number 1.
            LockKind::Batch(number) => (number.saturating_add(1), LockMode::Exclusive),
        };
        LockedRange { first: byte, last: byte, mode }
    }
}

/// A lock that is held. The kernel releases it when the descriptor is closed, also if the process
/// is killed.
pub(crate) struct StoreLock {
    _file: Box<dyn WritableFile>,
}

impl fmt::Debug for StoreLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLock").finish_non_exhaustive()
    }
}

/// Takes a lock of the store in `dir`, without waiting. `None` if a lock of another holder
/// conflicts.
///
/// # Errors
/// ENOLCK if locks of the file system do not hold between nodes; the errors of files.
pub(crate) fn try_lock(dir: &PosixDir, kind: LockKind) -> Result<Option<StoreLock>> {
    let file = open(dir)?;
    let locks = file.locks().ok_or_else(|| Error::new(ErrorKind::Unsupported, "lock", LOCK))?;
    let is_locked = locks.try_lock(kind.range())?;
    Ok(is_locked.then_some(StoreLock { _file: file }))
}

/// Returns whether a lock of another holder conflicts with a lock of the store in `dir`.
///
/// # Errors
/// As for [`try_lock`].
pub(crate) fn is_excluded(dir: &PosixDir, kind: LockKind) -> Result<bool> {
    let file = open(dir)?;
    let locks = file.locks().ok_or_else(|| Error::new(ErrorKind::Unsupported, "lock", LOCK))?;
    locks.conflicting(kind.range()).map(|found| found.is_some())
}

/// Opens the file for reading and writing, and creates it if it does not exist.
fn open(dir: &PosixDir) -> Result<Box<dyn WritableFile>> {
    loop {
        match dir.open_writable_file(LOCK) {
            Err(error) if error.kind == ErrorKind::NotFound => match dir.create_file(LOCK, 0o600) {
                // Another process has created the file meanwhile.
                Err(error) if error.kind == ErrorKind::Exists => {}
                created => return created,
            },
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::{Batch, ExcludeClients, KeepData, Keys};

    #[test]
    fn each_lock_excludes_only_its_own_kind() {
        let temp = tempfile::tempdir().unwrap();
        let dir = PosixDir::open(temp.path()).unwrap();
        let take = |kind| try_lock(&dir, kind).unwrap();
        let kept = (take(KeepData).unwrap(), take(KeepData).unwrap());
        let others = [Keys, Batch(1), Batch(2), Batch(u64::MAX >> 2)].map(|kind| take(kind).unwrap());
        for kind in [ExcludeClients, Keys, Batch(1), Batch(2), Batch(u64::MAX >> 2)] {
            assert!(take(kind).is_none(), "{kind:?}");
        }
        let is_excluded = |kind| is_excluded(&dir, kind).unwrap();
        assert!(is_excluded(Batch(1)) && is_excluded(ExcludeClients));
        assert!(!is_excluded(Batch(3)) && !is_excluded(KeepData));
        drop((kept, others));
        let excluding = take(ExcludeClients).unwrap();
        assert!(take(KeepData).is_none() && take(Keys).is_some() && take(Batch(1)).is_some());
        drop(excluding);
        assert!(take(KeepData).is_some());
    }
}
