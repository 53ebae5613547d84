//! The storage of a simulated member. It survives the end of the member, which can be at any
//! commit, and it can be full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore, Value};
use quell_testkit::MemoryStore as MemoryDirs;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, Stamp};

use crate::chunks::{ChunkDir, ChunkState, Chunks, Space};

/// The storage that remains when a member ends.
pub struct Disk {
    pub store: Arc<MemoryStore>,
    pub chunks: MemoryDirs,
    pub is_full: Arc<AtomicBool>,
}

/// Whether the process of one start of a member still runs. After its end, the process cannot
/// change the disk.
#[derive(Default)]
pub struct Life {
    has_ended: AtomicBool,
    /// Ends the process after this number of commits, unless it is 0.
    commits_left: AtomicU64,
}

impl Life {
    pub fn is_alive(&self) -> bool {
        !self.has_ended.load(Ordering::Relaxed)
    }

    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub fn end_after_commits(&self, count: u64) {
        self.commits_left.store(count, Ordering::Relaxed);
    }

    fn check(&self) -> Result<()> {
        match self.is_alive() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Unavailable, "use a disk", "killed")),
        }
    }
}

impl Disk {
    pub fn new() -> Disk {
        Disk { store: Arc::default(), chunks: MemoryDirs::new(), is_full: Arc::default() }
    }

    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
        self.chunks.set_free_bytes(is_full.then_some(0));
    }

    /// Returns the storage for one start of the member.
    pub fn open(&self, life: &Arc<Life>) -> (Arc<dyn KeyValue>, Arc<dyn Chunks>) {
        let store = LivingStore {
            store: Arc::clone(&self.store),
            life: Arc::clone(life),
            is_full: Arc::clone(&self.is_full),
            commits: AtomicU64::new(0),
        };
        let chunks = LivingChunks { chunks: ChunkDir::new(self.chunks.root()), life: Arc::clone(life) };
        (Arc::new(store), Arc::new(chunks))
    }
}

struct LivingStore {
    store: Arc<MemoryStore>,
    life: Arc<Life>,
    is_full: Arc<AtomicBool>,
    commits: AtomicU64,
}

impl KeyValue for LivingStore {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.store.get(key)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.life.check()?;
        let number = self.commits.fetch_add(1, Ordering::Relaxed);
        // Batches that remove entries fit, because there is a reserve for them.
        if self.is_full.load(Ordering::Relaxed) && !number.is_multiple_of(3) {
            return Err(Error::new(ErrorKind::NoSpace, "commit", "simulated"));
        }
        self.store.commit(batch)?;
        let left = self.life.commits_left.load(Ordering::Relaxed);
        if left > 0 {
            self.life.commits_left.store(left - 1, Ordering::Relaxed);
            if left == 1 {
                self.life.end();
            }
        }
        Ok(())
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.store.scan(range, visit)
    }

    fn sync(&self) -> Result<()> {
        self.life.check()
    }

    fn size_bytes(&self) -> Result<u64> {
        self.store.size_bytes()
    }
}

struct LivingChunks {
    chunks: ChunkDir,
    life: Arc<Life>,
}

impl Chunks for LivingChunks {
    fn read(&self, id: FileId, into: &mut [u8], offset: u64) -> Result<usize> {
        self.chunks.read(id, into, offset)
    }

    fn write(&self, id: FileId, from: &[u8], offset: u64) -> Result<()> {
        self.life.check()?;
        self.chunks.write(id, from, offset)
    }

    fn truncate(&self, id: FileId, end: u64) -> Result<()> {
        self.life.check()?;
        self.chunks.truncate(id, end)
    }

    fn remove(&self, id: FileId) -> Result<()> {
        self.life.check()?;
        self.chunks.remove(id)
    }

    fn files(&self, visit: &mut dyn FnMut(FileId)) -> Result<()> {
        self.chunks.files(visit)
    }

    fn sync(&self, id: FileId) -> Result<()> {
        self.life.check()?;
        self.chunks.sync(id)
    }

    fn state(&self, id: FileId) -> Result<Option<ChunkState>> {
        self.chunks.state(id)
    }

    fn set_modified(&self, id: FileId, time: Stamp) -> Result<()> {
        self.life.check()?;
        self.chunks.set_modified(id, time)
    }

    fn next_data(&self, id: FileId, offset: u64) -> Result<Option<u64>> {
        self.chunks.next_data(id, offset)
    }

    fn space(&self) -> Result<Space> {
        self.chunks.space()
    }
}
