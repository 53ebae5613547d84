//! A cache of the decompressed blocks of tables that were read last.

use std::sync::{Arc, Mutex};

use lru::LruCache;
use quell_threads::lock;
use quell_vfs::Result;

/// The largest total size of the blocks that are kept, in bytes.
const BYTES_MAX: usize = 32 << 20;

/// The number of a table in this process, and the number of a block in the table.
type BlockId = (u64, usize);

/// A cache of blocks, which all tables of a process share.
#[derive(Default)]
pub struct BlockCache {
    blocks: Mutex<Blocks>,
}

struct Blocks {
    blocks: LruCache<BlockId, Arc<Vec<u8>>>,
    bytes: usize,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks { blocks: LruCache::unbounded(), bytes: 0 }
    }
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache").field("bytes", &lock(&self.blocks).bytes).finish()
    }
}

impl BlockCache {
    /// Returns a block of a table. If it is not in the cache, `read` reads it.
    pub(super) fn get(
        &self,
        table: u64,
        block: usize,
        read: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Arc<Vec<u8>>> {
        if let Some(found) = lock(&self.blocks).blocks.get(&(table, block)) {
            return Ok(found.clone());
        }
        let found = Arc::new(read()?);
        let mut kept = lock(&self.blocks);
        kept.bytes += found.len();
        if let Some(replaced) = kept.blocks.put((table, block), found.clone()) {
            kept.bytes -= replaced.len();
        }
        while kept.bytes > BYTES_MAX
            && let Some((_, removed)) = kept.blocks.pop_lru()
        {
            kept.bytes -= removed.len();
        }
        Ok(found)
    }
}
