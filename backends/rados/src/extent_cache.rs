//! The parts of extents that were read last, in memory.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;

use crate::format::extent::{GROUP_BYTES, PIECE_BYTES};

/// The number of shards. A thread holds the lock of one shard, to find or to insert one group.
const SHARDS: usize = 16;

/// A group of blocks of an extent: the number of the extent, the piece, and the group in the piece.
pub(crate) type GroupId = (u64, u32, u32);

/// Groups of blocks, with their checksums, as they are stored. An extent never changes, and its
/// number is not used again, so a group in memory always equals the stored one.
pub(crate) struct ExtentCache {
    shards: Vec<Mutex<LruCache<GroupId, Arc<Vec<u8>>>>>,
}

impl ExtentCache {
    /// Returns an empty cache of at most `bytes` bytes, but at least of a group in each shard.
    pub(crate) fn new(bytes: usize) -> ExtentCache {
        let groups = NonZeroUsize::new(bytes / GROUP_BYTES / SHARDS).unwrap_or(NonZeroUsize::MIN);
        ExtentCache { shards: (0..SHARDS).map(|_| Mutex::new(LruCache::new(groups))).collect() }
    }

    fn shard(&self, (number, piece, group): GroupId) -> &Mutex<LruCache<GroupId, Arc<Vec<u8>>>> {
        let hash = (number as usize).wrapping_mul(31) + piece as usize * 7 + group as usize;
        &self.shards[hash % SHARDS]
    }

    /// Returns a group, if it is in memory.
    pub(crate) fn get(&self, id: GroupId) -> Option<Arc<Vec<u8>>> {
        self.shard(id).lock().expect("no panic under the lock").get(&id).cloned()
    }

    /// Adds a group. If its list is full, the least recently used group of the list is removed.
    pub(crate) fn insert(&self, id: GroupId, bytes: Arc<Vec<u8>>) {
        // The removed group is freed after the lock was released.
        let _removed = self.shard(id).lock().expect("no panic under the lock").push(id, bytes);
    }

    /// Removes the groups of a piece of an extent.
    pub(crate) fn remove(&self, number: u64, piece: u32) {
        for group in 0..(PIECE_BYTES / GROUP_BYTES) as u32 {
            let id = (number, piece, group);
            let _removed = self.shard(id).lock().expect("no panic under the lock").pop(&id);
        }
    }
}
