//! Open files: by handle if the kernel sends opens and closes, by node if it does not.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use fuser::FileHandle;
use lru::LruCache;
use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::{File, NodeId, Result};

/// A shared reference, so that a read may run during a close or an eviction. The file is closed
/// with the last reference.
pub(crate) type OpenFile = Arc<dyn File>;

/// The bit that is set in the numbers of handles for writing.
const WRITES: u64 = 1 << 63;

/// Files between OPEN and RELEASE. Handle numbers start at 1 and are reused.
pub(crate) struct Handles<F: ?Sized>(RwLock<Slots<F>>);

struct Slots<F: ?Sized> {
    files: Vec<Option<Arc<F>>>,
    free: Vec<usize>,
}

impl<F: ?Sized> Default for Handles<F> {
    fn default() -> Handles<F> {
        Handles(RwLock::new(Slots { files: Vec::new(), free: Vec::new() }))
    }
}

impl<F: ?Sized> Handles<F> {
    pub(crate) fn insert(&self, file: Arc<F>) -> FileHandle {
        let slots = &mut *write_lock(&self.0);
        let slot = match slots.free.pop() {
            Some(slot) => {
                slots.files[slot] = Some(file);
                slot
            }
            None => {
                slots.files.push(Some(file));
                slots.files.len() - 1
            }
        };
        FileHandle(slot as u64 + 1)
    }

    pub(crate) fn get(&self, handle: FileHandle) -> Option<Arc<F>> {
        let slots = read_lock(&self.0);
        slots.files.get(slot_of(handle)?)?.clone()
    }

    /// Returns the files that are open now.
    pub(crate) fn all(&self) -> Vec<Arc<F>> {
        let slots = read_lock(&self.0);
        slots.files.iter().flatten().cloned().collect()
    }

    /// Removes the file for the caller to drop. A close may be slow and is done outside the lock.
    pub(crate) fn remove(&self, handle: FileHandle) -> Option<Arc<F>> {
        let slots = &mut *write_lock(&self.0);
        let slot = slot_of(handle)?;
        let file = slots.files.get_mut(slot)?.take()?;
        slots.free.push(slot);
        Some(file)
    }
}

/// Marks the number of a handle for writing. The kernel sends the mark with each request.
pub(crate) fn mark_writing(handle: FileHandle) -> FileHandle {
    FileHandle(handle.0 | WRITES)
}

pub(crate) fn is_for_writing(handle: FileHandle) -> bool {
    handle.0 & WRITES != 0
}

fn slot_of(handle: FileHandle) -> Option<usize> {
    usize::try_from((handle.0 & !WRITES).checked_sub(1)?).ok()
}

impl<F: ?Sized> fmt::Debug for Handles<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handles").finish_non_exhaustive()
    }
}

/// The most recently read files, at most `limit`, kept open for further reads.
pub(crate) struct RecentFiles(Mutex<LruCache<NodeId, OpenFile>>);

impl RecentFiles {
    pub(crate) fn new(limit: NonZeroUsize) -> RecentFiles {
        RecentFiles(Mutex::new(LruCache::new(limit)))
    }

    /// Returns the open file of `node`, and opens it if it is not among the recent files. `open`
    /// runs outside the lock: two readers may both open a file; the reader that finishes later then
    /// uses the file of the other and drops its own.
    pub(crate) fn get(&self, node: NodeId, open: impl FnOnce() -> Result<Box<dyn File>>) -> Result<OpenFile> {
        if let Some(file) = self.lock().get(&node) {
            return Ok(Arc::clone(file));
        }
        let opened = OpenFile::from(open()?);
        let mut files = self.lock();
        if let Some(file) = files.get(&node) {
            return Ok(Arc::clone(file));
        }
        // The evicted file is dropped, and thus perhaps closed, outside the lock.
        let evicted = files.push(node, Arc::clone(&opened));
        drop(files);
        drop(evicted);
        Ok(opened)
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<NodeId, OpenFile>> {
        lock(&self.0)
    }
}

impl fmt::Debug for RecentFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecentFiles").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use quell_vfs::{Attributes, Error, ErrorKind, ReadAt};

    use super::*;

    struct Empty;

    impl File for Empty {
        fn attributes(&self) -> Result<Attributes> {
            Err(Error::new(ErrorKind::Unsupported, "read attributes", "a file of the test"))
        }
    }

    impl ReadAt for Empty {
        fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
            Ok(0)
        }
    }

    #[test]
    fn a_closed_handle_is_unknown_and_its_number_is_used_again() {
        let handles = Handles::<dyn File>::default();
        let (a, b) = (handles.insert(Arc::new(Empty)), handles.insert(Arc::new(Empty)));
        assert_ne!(a, b);
        assert!(handles.remove(a).is_some());
        assert!(handles.get(a).is_none() && handles.remove(a).is_none());
        assert!(handles.get(b).is_some() && handles.all().len() == 1);
        assert_eq!(handles.insert(Arc::new(Empty)), a);
        assert!(handles.get(FileHandle(0)).is_none());
        assert!(handles.get(FileHandle(u64::MAX)).is_none());
        assert!(handles.get(mark_writing(FileHandle(0))).is_none());
    }

    #[test]
    fn a_handle_for_writing_is_marked() {
        let handles = Handles::<dyn File>::default();
        let handle = handles.insert(Arc::new(Empty));
        let writing = mark_writing(handle);
        assert!(is_for_writing(writing) && !is_for_writing(handle));
        assert!(handles.get(writing).is_some() && handles.remove(writing).is_some());
        assert!(handles.get(handle).is_none());
    }

    #[test]
    fn the_least_recently_used_file_is_closed_first() {
        let recent = RecentFiles::new(NonZeroUsize::new(2).unwrap());
        let opened = std::cell::RefCell::new(Vec::new());
        let read = |n: u64| {
            recent
                .get(NodeId(n), || {
                    opened.borrow_mut().push(n);
                    Ok(Box::new(Empty))
                })
                .unwrap();
        };
        for n in [1, 2, 1, 3, 1, 2] {
            read(n);
        }
        assert_eq!(*opened.borrow(), [1, 2, 3, 2]);
    }
}
