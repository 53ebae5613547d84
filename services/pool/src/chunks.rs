//! The chunks of a member, in local files.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;
use quell_posix::{Stat, WritableDir, WritableFile};
use quell_threads::lock;
use quell_vfs::{Change, ErrorKind, Result};
use quell_wire::pool::{
    DATA_FILES_MAX, FIRST_DATA_FILE, FileId, ONLY_DATA_FILE, Stamp, data_files, read_ahead, read_data_files,
};

/// The number of local files that are kept open.
const OPEN_FILES_MAX: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// The space of one member, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// The size of the file system that has the chunks.
    pub total_bytes: u64,
    /// The free space.
    pub free_bytes: u64,
    /// The free space that users other than root may use.
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

/// The storage of chunks. Any number of threads may use it. Offsets are offsets in the file of the
/// pool, in bytes.
pub trait Chunks: Send + Sync {
    /// Reads from the chunks of a file and returns the number of bytes. The number is less than
    /// requested at the end of the data, or if the rest of the range was never written. Other parts
    /// that were never written are read as zeros.
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

    /// Returns the offset of the first data of a file at or after `offset`; `None` if there is no
    /// data. Parts that were not written can count as data.
    fn next_data(&self, id: FileId, offset: u64) -> Result<Option<u64>>;

    /// Returns the space of the storage.
    fn space(&self) -> Result<Space>;
}

/// Chunks in the files of one directory, which are named by [`FileId::data_name`]. A local file has
/// holes in place of the ranges that are on other members or in other local files.
pub struct ChunkDir {
    dir: Arc<dyn WritableDir>,
    open: Mutex<LruCache<(FileId, usize), Arc<dyn WritableFile>>>,
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

    /// Returns an open local file, or `None` if there is none.
    fn opened(&self, id: FileId, number: usize) -> Result<Option<Arc<dyn WritableFile>>> {
        if let Some(known) = lock(&self.open).get(&(id, number)) {
            return Ok(Some(Arc::clone(known)));
        }
        match self.dir.open_writable_file(&id.data_name(number)) {
            Ok(file) => Ok(Some(self.keep((id, number), file))),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn created(&self, id: FileId, number: usize) -> Result<Arc<dyn WritableFile>> {
        loop {
            if let Some(file) = self.opened(id, number)? {
                return Ok(file);
            }
            if number > 0 {
                let first = self.created(id, 0)?;
                if !has_others(&first.stat()?) {
                    first.change(&Change { permissions: Some(FIRST_DATA_FILE), ..Change::default() })?;
                }
            }
            match self.dir.create_file(&id.data_name(number), ONLY_DATA_FILE) {
                Ok(file) => return Ok(self.keep((id, number), file)),
                // A client or another thread has created the file.
                Err(error) if error.kind == ErrorKind::Exists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn keep(&self, key: (FileId, usize), file: Box<dyn WritableFile>) -> Arc<dyn WritableFile> {
        file.expect_random_reads();
        let file: Arc<dyn WritableFile> = Arc::from(file);
        let evicted = lock(&self.open).push(key, Arc::clone(&file));
        // The evicted file is closed after the lock is released.
        drop(evicted);
        file
    }

    /// Calls `visit` for all local files of a file, with their attributes.
    fn each(&self, id: FileId, mut visit: impl FnMut(&dyn WritableFile, Stat) -> Result<()>) -> Result<()> {
        let Some(first) = self.opened(id, 0)? else { return Ok(()) };
        let found = first.stat()?;
        let others = if has_others(&found) { 1..DATA_FILES_MAX } else { 0..0 };
        visit(&*first, found)?;
        for number in others {
            if let Some(file) = self.opened(id, number)? {
                visit(&*file, file.stat()?)?;
            }
        }
        Ok(())
    }

    fn remove_file(&self, id: FileId, number: usize) -> Result<()> {
        let evicted = lock(&self.open).pop(&(id, number));
        drop(evicted);
        match self.dir.remove(&id.data_name(number)) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

/// Returns whether there may be other local files besides the first one, which has these
/// attributes.
fn has_others(first: &Stat) -> bool {
    first.mode & 0o777 == FIRST_DATA_FILE
}

impl Chunks for ChunkDir {
    fn read(&self, id: FileId, into: &mut [u8], offset: u64) -> Result<usize> {
        read_data_files(into, offset, |number, part, offset| match self.opened(id, number)? {
            Some(file) => {
                if let Some(bytes) = read_ahead(offset, part.len()) {
                    file.will_read(offset, bytes);
                }
                file.read_at(part, offset)
            }
            None => Ok(0),
        })
    }

    fn write(&self, id: FileId, from: &[u8], offset: u64) -> Result<()> {
        let mut rest = from;
        for (number, offset, bytes) in data_files(offset, from.len()) {
            let (part, after) = rest.split_at(bytes);
            self.created(id, number)?.write_at(part, offset)?;
            rest = after;
        }
        Ok(())
    }

    fn truncate(&self, id: FileId, end: u64) -> Result<()> {
        self.each(id, |file, found| match found.size_bytes > end {
            true => file.set_size(end),
            false => Ok(()),
        })
    }

    fn remove(&self, id: FileId) -> Result<()> {
        let first = match self.dir.stat(&id.data_name(0)) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        if has_others(&first) {
            (1..DATA_FILES_MAX).try_for_each(|number| self.remove_file(id, number))?;
        }
        // The first file is removed last, so that an interrupted removal can be repeated.
        self.remove_file(id, 0)
    }

    fn files(&self, visit: &mut dyn FnMut(FileId)) -> Result<()> {
        let ids = self.dir.names()?.into_iter().filter_map(|name| FileId::from_data_name(&name));
        ids.for_each(visit);
        Ok(())
    }

    fn sync(&self, id: FileId) -> Result<()> {
        self.each(id, |file, _| file.sync())
    }

    fn state(&self, id: FileId) -> Result<Option<ChunkState>> {
        let mut state: Option<ChunkState> = None;
        self.each(id, |_, found| {
            let (end, modified, changed) = (found.size_bytes, found.modified.into(), found.changed.into());
            // The local file that was changed last has the time of the last write. A client may
            // have set another time on all local files before.
            state = Some(match state {
                Some(known) if (known.changed, known.modified) >= (changed, modified) => {
                    ChunkState { end: known.end.max(end), ..known }
                }
                known => {
                    let end = known.map_or(end, |known| known.end.max(end));
                    ChunkState { end, modified, changed }
                }
            });
            Ok(())
        })?;
        Ok(state)
    }

    fn set_modified(&self, id: FileId, time: Stamp) -> Result<()> {
        let change = Change { modified: Some(time.into()), ..Change::default() };
        self.each(id, |file, _| file.change(&change))
    }

    fn next_data(&self, id: FileId, offset: u64) -> Result<Option<u64>> {
        let mut first: Option<u64> = None;
        self.each(id, |file, _| {
            if let Some((start, _)) = file.next_data(offset)? {
                first = Some(first.map_or(start, |first| first.min(start)));
            }
            Ok(())
        })?;
        Ok(first)
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

#[cfg(test)]
mod tests {
    use quell_testkit::MemoryStore as MemoryDirs;

    use super::*;

    const KIB_512: u64 = 512 << 10;
    const ID: FileId = FileId(5);

    fn names(dirs: &MemoryDirs) -> Vec<Vec<u8>> {
        let mut names = dirs.root().names().unwrap();
        names.sort_unstable();
        names
    }

    #[test]
    fn the_chunks_of_a_file_are_in_one_local_file_up_to_512_kib_and_in_several_after_that() {
        let dirs = MemoryDirs::new();
        let chunks = ChunkDir::new(dirs.root());
        assert_eq!(chunks.state(ID).unwrap(), None);
        chunks.write(ID, b"abcd", KIB_512 - 4).unwrap();
        assert_eq!(names(&dirs), [b"5".to_vec()]);
        chunks.write(ID, b"efghijkl", KIB_512 * 3 - 4).unwrap();
        assert_eq!(names(&dirs), [b"5".to_vec(), b"5.2".to_vec(), b"5.3".to_vec()]);
        // A second instance knows only the directory, as after the start of a daemon.
        for chunks in [chunks, ChunkDir::new(dirs.root())] {
            assert_eq!(chunks.state(ID).unwrap().unwrap().end, KIB_512 * 3 + 4);
            let mut into = [9; 20];
            assert_eq!(chunks.read(ID, &mut into, KIB_512 * 3 - 10).unwrap(), 14);
            assert_eq!(into[..14], *b"\0\0\0\0\0\0efghijkl");
            assert_eq!(chunks.read(ID, &mut into, KIB_512 - 2).unwrap(), 2);
            let mut files = Vec::new();
            chunks.files(&mut |id| files.push(id)).unwrap();
            assert_eq!(files, [ID]);
        }
        let chunks = ChunkDir::new(dirs.root());
        chunks.truncate(ID, KIB_512 * 3 - 2).unwrap();
        assert_eq!(chunks.state(ID).unwrap().unwrap().end, KIB_512 * 3 - 2);
        let mut into = [9; 8];
        assert_eq!(chunks.read(ID, &mut into, KIB_512 * 3 - 4).unwrap(), 2);
        assert_eq!(into[..2], *b"ef");
        chunks.remove(ID).unwrap();
        assert_eq!(names(&dirs), [b""; 0]);
        chunks.remove(ID).unwrap();
    }

    #[test]
    fn a_write_to_any_local_file_changes_the_time_that_was_set() {
        let dirs = MemoryDirs::new();
        let chunks = ChunkDir::new(dirs.root());
        chunks.write(ID, b"a", 0).unwrap();
        chunks.write(ID, b"a", KIB_512).unwrap();
        for time in [1, 1 << 33] {
            let time = Stamp { seconds: time, nanoseconds: 0 };
            chunks.set_modified(ID, time).unwrap();
            assert_eq!(chunks.state(ID).unwrap().unwrap().modified, time);
            chunks.write(ID, b"a", KIB_512).unwrap();
            assert_ne!(chunks.state(ID).unwrap().unwrap().modified, time);
        }
    }
}
