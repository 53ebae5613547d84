//! Locks of names and nodes, which keep other operations from the names and nodes of an operation
//! while it waits for other members. They exist in memory only.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::lock::{Mutex, OwnedMutexGuard};
use quell_wire::pool::FileId;

use crate::sessions::Origin;

/// An object that an operation can lock. An operation that needs several locks takes them in the
/// order of the variants, and takes the lock of a second name only with [`LockTable::try_lock`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Lock {
    /// A request of another member, so that a repetition waits for its end.
    Request(Origin),
    /// A name in a directory, whether an entry with this name exists or not.
    Name(FileId, Vec<u8>),
    /// The size and the chunks of a file.
    Size(FileId),
}

type Table = Rc<RefCell<HashMap<Lock, Arc<Mutex<()>>>>>;

/// The locks of one member.
#[derive(Default)]
pub struct LockTable(Table);

/// A lock that is held until this value is dropped.
pub struct HeldLock {
    table: Table,
    lock: Lock,
    guard: Option<OwnedMutexGuard<()>>,
}

impl LockTable {
    /// Waits until the lock is free and takes it.
    pub async fn lock(&self, lock: Lock) -> HeldLock {
        let mutex = Arc::clone(self.0.borrow_mut().entry(lock.clone()).or_default());
        self.held(lock, mutex.lock_owned().await)
    }

    /// Takes the lock, or returns `None` if another operation has it.
    pub fn try_lock(&self, lock: Lock) -> Option<HeldLock> {
        let mutex = Arc::clone(self.0.borrow_mut().entry(lock.clone()).or_default());
        let guard = mutex.try_lock_owned()?;
        Some(self.held(lock, guard))
    }

    /// Returns whether no lock is held.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        self.0.borrow().is_empty()
    }

    fn held(&self, lock: Lock, guard: OwnedMutexGuard<()>) -> HeldLock {
        HeldLock { table: Rc::clone(&self.0), lock, guard: Some(guard) }
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // Wakes the next operation, which has its own reference to the mutex.
        self.guard = None;
        let mut table = self.table.borrow_mut();
        if table.get(&self.lock).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            table.remove(&self.lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_executor::block_on;
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_lock_is_granted_to_one_operation_after_the_other_and_then_forgotten() {
        let table = LockTable::default();
        let name = Lock::Name(FileId(1), b"a".to_vec());
        let first = block_on(table.lock(name.clone()));
        assert!(table.try_lock(name.clone()).is_none());
        let mut second = Box::pin(table.lock(name.clone()));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(table.try_lock(Lock::Size(FileId(1))).is_some());
        drop(first);
        let second = block_on(second);
        assert!(table.try_lock(name).is_none());
        drop(second);
        assert!(table.0.borrow().is_empty());
    }
}
