//! The locks of the files of a name space that a process serves on this node: locks of the kernel
//! on files in a directory of that process, so that they end with the process that holds them.
//! docs/formats/batch-protocol.md describes the directory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;

use quell_posix::{LockedRange, OFFSET_MAX, OpenFile, PosixDir, RangeLocks, ScopeBytes, WritableDir};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, HeldLock, LockMode, LockOwner, LockScope, Result, errno};

/// The byte of a lock file that represents the whole file, for flock(2).
const WHOLE_FILE: u64 = OFFSET_MAX - 1;
/// The byte of which each owner that has the lock file open holds a shared lock. Only an owner with
/// an exclusive lock of this byte removes the file.
const IN_USE: u64 = OFFSET_MAX;
const SCOPES: ScopeBytes = ScopeBytes::new(WHOLE_FILE);
/// The number of times that a lock file is opened again because another process removes it.
const OPENS_MAX: usize = 1000;
const OPEN_AGAIN: Duration = Duration::from_millis(1);

/// The locks of the owners in this process.
pub(crate) struct FileLocks {
    dir: PosixDir,
    /// The lock files that are open, by the inode number of the locked file and the owner.
    held: Mutex<HashMap<(u64, LockOwner), Box<dyn OpenFile>>>,
}

impl FileLocks {
    /// Returns the locks that are kept in a directory.
    pub(crate) fn new(dir: OwnedFd) -> FileLocks {
        FileLocks { dir: PosixDir::of_descriptor(dir), held: Mutex::default() }
    }

    /// Locks `scope` of a file for `owner`, unless another owner has a conflicting lock; returns
    /// whether it is locked now.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid scope; the errors of open(2) and fcntl(2).
    pub(crate) fn try_lock(
        &self,
        number: u64,
        owner: LockOwner,
        scope: LockScope,
        mode: LockMode,
    ) -> Result<bool> {
        let (first, last) = SCOPES.of(scope)?;
        let range = LockedRange { first, last, mode };
        let mut held = lock(&self.held);
        let file = match held.entry((number, owner)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.open(number)?),
        };
        locks_of(&**file)?.try_lock_on_node(range)
    }

    /// Removes the locks of `owner` in `scope` of a file.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid scope; the errors of fcntl(2).
    pub(crate) fn unlock(&self, number: u64, owner: LockOwner, scope: LockScope) -> Result<()> {
        let (first, last) = SCOPES.of(scope)?;
        match lock(&self.held).get(&(number, owner)) {
            Some(file) => locks_of(&**file)?.unlock(first, last),
            None => Ok(()),
        }
    }

    /// Removes all locks of `owner` on a file, and the lock file if no other owner uses it.
    ///
    /// # Errors
    /// The errors of fcntl(2) and unlink(2).
    pub(crate) fn release(&self, number: u64, owner: LockOwner) -> Result<()> {
        let mut held = lock(&self.held);
        let Entry::Occupied(entry) = held.entry((number, owner)) else { return Ok(()) };
        let locks = locks_of(&**entry.get())?;
        locks.unlock(0, WHOLE_FILE)?;
        // Of several owners that release the file at the same time, the last one gets this lock.
        locks.unlock(IN_USE, IN_USE)?;
        let in_use = LockedRange { first: IN_USE, last: IN_USE, mode: LockMode::Exclusive };
        let is_last = locks.try_lock_on_node(in_use)?;
        // The file is closed after the removal.
        let file = entry.remove();
        if !is_last || file.stat()?.nlink == 0 {
            return Ok(());
        }
        match self.dir.remove(name(number).as_bytes()) {
            // The process that serves the name space has ended.
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Returns a lock of another owner that conflicts with the described lock.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid scope; the errors of open(2) and fcntl(2).
    pub(crate) fn conflicting(
        &self,
        number: u64,
        owner: LockOwner,
        scope: LockScope,
        mode: LockMode,
    ) -> Result<Option<HeldLock>> {
        let (first, last) = SCOPES.of(scope)?;
        let range = LockedRange { first, last, mode };
        let held = lock(&self.held);
        let found = match held.get(&(number, owner)) {
            Some(file) => locks_of(&**file)?.conflicting_on_node(range)?,
            None => match self.dir.open_writable_file(name(number).as_bytes()) {
                Ok(file) => locks_of(&*file)?.conflicting_on_node(range)?,
                Err(error) if error.kind == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        };
        Ok(found.map(|found| HeldLock { scope: SCOPES.scope(found, scope), mode: found.mode }))
    }

    /// Opens the lock file of a file, creates it if it does not exist, and locks the byte `IN_USE`.
    fn open(&self, number: u64) -> Result<Box<dyn OpenFile>> {
        let name = name(number);
        let in_use = LockedRange { first: IN_USE, last: IN_USE, mode: LockMode::Shared };
        for _ in 0..OPENS_MAX {
            let Some(file) = self.open_or_create(name.as_bytes())? else { continue };
            // Another process may be about to remove the file, or has removed it.
            if locks_of(&*file)?.try_lock_on_node(in_use)? && file.stat()?.nlink > 0 {
                return Ok(file);
            }
            std::thread::sleep(OPEN_AGAIN);
        }
        Err(Error::new(ErrorKind::Busy, "lock", name))
    }

    /// Returns `None` if another process has created and removed the file in the meantime.
    fn open_or_create(&self, name: &[u8]) -> Result<Option<Box<dyn OpenFile>>> {
        match self.dir.open_writable_file(name) {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            opened => return Ok(Some(opened?)),
        }
        match self.dir.create_file(name, 0o600) {
            Err(error) if error.kind == ErrorKind::Exists => Ok(None),
            created => Ok(Some(created?)),
        }
    }
}

/// Returns the name of the lock file of a file.
fn name(number: u64) -> String {
    number.to_string()
}

fn locks_of(file: &dyn OpenFile) -> Result<&dyn RangeLocks> {
    file.locks().ok_or_else(|| Error::new(ErrorKind::Os(errno::ENOLCK), "lock", ""))
}

#[cfg(test)]
#[path = "file_locks_test.rs"]
mod tests;
