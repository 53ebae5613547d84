//! Keeps log directories open. The limit of their number applies to all containers together.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lru::LruCache;
use quell_posix::WritableDir;

use crate::locks::{Rank, RankedMutex};

/// The largest number of log directories that stay open.
pub const LOG_DIRS_OPEN: NonZeroUsize = NonZeroUsize::new(128).expect("not zero");

/// Identifies one open container. Tickets are not reused, so a directory that was removed is never
/// mistaken for a new one.
pub type Ticket = u64;

/// The log directories that were used most recently.
pub struct LogDirCache {
    next: AtomicU64,
    open: RankedMutex<LruCache<(Ticket, u32), Arc<dyn WritableDir>>>,
}

impl Default for LogDirCache {
    fn default() -> LogDirCache {
        let open = RankedMutex::new(Rank::Leaf, LruCache::new(LOG_DIRS_OPEN));
        LogDirCache { next: AtomicU64::new(0), open }
    }
}

impl LogDirCache {
    pub fn ticket(&self) -> Ticket {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn get(&self, container: Ticket, number: u32) -> Option<Arc<dyn WritableDir>> {
        self.open.lock().get(&(container, number)).cloned()
    }

    pub fn put(&self, container: Ticket, number: u32, dir: Arc<dyn WritableDir>) {
        let evicted = self.open.lock().push((container, number), dir);
        drop(evicted); // without the lock: closing may be slow
    }

    pub fn forget(&self, container: Ticket, number: u32) {
        let dir = self.open.lock().pop(&(container, number));
        drop(dir);
    }

    /// Closes all directories of a container, when the container is closed.
    pub fn forget_all(&self, container: Ticket) {
        let mut open = self.open.lock();
        let keys: Vec<_> = open.iter().map(|(key, _)| *key).filter(|(of, _)| *of == container).collect();
        let closed: Vec<_> = keys.iter().filter_map(|key| open.pop(key)).collect();
        drop(open);
        drop(closed);
    }
}
