//! The chunks of a member: one local file for the chunks of each file of the pool.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;
use quell_posix::{WritableDir, WritableFile};
use quell_threads::lock;
use quell_vfs::{Change, ErrorKind, Result};
use quell_wire::pool::{FileId, Stamp};

/// The number of local files that are kept open.
const OPEN_FILES_MAX: NonZeroUsize = NonZeroUsize::new(512).unwrap();

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

/// The state of the chunks of a file on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkState {
    /// The offset in the file of the pool at which the data ends, in bytes.
    pub end: u64,
    /// The time of the last write.
    pub modified: Stamp,
    /// The time of the last change.
    pub changed: Stamp,
}

/// The storage of chunks. Any number of threads may use it. Offsets are those in the file of the
/// pool, in bytes.
pub trait Chunks: Send + Sync {
    /// Reads from the chunks of a file and returns the number of bytes, which is less than
    /// requested only at the end of the data. Ranges before the end that were not written are read
    /// as zeros.
    fn read(&self, id: FileId, into: &mut [u8], offset: u64) -> Result<usize>;

    /// Writes to the chunks of a file.
    fn write(&self, id: FileId, from: &[u8], offset: u64) -> Result<()>;

    /// Removes the data from `end` on.
    fn truncate(&self, id: FileId, end: u64) -> Result<()>;

    /// Removes the chunks of a file, if there are any.
    fn remove(&self, id: FileId) -> Result<()>;

    /// Calls `visit` for each file that has chunks here.
    fn files(&self, visit: &mut dyn FnMut(FileId)) -> Result<()>;

    /// Syncs the chunks of a file, so that a power failure does not lose them.
    fn sync(&self, id: FileId) -> Result<()>;

    /// Returns the state of the chunks of a file; `None` if there are none.
    fn state(&self, id: FileId) -> Result<Option<ChunkState>>;

    /// Sets the time of the last write, if there are chunks of the file.
    fn set_modified(&self, id: FileId, time: Stamp) -> Result<()>;

    /// Returns the space of the storage.
    fn space(&self) -> Result<Space>;
}

/// Chunks in the files of one directory. The name of a local file is the identifier of the file of
/// the pool. Ranges of other members are holes in it.
pub struct ChunkDir {
    dir: Arc<dyn WritableDir>,
    open: Mutex<LruCache<FileId, Arc<dyn WritableFile>>>,
}

impl std::fmt::Debug for ChunkDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkDir").finish_non_exhaustive()
    }
}

impl ChunkDir {
    /// Returns the chunks in this directory, which must contain nothing else.
    pub fn new(dir: Arc<dyn WritableDir>) -> ChunkDir {
        ChunkDir { dir, open: Mutex::new(LruCache::new(OPEN_FILES_MAX)) }
    }

    /// Returns the open local file, or `None` if there is none.
    fn opened(&self, id: FileId) -> Result<Option<Arc<dyn WritableFile>>> {
        if let Some(known) = lock(&self.open).get(&id) {
            return Ok(Some(Arc::clone(known)));
        }
        match self.dir.open_writable_file(&id.data_name()) {
            Ok(file) => Ok(Some(self.keep(id, file))),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn created(&self, id: FileId) -> Result<Arc<dyn WritableFile>> {
        loop {
            if let Some(file) = self.opened(id)? {
                return Ok(file);
            }
            match self.dir.create_file(&id.data_name(), 0o600) {
                Ok(file) => return Ok(self.keep(id, file)),
                // A client or another thread has created it.
                Err(error) if error.kind == ErrorKind::Exists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn keep(&self, id: FileId, file: Box<dyn WritableFile>) -> Arc<dyn WritableFile> {
        let file: Arc<dyn WritableFile> = Arc::from(file);
        let evicted = lock(&self.open).push(id, Arc::clone(&file));
        // A file is closed after the lock is released.
        drop(evicted);
        file
    }
}

impl Chunks for ChunkDir {
    fn read(&self, id: FileId, into: &mut [u8], offset: u64) -> Result<usize> {
        match self.opened(id)? {
            Some(file) => file.read_at(into, offset),
            None => Ok(0),
        }
    }

    fn write(&self, id: FileId, from: &[u8], offset: u64) -> Result<()> {
        self.created(id)?.write_at(from, offset)
    }

    fn truncate(&self, id: FileId, end: u64) -> Result<()> {
        let Some(file) = self.opened(id)? else { return Ok(()) };
        match file.stat()?.size_bytes > end {
            true => file.set_size(end),
            false => Ok(()),
        }
    }

    fn remove(&self, id: FileId) -> Result<()> {
        let evicted = lock(&self.open).pop(&id);
        drop(evicted);
        match self.dir.remove(&id.data_name()) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn files(&self, visit: &mut dyn FnMut(FileId)) -> Result<()> {
        let ids = self.dir.names()?.into_iter().filter_map(|name| FileId::from_data_name(&name));
        ids.for_each(visit);
        Ok(())
    }

    fn sync(&self, id: FileId) -> Result<()> {
        match self.opened(id)? {
            Some(file) => file.sync(),
            None => Ok(()),
        }
    }

    fn state(&self, id: FileId) -> Result<Option<ChunkState>> {
        let Some(file) = self.opened(id)? else { return Ok(None) };
        let found = file.stat()?;
        let (modified, changed) = (found.modified.into(), found.changed.into());
        Ok(Some(ChunkState { end: found.size_bytes, modified, changed }))
    }

    fn set_modified(&self, id: FileId, time: Stamp) -> Result<()> {
        match self.opened(id)? {
            Some(file) => file.change(&Change { modified: Some(time.into()), ..Change::default() }),
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
