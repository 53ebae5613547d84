//! Data logs that are open for reading: a bounded number of them, whatever the number of logs.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use quell_backing::OpenFile;
use quell_fs::Result;

use crate::container::{Container, Identity};

/// Names one data log of all containers: numbers can be forged, and are copied with a container.
type Key = (Identity, u64);

/// Data logs that are open at once.
const DATA_LOGS_OPEN: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// The logs that were read last.
pub struct Descriptors(Mutex<LruCache<Key, Arc<dyn OpenFile>>>);

impl std::fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptors").finish_non_exhaustive()
    }
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors(Mutex::new(LruCache::new(DATA_LOGS_OPEN)))
    }
}

impl Descriptors {
    /// The data log of `writer`, opened now if it is not among the last ones.
    pub fn data(&self, container: &Container, writer: u64) -> Result<Arc<dyn OpenFile>> {
        let key = (container.identity(), writer);
        if let Some(file) = self.lock().get(&key) {
            return Ok(Arc::clone(file));
        }
        // Outside the lock: opening may be slow.
        let file: Arc<dyn OpenFile> = Arc::from(container.open_data(writer)?);
        let evicted = self.lock().push(key, Arc::clone(&file));
        drop(evicted);
        Ok(file)
    }

    /// Closes what is open of a log that is removed.
    pub fn forget(&self, container: &Container, writer: u64) {
        let file = self.lock().pop(&(container.identity(), writer));
        drop(file);
    }

    /// Closes what is open of a file that nothing refers to any more: a log that was removed takes room as long as it is open.
    pub fn forget_file(&self, of: Identity) {
        let mut open = self.lock();
        let keys: Vec<Key> = open.iter().map(|(key, _)| *key).filter(|(file, _)| *file == of).collect();
        let closed: Vec<_> = keys.iter().filter_map(|key| open.pop(key)).collect();
        drop(open);
        drop(closed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LruCache<Key, Arc<dyn OpenFile>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
