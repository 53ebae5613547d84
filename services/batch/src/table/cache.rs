//! The decompressed blocks of tables that were read last.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;
use quell_threads::lock;
use quell_vfs::Result;

/// The number of blocks that are kept: about 32 MiB.
const BLOCKS_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("a positive number");

/// The number of a table in this process, and the number of a block in the table.
type BlockId = (u64, usize);

/// A cache of blocks, which all tables of a process share.
pub struct BlockCache {
    blocks: Mutex<LruCache<BlockId, Arc<Vec<u8>>>>,
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache").field("blocks", &lock(&self.blocks).len()).finish()
    }
}

impl Default for BlockCache {
    fn default() -> BlockCache {
        BlockCache { blocks: Mutex::new(LruCache::new(BLOCKS_MAX)) }
    }
}

impl BlockCache {
    /// Returns a block of a table, which `read` reads if it is not kept.
    pub(super) fn get(
        &self,
        table: u64,
        block: usize,
        read: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Arc<Vec<u8>>> {
        if let Some(found) = lock(&self.blocks).get(&(table, block)) {
            return Ok(found.clone());
        }
        let found = Arc::new(read()?);
        lock(&self.blocks).put((table, block), found.clone());
        Ok(found)
    }
}
