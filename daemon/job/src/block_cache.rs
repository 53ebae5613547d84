//! The shared blocks in the memory of a node, and the requests that wait for other blocks. This
//! module does no I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use lru::LruCache;
use quell_wire::job::SharedBlockId;

/// The memory that a block takes in addition to its content, so that the blocks of very small files
/// do not exceed the limit: the entry of the cache, its place in the hash table and the
/// `CachedBlock` take up to 130 bytes, and the allocator up to 31 bytes for each of three
/// allocations.
pub const BLOCK_OVERHEAD_BYTES: u64 = 256;

/// The bytes of a block, and their checksum.
#[derive(Debug, PartialEq, Eq)]
pub struct CachedBlock {
    pub bytes: Vec<u8>,
    /// Computed by the node that read the block from the file system.
    pub checksum: u64,
}

impl CachedBlock {
    /// Returns the memory that the block takes.
    fn memory_bytes(&self) -> u64 {
        self.bytes.len() as u64 + BLOCK_OVERHEAD_BYTES
    }
}

/// A cache of blocks, which removes the least recently used ones, and the requests of type `W` that
/// wait for blocks.
#[derive(Debug)]
pub struct BlockCache<W> {
    bytes_max: u64,
    bytes: u64,
    blocks: LruCache<SharedBlockId, Arc<CachedBlock>>,
    /// For each block that is being fetched, the requests that wait for it.
    waiting: HashMap<SharedBlockId, Vec<WaitingRequest<W>>>,
}

#[derive(Debug)]
struct WaitingRequest<W> {
    since: Instant,
    request: W,
}

/// The result of a request for a block.
#[derive(Debug)]
pub enum BlockLookup<W> {
    /// The block, for this request.
    Found(Arc<CachedBlock>, W),
    /// The request waits, and the caller must fetch the block.
    Missing,
    /// The request waits for a block that is being fetched.
    Pending,
}

impl<W> BlockCache<W> {
    /// Returns an empty cache. `bytes_max`: the most memory that its blocks may take.
    pub fn new(bytes_max: u64) -> BlockCache<W> {
        BlockCache { bytes_max, bytes: 0, blocks: LruCache::unbounded(), waiting: HashMap::new() }
    }

    /// Returns the memory that the blocks take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the most memory that the blocks may take.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Requests a block.
    pub fn request(&mut self, id: SharedBlockId, request: W, now: Instant) -> BlockLookup<W> {
        if let Some(block) = self.blocks.get(&id) {
            return BlockLookup::Found(block.clone(), request);
        }
        let waiting = WaitingRequest { since: now, request };
        if let Some(requests) = self.waiting.get_mut(&id) {
            requests.push(waiting);
            return BlockLookup::Pending;
        }
        self.waiting.insert(id, vec![waiting]);
        BlockLookup::Missing
    }

    /// Adds a block that was fetched; `None` if it could not be fetched. Returns the requests
    /// that wait for it.
    pub fn complete(&mut self, id: SharedBlockId, block: Option<&Arc<CachedBlock>>) -> Vec<W> {
        if let Some(block) = block {
            self.bytes += block.memory_bytes();
            if let Some(replaced) = self.blocks.put(id, block.clone()) {
                self.bytes -= replaced.memory_bytes();
            }
            while self.bytes > self.bytes_max
                && let Some((_, removed)) = self.blocks.pop_lru()
            {
                self.bytes -= removed.memory_bytes();
            }
        }
        self.waiting.remove(&id).into_iter().flatten().map(|waiting| waiting.request).collect()
    }

    /// Removes the blocks of a file.
    pub fn remove_file(&mut self, index: u32, entry: u32) {
        let is_of_file = |id: &SharedBlockId| (id.index, id.entry) == (index, entry);
        let ids: Vec<SharedBlockId> =
            self.blocks.iter().map(|(id, _)| *id).filter(|id| is_of_file(id)).collect();
        for removed in ids.iter().filter_map(|id| self.blocks.pop(id)).collect::<Vec<_>>() {
            self.bytes -= removed.memory_bytes();
        }
    }

    /// Removes and returns the requests that have begun to wait at a time for which `is_late`
    /// returns `true`. Their blocks are still being fetched.
    pub fn take_late(&mut self, is_late: impl Fn(Instant) -> bool) -> Vec<W> {
        let mut late = Vec::new();
        for requests in self.waiting.values_mut() {
            late.extend(requests.extract_if(.., |waiting| is_late(waiting.since)));
        }
        late.into_iter().map(|waiting| waiting.request).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(entry: u32, block: u64) -> SharedBlockId {
        SharedBlockId { index: 0, entry, block }
    }

    fn block(length: usize) -> Arc<CachedBlock> {
        Arc::new(CachedBlock { bytes: vec![7; length], checksum: 1 })
    }

    /// The memory of `count` blocks with `length` bytes.
    fn memory(count: u64, length: u64) -> u64 {
        count * (length + BLOCK_OVERHEAD_BYTES)
    }

    fn has(cache: &mut BlockCache<u32>, id: SharedBlockId) -> bool {
        cache.blocks.peek(&id).is_some()
    }

    #[test]
    fn requests_for_one_block_wait_for_one_answer() {
        let mut cache = BlockCache::new(memory(9, 100));
        let now = Instant::now();
        assert!(matches!(cache.request(id(1, 0), 1, now), BlockLookup::Missing));
        assert!(matches!(cache.request(id(1, 0), 2, now), BlockLookup::Pending));
        assert!(matches!(cache.request(id(1, 1), 3, now), BlockLookup::Missing));
        assert_eq!(cache.complete(id(1, 0), Some(&block(10))), [1, 2]);
        assert!(
            matches!(cache.request(id(1, 0), 4, now), BlockLookup::Found(found, 4) if found == block(10))
        );
        // A block that could not be fetched is fetched again by the next request.
        assert_eq!(cache.complete(id(1, 1), None), [3]);
        assert!(matches!(cache.request(id(1, 1), 5, now), BlockLookup::Missing));
    }

    #[test]
    fn the_least_recently_used_blocks_are_removed_beyond_the_limit() {
        let mut cache = BlockCache::new(memory(3, 10));
        for entry in 0..3 {
            cache.complete(id(entry, 0), Some(&block(10)));
        }
        assert!(matches!(cache.request(id(0, 0), 0, Instant::now()), BlockLookup::Found(..)));
        cache.complete(id(3, 0), Some(&block(10)));
        assert_eq!([0, 1, 2, 3].map(|entry| has(&mut cache, id(entry, 0))), [true, false, true, true]);
        // The same block again takes no further memory.
        cache.complete(id(3, 0), Some(&block(10)));
        assert_eq!(cache.bytes(), memory(3, 10));
        cache.complete(id(4, 0), Some(&block(memory(3, 10) as usize)));
        assert_eq!((cache.bytes(), has(&mut cache, id(4, 0))), (0, false), "larger than the limit");
    }

    #[test]
    fn blocks_of_very_small_files_do_not_exceed_the_limit() {
        let mut cache = BlockCache::<u32>::new(memory(9, 1));
        (0..1000).for_each(|entry| drop(cache.complete(id(entry, 0), Some(&block(1)))));
        assert_eq!((cache.bytes(), cache.blocks.len()), (memory(9, 1), 9));
    }

    #[test]
    fn the_blocks_of_a_changed_file_are_removed() {
        let mut cache = BlockCache::new(memory(9, 100));
        for at in [id(1, 0), id(1, 1), id(2, 0)] {
            cache.complete(at, Some(&block(10)));
        }
        cache.remove_file(1, 1);
        assert_eq!(cache.bytes(), memory(3, 10), "another file");
        cache.remove_file(0, 1);
        assert_eq!((cache.bytes(), has(&mut cache, id(2, 0))), (memory(1, 10), true));
    }

    #[test]
    fn a_late_request_can_be_repeated_and_waits_with_the_others() {
        let mut cache = BlockCache::new(memory(9, 100));
        let begun = Instant::now();
        let later = begun + Duration::from_secs(1);
        cache.request(id(1, 0), 1, begun);
        cache.request(id(1, 0), 2, later);
        assert_eq!(cache.take_late(|since| since < later), [1]);
        assert!(matches!(cache.request(id(1, 0), 1, later), BlockLookup::Pending));
        assert_eq!(cache.complete(id(1, 0), Some(&block(1))), [2, 1]);
        assert_eq!(cache.take_late(|_| true), Vec::<u32>::new());
    }
}
