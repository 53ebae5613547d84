//! An open file.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quell_batch_service::InodeChange;
use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::{
    Attributes, Error, ErrorKind, File, HeldLock, LockMode, LockOwner, LockScope, ReadAt, Result,
    WritableFile, errno,
};

use crate::file_locks::FileLocks;
use crate::nodes::Node;
use crate::shared::Shared;

/// An open file. All open files of a node have the same content.
pub(crate) struct BatchFile {
    shared: Arc<Shared>,
    node: Arc<Node>,
    is_closed: AtomicBool,
    /// The number of failed syncs of the data file that this open file has returned, or that failed
    /// before it was opened.
    reported: AtomicU64,
    /// The owners that may hold locks that were taken through this open file.
    lock_owners: Mutex<Vec<LockOwner>>,
}

impl BatchFile {
    /// Returns an open file of a node. The caller has counted it as one use of the node, and in the
    /// state of the file.
    pub(crate) fn new(shared: Arc<Shared>, node: Arc<Node>, sync_failures: u64) -> BatchFile {
        let (is_closed, reported) = (AtomicBool::new(false), AtomicU64::new(sync_failures));
        BatchFile { shared, node, is_closed, reported, lock_owners: Mutex::default() }
    }

    fn check_open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Os(errno::EBADF), "use", "a closed file")),
            false => Ok(()),
        }
    }

    fn file_locks(&self) -> Result<&FileLocks> {
        self.shared.locks.as_ref().ok_or_else(|| Error {
            source: Some("this file system keeps no locks".into()),
            ..Error::new(ErrorKind::Os(errno::ENOLCK), "lock", "")
        })
    }

    /// Removes the locks that were taken through this open file.
    fn release_locks(&self) -> Result<()> {
        let Some(locks) = &self.shared.locks else { return Ok(()) };
        let owners = std::mem::take(&mut *lock(&self.lock_owners));
        owners.iter().map(|owner| locks.release(self.node.number, *owner)).fold(Ok(()), Result::and)
    }

    /// Returns an error once after a failed sync, even if the sync was called through another open
    /// file.
    fn check_synced(&self, failures: u64) -> Result<()> {
        match self.reported.swap(failures, Ordering::AcqRel) == failures {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Os(errno::EIO), "write", "the data file")),
        }
    }
}

impl ReadAt for BatchFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.check_open()?;
        self.shared.read(&self.node, into, offset)
    }
}

impl File for BatchFile {
    fn attributes(&self) -> Result<Attributes> {
        self.check_open()?;
        self.shared.attributes(&self.node)
    }
}

impl WritableFile for BatchFile {
    fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let sent = {
            let mut state = write_lock(&self.node.file);
            let sent = self.shared.send(&self.node, &mut state);
            let synced = self.check_synced(state.sync_failures);
            state.closed();
            sent.and(synced)
        };
        let unlocked = self.release_locks();
        sent.and(unlocked).and(self.shared.release(self.node.number, 1))
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.check_open()?;
        self.shared.write(&self.node, from, offset)
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        self.check_open()?;
        self.shared.append(&self.node, from)
    }

    fn publish(&self) -> Result<()> {
        self.check_open()?;
        let mut state = write_lock(&self.node.file);
        self.shared.send(&self.node, &mut state)?;
        self.check_synced(state.sync_failures)
    }

    fn sync(&self) -> Result<()> {
        self.check_open()?;
        let mut state = write_lock(&self.node.file);
        let before = state.sync_failures;
        let synced = self.shared.sync(&self.node, &mut state);
        let earlier = self.check_synced(state.sync_failures);
        match state.sync_failures == before {
            true => synced.and(earlier),
            false => synced,
        }
    }

    fn locks(&self) -> Result<&dyn quell_vfs::FileLocks> {
        self.check_open()?;
        self.file_locks().map(|_| self as _)
    }

    fn drop_set_id(&self) -> Result<()> {
        self.check_open()?;
        if !read_lock(&self.node.file).has_set_id() {
            return Ok(());
        }
        let mut state = write_lock(&self.node.file);
        let change = InodeChange { drops_set_id: true, ..InodeChange::default() };
        let inode = self.shared.change(&self.node, &change)?;
        self.shared.note_and_keep_writes(&self.node, &mut state, inode)
    }
}

impl quell_vfs::FileLocks for BatchFile {
    fn try_lock(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<bool> {
        self.check_open()?;
        let locks = self.file_locks()?;
        if mode == LockMode::Shared {
            // The lock may replace an exclusive lock of the same owner.
            self.publish()?;
        }
        // Recorded first, so that a close at the same time releases the lock.
        {
            let mut owners = lock(&self.lock_owners);
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        let is_locked = locks.try_lock(self.node.number, owner, scope, mode)?;
        if self.is_closed.load(Ordering::Acquire) {
            self.release_locks()?;
            return self.check_open().map(|()| false);
        }
        if is_locked {
            self.shared.read_inode_again(&self.node, &mut write_lock(&self.node.file))?;
        }
        Ok(is_locked)
    }

    fn unlock(&self, owner: LockOwner, scope: LockScope) -> Result<()> {
        let published = self.publish();
        published.and(self.file_locks()?.unlock(self.node.number, owner, scope))
    }

    fn conflicting(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<Option<HeldLock>> {
        self.check_open()?;
        self.file_locks()?.conflicting(self.node.number, owner, scope, mode)
    }

    fn release(&self, owner: LockOwner) -> Result<()> {
        // The owner may open the file again and lock it before this file is closed.
        lock(&self.lock_owners).retain(|known| *known != owner);
        self.file_locks()?.release(self.node.number, owner)
    }
}

impl Drop for BatchFile {
    fn drop(&mut self) {
        // A frontend calls `close` first, and gets its errors.
        let _ = self.close();
    }
}
