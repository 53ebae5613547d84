//! The chunks of a member: one file of a local directory for each chunk.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;
use quell_posix::{WritableDir, WritableFile};
use quell_threads::lock;
use quell_vfs::{ErrorKind, Result};
use quell_wire::pool::FileId;

/// The number of chunks whose files are kept open.
const OPEN_CHUNKS_MAX: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// The space of one member, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// The size of the file system that has the chunks.
    pub total_bytes: u64,
    /// The free part.
    pub free_bytes: u64,
    /// The part that users other than root may use.
    pub available_bytes: u64,
    /// The number of the file system on its machine, as `st_dev` packs it.
    pub device: u64,
}

/// The storage of chunks. Any number of threads may use it.
pub trait Chunks: Send + Sync {
    /// Reads from a chunk and returns the number of bytes, which is less than asked for at the end
    /// of the chunk's data, and 0 for a chunk that does not exist.
    fn read(&self, id: FileId, chunk: u64, into: &mut [u8], offset: u32) -> Result<usize>;

    /// Writes to a chunk, which is created if it does not exist.
    fn write(&self, id: FileId, chunk: u64, from: &[u8], offset: u32) -> Result<()>;

    /// Cuts a chunk to at most this size, if it exists.
    fn cut(&self, id: FileId, chunk: u64, bytes_max: u32) -> Result<()>;

    /// Removes a chunk, if it exists.
    fn remove(&self, id: FileId, chunk: u64) -> Result<()>;

    /// Makes a chunk survive a power failure, if it exists.
    fn sync(&self, id: FileId, chunk: u64) -> Result<()>;

    /// Returns the space of the storage.
    fn space(&self) -> Result<Space>;
}

/// Chunks as files of one directory. The name of a file is the identifier of its file and the
/// number of the chunk, both hexadecimal, with a dot between them.
pub struct ChunkDir {
    dir: Arc<dyn WritableDir>,
    open: Mutex<LruCache<(FileId, u64), Arc<dyn WritableFile>>>,
}

impl std::fmt::Debug for ChunkDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkDir").finish_non_exhaustive()
    }
}

impl ChunkDir {
    /// Returns the chunks in this directory, which must contain nothing else.
    pub fn new(dir: Arc<dyn WritableDir>) -> ChunkDir {
        ChunkDir { dir, open: Mutex::new(LruCache::new(OPEN_CHUNKS_MAX)) }
    }

    /// Returns the open file of a chunk, or `None` if there is no such chunk.
    fn opened(&self, id: FileId, chunk: u64) -> Result<Option<Arc<dyn WritableFile>>> {
        if let Some(known) = lock(&self.open).get(&(id, chunk)) {
            return Ok(Some(Arc::clone(known)));
        }
        match self.dir.open_writable_file(&name(id, chunk)) {
            Ok(file) => Ok(Some(self.keep(id, chunk, file))),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn created(&self, id: FileId, chunk: u64) -> Result<Arc<dyn WritableFile>> {
        loop {
            if let Some(file) = self.opened(id, chunk)? {
                return Ok(file);
            }
            match self.dir.create_file(&name(id, chunk), 0o600) {
                Ok(file) => return Ok(self.keep(id, chunk, file)),
                // Another thread has created it.
                Err(error) if error.kind == ErrorKind::Exists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn keep(&self, id: FileId, chunk: u64, file: Box<dyn WritableFile>) -> Arc<dyn WritableFile> {
        let file: Arc<dyn WritableFile> = Arc::from(file);
        let evicted = lock(&self.open).push((id, chunk), Arc::clone(&file));
        // A file is closed after the lock is released.
        drop(evicted);
        file
    }
}

impl Chunks for ChunkDir {
    fn read(&self, id: FileId, chunk: u64, into: &mut [u8], offset: u32) -> Result<usize> {
        match self.opened(id, chunk)? {
            Some(file) => file.read_at(into, u64::from(offset)),
            None => Ok(0),
        }
    }

    fn write(&self, id: FileId, chunk: u64, from: &[u8], offset: u32) -> Result<()> {
        self.created(id, chunk)?.write_at(from, u64::from(offset))
    }

    fn cut(&self, id: FileId, chunk: u64, bytes_max: u32) -> Result<()> {
        let Some(file) = self.opened(id, chunk)? else { return Ok(()) };
        match file.stat()?.size_bytes > u64::from(bytes_max) {
            true => file.set_size(u64::from(bytes_max)),
            false => Ok(()),
        }
    }

    fn remove(&self, id: FileId, chunk: u64) -> Result<()> {
        let evicted = lock(&self.open).pop(&(id, chunk));
        drop(evicted);
        match self.dir.remove(&name(id, chunk)) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn sync(&self, id: FileId, chunk: u64) -> Result<()> {
        match self.opened(id, chunk)? {
            Some(file) => file.sync(),
            None => Ok(()),
        }
    }

    fn space(&self) -> Result<Space> {
        let space = self.dir.space()?;
        Ok(Space {
            total_bytes: space.total_bytes,
            free_bytes: space.free_bytes,
            available_bytes: space.available_bytes,
            device: self.dir.stat_self()?.identity().device,
        })
    }
}

fn name(id: FileId, chunk: u64) -> Vec<u8> {
    format!("{:x}.{chunk:x}", id.0).into_bytes()
}
