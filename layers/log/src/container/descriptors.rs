//! Data logs that are open for reading. Their number is bounded.

use std::num::NonZeroUsize;
use std::sync::{Arc, MutexGuard};

use lru::LruCache;
use quell_posix::OpenFile;
use quell_vfs::Result;

use crate::container::directory::{Container, ContainerIdentity};
use crate::locks::{Rank, RankedGuard, RankedMutex};

/// Identifies a data log among the data logs of all containers. The number of the container would
/// not be sufficient, because it can be forged, and a copy of a container has the same number.
type Key = (ContainerIdentity, u64);

/// The largest number of data logs that are open at the same time.
const DATA_LOGS_OPEN: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// An open data log.
struct Kept {
    file: Arc<dyn OpenFile>,
    /// The data log was read since the last call of `close_idle`.
    is_recent: bool,
}

/// The data logs that were read most recently.
pub struct Descriptors(RankedMutex<LruCache<Key, Kept>>);

impl std::fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptors").finish_non_exhaustive()
    }
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors(RankedMutex::new(Rank::Leaf, LruCache::new(DATA_LOGS_OPEN)))
    }
}

impl Descriptors {
    /// Returns the data log of `writer`, and opens it if it is not open.
    pub fn data(&self, container: &Container, writer: u64) -> Result<Arc<dyn OpenFile>> {
        let key = (container.identity(), writer);
        if let Some(kept) = self.lock().get_mut(&key) {
            kept.is_recent = true;
            return Ok(Arc::clone(&kept.file));
        }
        // Opened without the lock, because opening may be slow.
        let file = container.open_data(writer)?;
        let kept = Kept { file: Arc::clone(&file), is_recent: true };
        let evicted = self.lock().push(key, kept);
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
    pub fn forget_file(&self, of: ContainerIdentity) {
        self.close_if(|(file, _), _| *file == of);
    }

    /// Closes data logs that were not read since the last call, except those of files for which
    /// `is_in_use` returns true. Another mount may have removed these data logs, and does not
    /// notify this mount.
    pub fn close_idle(&self, is_in_use: impl Fn(&ContainerIdentity) -> bool) {
        self.close_if(|(file, _), kept| !std::mem::take(&mut kept.is_recent) && !is_in_use(file));
    }

    fn close_if(&self, is_closed: impl Fn(&Key, &mut Kept) -> bool) {
        let mut open = self.lock();
        let keys: Vec<Key> =
            open.iter_mut().filter_map(|(key, kept)| is_closed(key, kept).then_some(*key)).collect();
        let closed: Vec<_> = keys.iter().filter_map(|key| open.pop(key)).collect();
        // Closed without the lock, because closing may be slow.
        drop(open);
        drop(closed);
    }

    fn lock(&self) -> RankedGuard<MutexGuard<'_, LruCache<Key, Kept>>> {
        self.0.lock()
    }
}
