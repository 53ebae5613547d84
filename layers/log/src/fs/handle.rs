//! The handles of open files.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_posix::{assume, assumed};
use quell_vfs::{
    Attributes, Caller, Error, ErrorKind, File, FileLocks, HeldLock, LockMode, LockOwner, LockScope, NodeId,
    OpenMode, ReadAt, Result, WritableFile, errno,
};

use crate::format::FileOffset;
use crate::fs::open_files::SharedFile;
use crate::locks::{Rank, RankedMutex};
use crate::session::{LogFile, Writer};
use crate::stores::OnlyUserPeriod;

/// An open file of a log mount.
pub(crate) struct Handle {
    shared: Arc<SharedFile>,
    node: NodeId,
    writer: Option<Arc<Writer>>,
    /// The credentials with which the file was opened.
    credentials: Option<Arc<Caller>>,
    process: u32,
    flattens_later: bool,
    /// The period in which the mount was the only user of its store when the file was opened only
    /// for reading.
    only_user: Option<OnlyUserPeriod>,
    is_closed: AtomicBool,
    /// The set-id bits of the file were checked and removed since the last publish.
    has_dropped_set_id: AtomicBool,
    /// Data was written after that check, so the set-id bits are checked again before the data is
    /// published.
    must_drop_set_id: AtomicBool,
    /// The owners that have taken a lock through this handle. Their locks are released when the
    /// handle is closed.
    lock_owners: RankedMutex<HashSet<LockOwner>>,
}

impl Handle {
    /// Opens a file as `mode` requests, for a process of this node.
    pub fn open(
        shared: Arc<SharedFile>,
        node: NodeId,
        mode: OpenMode,
        process: u32,
        flattens_later: bool,
    ) -> Result<Handle> {
        if mode.truncate {
            shared.file.truncate(0)?;
        }
        let writer = if mode.write { Some(shared.file.writer(process)?) } else { None };
        let only_user = shared.only_user_period().filter(|_| !mode.write);
        if mode.read {
            shared.file.refresh()?;
        }
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Ok(Handle {
            shared,
            node,
            writer,
            credentials: assumed(),
            process,
            flattens_later,
            only_user,
            is_closed: AtomicBool::new(false),
            has_dropped_set_id: AtomicBool::new(false),
            must_drop_set_id: AtomicBool::new(false),
            lock_owners: RankedMutex::new(Rank::Leaf, HashSet::new()),
        })
    }

    /// Returns the file, unless the handle was closed.
    fn shared(&self) -> Result<&SharedFile> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Os(errno::EBADF), "use", b"a closed file"));
        }
        Ok(&self.shared)
    }

    fn writer(&self) -> Result<&Writer> {
        // The frontends do not write to a file that is open for reading.
        self.writer.as_deref().ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "write to", b"a file that is open for reading")
        })
    }

    /// Removes the set-id bits that another mount may have set since the first write.
    fn drop_set_id_of_later_writes(&self) -> Result<()> {
        self.has_dropped_set_id.store(false, Ordering::Relaxed);
        match self.must_drop_set_id.swap(false, Ordering::Relaxed) {
            true => drop_set_id(&self.shared.file),
            false => Ok(()),
        }
    }

    /// Removes all locks of `owner`, also if data that must be published first cannot be.
    fn release_locks(&self, owner: LockOwner) -> Result<()> {
        let release = || self.shared.file.release_locks(owner);
        self.with_credentials_or_unlock(owner, LockScope::Everything, release)
    }

    /// Calls `unlock`, which publishes data and removes locks, with the credentials of the handle.
    /// If this thread cannot assume them, nothing can be published, but the locks of `owner` in
    /// `scope` are removed, because they may not be released a second time.
    fn with_credentials_or_unlock(
        &self,
        owner: LockOwner,
        scope: LockScope,
        unlock: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match assume(self.credentials.clone()) {
            Ok(_acting) => unlock(),
            Err(error) => {
                let _ = self.shared.file.unlock_unpublished(owner, scope); // the first error is returned
                Err(error)
            }
        }
    }

    /// Removes this handle. The last handle of a process ends the process's writer. After the last
    /// writer of this node has ended, the file is flattened if a flat index is due.
    fn release(&self) -> Result<()> {
        self.shared.handles.fetch_sub(1, Ordering::Relaxed);
        let released = self.release_writer();
        // An object is opened again with one request, and closing it later would delay another
        // operation. After a failure the file stays open, because a later sync tries again and
        // returns the error.
        let file = &self.shared.file;
        let is_needed = released.is_err() || file.has_failures() || !file.container().is_known_only_object();
        if is_needed && !self.shared.is_removed() {
            self.shared.keep_open(self.node);
        }
        released
    }

    fn release_writer(&self) -> Result<()> {
        if self.writer.is_none() {
            return Ok(());
        }
        // Assumes the process's own credentials, because a thread that is started here inherits
        // them.
        let _process = assume(None)?;
        if self.shared.file.release(self.process)? {
            if self.flattens_later {
                self.shared.flattening.add(Arc::clone(&self.shared));
            } else {
                self.shared.flatten(&AtomicBool::new(false));
            }
        }
        Ok(())
    }
}

/// Removes set-id bits with the process's own credentials: only the owner can change the
/// permissions, and another user may be writing.
pub(crate) fn drop_set_id(file: &LogFile) -> Result<()> {
    let _acting = assume(None)?;
    file.drop_set_id()
}

impl ReadAt for Handle {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let shared = self.shared()?;
        let _acting = assume(self.credentials.clone())?;
        // The kernel may cache the data of this handle, and requests the attributes of the file
        // before each read. The data must not be older than these attributes.
        if self.only_user.is_some() && self.only_user != shared.only_user_period() {
            shared.follow_others()?;
        }
        shared.file.read_at(into, FileOffset(offset))
    }
}

impl File for Handle {
    fn attributes(&self) -> Result<Attributes> {
        let shared = self.shared()?;
        let attributes = shared.file.attributes(self.node)?;
        Ok(Attributes { nlink: u32::from(!shared.is_removed()), ..attributes })
    }
}

impl WritableFile for Handle {
    fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let dropped = self.drop_set_id_of_later_writes();
        let published = assume(self.credentials.clone())
            .and_then(|_acting| self.shared.file.publish(self.writer.as_deref()));
        let owners = std::mem::take(&mut *self.lock_owners.lock());
        let mut unlocked = Ok(());
        for owner in owners {
            unlocked = unlocked.and(self.release_locks(owner));
        }
        dropped.and(published).and(unlocked).and(self.release())
    }

    fn locks(&self) -> Result<&dyn FileLocks> {
        self.shared().map(|_| self as &dyn FileLocks)
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        let shared = self.shared()?;
        let _acting = assume(self.credentials.clone())?;
        shared.file.write_at(self.writer()?, from, FileOffset(offset))
    }

    fn write_zeros(&self, offset: u64, length: u64) -> Result<()> {
        let shared = self.shared()?;
        let _acting = assume(self.credentials.clone())?;
        shared.file.write_zeros(self.writer()?, FileOffset(offset), length)
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        let shared = self.shared()?;
        let _acting = assume(self.credentials.clone())?;
        shared.file.append(self.writer()?, from).map(|offset| offset.0)
    }

    fn publish(&self) -> Result<()> {
        let shared = self.shared()?;
        self.drop_set_id_of_later_writes()?;
        let _acting = assume(self.credentials.clone())?;
        shared.file.publish(self.writer.as_deref())
    }

    fn sync(&self) -> Result<()> {
        let shared = self.shared()?;
        self.drop_set_id_of_later_writes()?;
        let _acting = assume(self.credentials.clone())?;
        shared.file.sync()
    }

    /// Another mount may set the bits at any time. A check costs a request, so it is done for the
    /// first write, and once for all later ones before they are published.
    fn drop_set_id(&self) -> Result<()> {
        let shared = self.shared()?;
        if self.has_dropped_set_id.swap(true, Ordering::Relaxed) && !shared.file.had_set_id() {
            self.must_drop_set_id.store(true, Ordering::Relaxed);
            return Ok(());
        }
        drop_set_id(&shared.file)
    }
}

impl FileLocks for Handle {
    fn try_lock(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<bool> {
        let shared = self.shared()?;
        let _acting = assume(self.credentials.clone())?;
        // Recorded first, so that a close at the same time releases the lock.
        self.lock_owners.lock().insert(owner);
        let is_locked = shared.file.try_lock(owner, scope, mode)?;
        if self.is_closed.load(Ordering::SeqCst) {
            shared.file.release_locks(owner)?;
            return self.shared().map(|_| false);
        }
        Ok(is_locked)
    }

    fn unlock(&self, owner: LockOwner, scope: LockScope) -> Result<()> {
        let shared = self.shared()?;
        let dropped = self.drop_set_id_of_later_writes();
        let unlock = || shared.file.unlock(owner, scope);
        dropped.and(self.with_credentials_or_unlock(owner, scope, unlock))
    }

    fn conflicting(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<Option<HeldLock>> {
        let shared = self.shared()?;
        let _acting = assume(self.credentials.clone())?;
        shared.file.conflicting_lock(owner, scope, mode)
    }

    fn release(&self, owner: LockOwner) -> Result<()> {
        self.shared()?;
        // The owner may open the file again and lock it before this handle is closed.
        self.lock_owners.lock().remove(&owner);
        self.release_locks(owner)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // There is no caller to return an error to. A frontend has called `close` before; if it has
        // not, `quell log fsck` finds the unpublished data.
        let _ = self.close();
    }
}

#[cfg(test)]
#[path = "handle_test.rs"]
mod tests;
