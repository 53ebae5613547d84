//! The snapshots whose entries clients request. Their tables stay open between two requests.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use lru::LruCache;
use quell_threads::lock;

use crate::batch::BatchRecord;
use crate::table_set::TableSet;

/// The largest number of snapshots that stay open.
const SNAPSHOTS_MAX: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// Open snapshots, by the numbers of their batches.
#[derive(Debug)]
pub(crate) struct OpenSnapshots(Mutex<LruCache<u64, TableSet>>);

impl Default for OpenSnapshots {
    fn default() -> OpenSnapshots {
        OpenSnapshots(Mutex::new(LruCache::new(SNAPSHOTS_MAX)))
    }
}

impl OpenSnapshots {
    /// Returns the snapshot of a batch, if it is open.
    pub(crate) fn get(&self, batch: u64) -> Option<TableSet> {
        lock(&self.0).get(&batch).cloned()
    }

    /// Closes the snapshot of a batch.
    pub(crate) fn remove(&self, batch: u64) {
        lock(&self.0).pop(&batch);
    }

    /// Adds the snapshot of a batch, and closes those of batches that have ended. `batches` has the
    /// records of all batches.
    pub(crate) fn insert(&self, batch: u64, tables: TableSet, batches: &[BatchRecord]) {
        let mut snapshots = lock(&self.0);
        for ended in batches.iter().filter(|batch| batch.state.has_ended()) {
            snapshots.pop(&ended.number);
        }
        snapshots.put(batch, tables);
    }
}
