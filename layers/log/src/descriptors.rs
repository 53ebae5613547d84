//! Data logs that are open for reading. Their number is bounded.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use quell_backing::OpenFile;
use quell_fs::Result;

use crate::container::{Container, Identity};

/// Identifies a data log among those of all containers. The container's number alone does not,
/// because numbers can be forged and are copied with a container.
type Key = (Identity, u64);

/// The number of data logs that are open at the same time.
const DATA_LOGS_OPEN: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// The data logs that were read most recently.
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
    /// Returns the data log of `writer`, and opens it if it is not open.
    pub fn data(&self, container: &Container, writer: u64) -> Result<Arc<dyn OpenFile>> {
        let key = (container.identity(), writer);
        if let Some(file) = self.lock().get(&key) {
            return Ok(Arc::clone(file));
        }
        // Outside the lock, because opening may be slow.
        let file: Arc<dyn OpenFile> = Arc::from(container.open_data(writer)?);
        let evicted = self.lock().push(key, Arc::clone(&file));
        drop(evicted);
        Ok(file)
    }

    /// Closes the data log of `writer`, which was removed.
    pub fn forget(&self, container: &Container, writer: u64) {
        let file = self.lock().pop(&(container.identity(), writer));
        drop(file);
    }

    /// Closes all data logs of a file that was removed and is no longer in use. An open log uses
    /// disk space even after it was unlinked.
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
