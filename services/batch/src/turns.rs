//! Turns: one thread at a time commits or aborts a batch.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

use quell_threads::lock;

/// The batches that are being committed or aborted.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    taken: Mutex<HashSet<u64>>,
    ended: Condvar,
}

/// The right to commit or abort a batch. It ends when this value is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    batch: u64,
}

impl Turns {
    /// Waits until no other thread has the turn of a batch.
    pub(crate) fn take(&self, batch: u64) -> Turn<'_> {
        let is_taken = |taken: &mut HashSet<u64>| taken.contains(&batch);
        let waited = self.ended.wait_while(lock(&self.taken), is_taken);
        waited.unwrap_or_else(PoisonError::into_inner).insert(batch);
        Turn { turns: self, batch }
    }
}

impl Turn<'_> {
    /// Returns the number of the batch.
    pub fn batch(&self) -> u64 {
        self.batch
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.turns.taken).remove(&self.batch);
        self.turns.ended.notify_all();
    }
}
