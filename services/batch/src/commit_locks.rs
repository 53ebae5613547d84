//! The locks of the threads of a process that commit or abort batches: one thread at a time has the
//! lock of a batch.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex};

use quell_threads::{lock, wait_while};

/// The batches that are being committed or aborted.
#[derive(Debug, Default)]
pub(crate) struct CommitLocks {
    locked: Mutex<HashSet<u64>>,
    released: Condvar,
}

/// The lock of a batch. It is released when this value is dropped.
#[derive(Debug)]
pub struct CommitGuard<'a> {
    locks: &'a CommitLocks,
    batch: u64,
}

impl CommitLocks {
    /// Waits until no other thread has the lock of a batch, and takes it.
    pub(crate) fn lock(&self, batch: u64) -> CommitGuard<'_> {
        let is_locked = |locked: &mut HashSet<u64>| locked.contains(&batch);
        wait_while(&self.released, lock(&self.locked), is_locked).insert(batch);
        CommitGuard { locks: self, batch }
    }

    /// Takes the lock of a batch, or returns `None` if another thread has it.
    pub(crate) fn try_lock(&self, batch: u64) -> Option<CommitGuard<'_>> {
        // The guard must not exist if the lock is not taken, because its drop releases the lock.
        let is_taken = lock(&self.locked).insert(batch);
        is_taken.then(|| CommitGuard { locks: self, batch })
    }
}

impl CommitGuard<'_> {
    /// Returns the number of the batch.
    pub fn batch(&self) -> u64 {
        self.batch
    }
}

impl Drop for CommitGuard<'_> {
    fn drop(&mut self) {
        lock(&self.locks.locked).remove(&self.batch);
        self.locks.released.notify_all();
    }
}
