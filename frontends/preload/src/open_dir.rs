//! An open virtual directory, and directory streams.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use libc::c_int;
use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::{Attributes, Change, Cursor, Kind, NodeId};

use crate::attributes::entry_type;
use crate::counters::Counter;
use crate::errno::{Errno, Outcome};
use crate::open_file::{changed_flags, kept_flags};
use crate::resolve::{Entry, LastLink, Resolved, resolve};
use crate::view::VirtualDir;

/// The number of entries that a stream reads at a time.
const BATCH_ENTRIES: usize = 512;

/// An open directory. It is found by its path at every use, so that it survives fork and exec.
pub struct OpenDir {
    pub dir: &'static VirtualDir,
    path: Mutex<Vec<u8>>,
    flags: AtomicI32,
}

impl OpenDir {
    pub fn new(dir: &'static VirtualDir, path: Vec<u8>, flags: c_int) -> OpenDir {
        let kept = kept_flags(flags) | flags & libc::O_DIRECTORY;
        OpenDir { dir, path: Mutex::new(path), flags: AtomicI32::new(kept) }
    }

    /// Returns the same directory for another process.
    pub fn reopened(&self) -> OpenDir {
        OpenDir::new(self.dir, self.path(), self.flags())
    }

    /// Returns the flags of open(2) that the directory has kept.
    pub fn flags(&self) -> c_int {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets the flags that F_SETFL can set.
    pub fn set_flags(&self, flags: c_int) {
        self.flags.store(changed_flags(self.flags(), flags), Ordering::Relaxed);
    }

    /// Returns the path below the virtual directory.
    pub fn path(&self) -> Vec<u8> {
        lock(&self.path).clone()
    }

    /// Records that the directory has another name.
    pub fn renamed(&self, path: Vec<u8>) {
        *lock(&self.path) = path;
    }

    /// Returns the entry of the directory, which keeps its node valid. Errors: ESTALE if the path
    /// does not lead to it any more.
    pub fn entry(&self) -> Outcome<Box<Entry>> {
        match resolve(self.dir, &self.path(), LastLink::Keep)? {
            Resolved::Virtual(entry) if entry.found.is_some() => Ok(entry),
            _ => Err(Errno(libc::ESTALE)),
        }
    }

    /// Returns the attributes.
    pub fn attributes(&self) -> Outcome<Attributes> {
        Ok(**self.entry()?.node()?)
    }

    /// Changes the attributes.
    pub fn change(&self, change: &Change) -> Outcome<()> {
        let entry = self.entry()?;
        entry.writable()?.change(&crate::view::context(), entry.node()?.node(), change)?;
        Ok(())
    }

    /// Makes the names of the directory durable.
    pub fn sync(&self) -> Outcome<()> {
        let entry = self.entry()?;
        Ok(entry.writable()?.sync_dir(&crate::view::context(), entry.node()?.node())?)
    }
}

/// One entry of a stream.
pub struct StreamEntry {
    pub name: Vec<u8>,
    pub node: NodeId,
    pub kind: Kind,
    /// The position after the entry: 1 after `.`, 2 after `..`, and the cursor plus 2 after others.
    pub next: u64,
}

/// A directory stream, as opendir(3) returns it.
pub struct Stream {
    /// The descriptor of the directory, which the stream owns.
    pub fd: c_int,
    state: Mutex<StreamState>,
}

struct StreamState {
    batch: std::vec::IntoIter<StreamEntry>,
    position: u64,
    is_at_end: bool,
    /// The entry that the last readdir(3) returned.
    current: Box<libc::dirent64>,
}

// SAFETY: the entry is a plain structure that is written only under the lock.
unsafe impl Send for StreamState {}

static STREAMS: RwLock<BTreeMap<usize, Arc<Stream>>> = RwLock::new(BTreeMap::new());
static STREAM_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a stream of this library is open.
pub fn has_streams() -> bool {
    STREAM_COUNT.load(Ordering::Relaxed) > 0
}

/// Returns the stream behind a `DIR *` of this library.
pub fn stream(pointer: *mut libc::DIR) -> Option<Arc<Stream>> {
    read_lock(&STREAMS).get(&(pointer as usize)).cloned()
}

/// Creates a stream for a descriptor, and returns its `DIR *`: the address of the stream, which the
/// program only passes back.
pub fn add_stream(fd: c_int) -> *mut libc::DIR {
    let stream = Arc::new(Stream::new(fd));
    let address = Arc::as_ptr(&stream) as usize;
    write_lock(&STREAMS).insert(address, stream);
    STREAM_COUNT.fetch_add(1, Ordering::Relaxed);
    address as *mut libc::DIR
}

/// Removes a stream.
pub fn remove_stream(pointer: *mut libc::DIR) -> Option<Arc<Stream>> {
    let removed = write_lock(&STREAMS).remove(&(pointer as usize))?;
    STREAM_COUNT.fetch_sub(1, Ordering::Relaxed);
    Some(removed)
}

/// Locks the streams for a fork.
pub fn lock_streams() -> std::sync::RwLockWriteGuard<'static, BTreeMap<usize, Arc<Stream>>> {
    write_lock(&STREAMS)
}

/// Replaces, in a forked child, the streams that another thread of the parent was using.
pub fn renew_streams(streams: &mut BTreeMap<usize, Arc<Stream>>) {
    for stream in streams.values_mut() {
        if matches!(stream.state.try_lock(), Err(std::sync::TryLockError::WouldBlock)) {
            let renewed = Arc::new(Stream::new(stream.fd));
            // The address of the stream stays in use as its `DIR *`.
            let _ = ManuallyDrop::new(std::mem::replace(stream, renewed));
        }
    }
}

impl Stream {
    fn new(fd: c_int) -> Stream {
        // SAFETY: the structure consists of integers, for which zero bytes are valid.
        let current = Box::new(unsafe { std::mem::zeroed::<libc::dirent64>() });
        let state = StreamState { batch: Vec::new().into_iter(), position: 0, is_at_end: false, current };
        Stream { fd, state: Mutex::new(state) }
    }

    /// Returns the next entry, or NULL at the end. It is valid until the next call for the stream.
    pub fn next(&self, dir: &OpenDir) -> Outcome<*mut libc::dirent64> {
        let mut state = lock(&self.state);
        if state.batch.len() == 0 && !state.is_at_end {
            let batch = read_batch(dir, state.position)?;
            state.is_at_end = batch.is_empty();
            state.batch = batch.into_iter();
        }
        let Some(entry) = state.batch.next() else { return Ok(std::ptr::null_mut()) };
        state.position = entry.next;
        let current = &mut *state.current;
        current.d_ino = dir.dir.identity(entry.node).inode;
        current.d_off = entry.next as i64;
        current.d_type = entry_type(entry.kind);
        current.d_reclen = size_of::<libc::dirent64>() as u16;
        let length = entry.name.len().min(current.d_name.len() - 1);
        for (to, from) in current.d_name.iter_mut().zip(&entry.name[..length]) {
            *to = *from as libc::c_char;
        }
        current.d_name[length] = 0;
        Ok(current)
    }

    /// Returns the position, for telldir(3).
    pub fn position(&self) -> u64 {
        lock(&self.state).position
    }

    /// Sets the position. 0 also makes changes of the directory visible.
    pub fn set_position(&self, position: u64) {
        let mut state = lock(&self.state);
        state.batch = Vec::new().into_iter();
        state.is_at_end = false;
        state.position = position;
    }
}

/// Reads entries after a position.
pub fn read_batch(dir: &OpenDir, position: u64) -> Outcome<Vec<StreamEntry>> {
    let directory = dir.entry()?;
    let (fs, attributes) = (directory.fs, **directory.node()?);
    dir.dir.count(Counter::Listings, 1);
    if attributes.kind != Kind::Dir {
        return Err(Errno(libc::ENOTDIR));
    }
    let mut entries = Vec::new();
    if position == 0 {
        entries.push(StreamEntry { name: b".".to_vec(), node: attributes.node, kind: Kind::Dir, next: 1 });
    }
    if position <= 1 {
        let node = fs.parent(attributes.node).unwrap_or(attributes.node);
        entries.push(StreamEntry { name: b"..".to_vec(), node, kind: Kind::Dir, next: 2 });
    }
    let context = crate::view::context();
    fs.list(&context, attributes.node, Cursor(position.saturating_sub(2)), &mut |entry| {
        entries.push(StreamEntry {
            name: entry.name.to_vec(),
            node: entry.node,
            kind: entry.kind,
            next: entry.next.0 + 2,
        });
        entries.len() < BATCH_ENTRIES
    })?;
    Ok(entries)
}
