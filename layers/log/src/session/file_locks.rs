//! The locks that owners on this node hold on one file: for each owner, an open descriptor of the
//! container's file `access`, on which the file system below keeps the locks
//! (docs/formats/log.md, Locks).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_posix::{LockedRange, ScopeBytes};
use quell_vfs::{Error, ErrorKind, HeldLock, LockMode, LockOwner, LockScope, Result, errno};

use crate::container::{Container, LockFile, WHOLE_FILE};
use crate::format::ACCESS;
use crate::locks::{Rank, RankedMutex};
use crate::session::locked_bytes::LockedBytes;

/// The bytes of `access`.
const SCOPES: ScopeBytes = ScopeBytes::new(WHOLE_FILE);
/// The largest number of times that `access` is opened, if root replaces it each time.
const OPENS_MAX: usize = 16;

/// The locks of the owners on this node.
pub(crate) struct FileLocks {
    /// Owners that have a lock or are about to take one.
    owners: RankedMutex<HashMap<LockOwner, Arc<Owner>>>,
    /// A lock was taken, and nodes of this store see data only after a sync.
    needs_sync: AtomicBool,
}

struct Owner {
    state: RankedMutex<OwnerState>,
    /// The owner holds a lock. Changed while `state` is locked.
    has_locks: AtomicBool,
}

#[derive(Default)]
struct OwnerState {
    file: Option<LockFile>,
    held: LockedBytes,
}

impl FileLocks {
    pub fn new() -> FileLocks {
        let owners = RankedMutex::new(Rank::Leaf, HashMap::new());
        FileLocks { owners, needs_sync: AtomicBool::new(false) }
    }

    /// Locks `scope` for `owner` with the credentials of this thread, unless another owner has a
    /// conflicting lock.
    pub fn try_lock(
        &self,
        container: &Container,
        owner: LockOwner,
        scope: LockScope,
        mode: LockMode,
    ) -> Result<bool> {
        let (first, last) = SCOPES.of(scope)?;
        self.with_owner(self.entry(owner), owner, |state| {
            let is_locked = state.try_lock(container, LockedRange { first, last, mode })?;
            if is_locked && state.file(container)?.locks()?.needs_sync_between_nodes() {
                self.needs_sync.store(true, Ordering::Relaxed);
            }
            Ok(is_locked)
        })
    }

    /// Returns true if data must be synced before an unlock, so that the next owner sees it.
    pub fn needs_sync(&self) -> bool {
        self.needs_sync.load(Ordering::Relaxed)
    }

    /// Returns true if `owner` holds a lock.
    pub fn has_locks(&self, owner: LockOwner) -> bool {
        self.owners.lock().get(&owner).is_some_and(|entry| entry.has_locks.load(Ordering::Relaxed))
    }

    /// Removes the locks of `owner` in `scope`.
    pub fn unlock(&self, owner: LockOwner, scope: LockScope) -> Result<()> {
        let (first, last) = SCOPES.of(scope)?;
        let Some(entry) = self.owners.lock().get(&owner).cloned() else { return Ok(()) };
        self.with_owner(entry, owner, |state| state.unlock(first, last))
    }

    /// Removes all locks of `owner`.
    pub fn release(&self, owner: LockOwner) -> Result<()> {
        self.unlock(owner, LockScope::Everything)
    }

    /// Removes all locks of all owners.
    pub fn release_all(&self) -> Result<()> {
        let owners: Vec<LockOwner> = self.owners.lock().keys().copied().collect();
        let mut released = Ok(());
        for owner in owners {
            released = released.and(self.release(owner));
        }
        released
    }

    /// Returns a lock of another owner that conflicts with the described one.
    pub fn conflicting(
        &self,
        container: &Container,
        owner: LockOwner,
        scope: LockScope,
        mode: LockMode,
    ) -> Result<Option<HeldLock>> {
        let (first, last) = SCOPES.of(scope)?;
        let found = self.with_owner(self.entry(owner), owner, |state| {
            state.conflicting(container, LockedRange { first, last, mode })
        })?;
        Ok(found.map(|found| HeldLock { scope: SCOPES.scope(found, scope), mode: found.mode }))
    }

    fn entry(&self, owner: LockOwner) -> Arc<Owner> {
        let new = || {
            let state = RankedMutex::new(Rank::LockOwner, OwnerState::default());
            Arc::new(Owner { state, has_locks: AtomicBool::new(false) })
        };
        Arc::clone(self.owners.lock().entry(owner).or_insert_with(new))
    }

    /// Calls `act` with the state of an owner, and then forgets an owner without locks.
    fn with_owner<T>(
        &self,
        entry: Arc<Owner>,
        owner: LockOwner,
        act: impl FnOnce(&mut OwnerState) -> Result<T>,
    ) -> Result<T> {
        let result = {
            let mut state = entry.state.lock();
            let result = act(&mut state);
            if state.held.is_empty() {
                state.file = None;
            }
            entry.has_locks.store(!state.held.is_empty(), Ordering::Relaxed);
            result
        };
        let mut owners = self.owners.lock();
        let is_known = owners.get(&owner).is_some_and(|known| Arc::ptr_eq(known, &entry));
        // The two references are the reference in the table and `entry`. Only callers of this
        // method create others, while the table is locked.
        if is_known && Arc::strong_count(&entry) == 2 && !entry.has_locks.load(Ordering::Relaxed) {
            owners.remove(&owner);
        }
        result
    }
}

impl OwnerState {
    fn try_lock(&mut self, container: &Container, range: LockedRange) -> Result<bool> {
        for _ in 0..OPENS_MAX {
            let is_new = self.held.is_empty();
            let file = self.file(container)?;
            if range.mode == LockMode::Exclusive && !file.may_write {
                return Err(Error {
                    source: Some("an exclusive lock needs write permission for the file".into()),
                    ..Error::new(ErrorKind::Os(errno::EBADF), "lock", ACCESS)
                });
            }
            if !file.locks()?.try_lock(range)? {
                return Ok(false);
            }
            // Root replaces `access` when it changes the owner, but not while a process holds a
            // lock. So it can have been replaced only between the open and the first lock.
            if !is_new || file.is_current(&**container.dir()?)? {
                self.held.add(range.first, range.last);
                return Ok(true);
            }
            self.file = None;
        }
        Err(Error::new(ErrorKind::Busy, "lock", ACCESS))
    }

    fn unlock(&mut self, first: u64, last: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        // Closing the descriptor is not enough: Linux does not tell a FUSE server that a
        // description with locks was closed.
        file.locks()?.unlock(first, last)?;
        self.held.remove(first, last);
        Ok(())
    }

    fn conflicting(&mut self, container: &Container, range: LockedRange) -> Result<Option<LockedRange>> {
        // Locks are in the container.
        match container.only_object()? {
            Some(_) => Ok(None),
            None => self.file(container)?.locks()?.conflicting(range),
        }
    }

    /// Returns the owner's descriptor, which is opened if there is none.
    fn file(&mut self, container: &Container) -> Result<&LockFile> {
        if self.file.is_none() {
            self.file = Some(LockFile::open(&**container.dir_for_lock()?)?);
        }
        Ok(self.file.as_ref().expect("it was opened"))
    }
}
