//! Open directories and files of a store.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use quell_posix::{Dir, LockedRange, OFFSET_MAX, OpenFile, RangeLocks, Stat, WritableDir, WritableFile};
use quell_vfs::{
    Change, Error, ErrorKind, Kind, LockMode, LockOwner, LockScope, ReadAt, Rename, Result, Space, TO_END,
    errno,
};

use super::inode::{Content, Number};
use super::state::{SharedState, State};
use crate::sparse::SparseBytes;

/// Keeps an inode while it is open.
#[derive(Debug)]
struct Handle {
    shared: SharedState,
    number: Number,
}

impl Handle {
    fn open(shared: &SharedState, state: &mut State, number: Number) -> Handle {
        state.inode_mut(number).handles += 1;
        Handle { shared: shared.clone(), number }
    }

    fn begin(&self, verb: &'static str, name: &[u8], writes: bool) -> Result<MutexGuard<'_, State>> {
        let mut state = self.shared.lock();
        state.begin(verb, self.number, name, writes)?;
        Ok(state)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.lock().closed(self.number);
    }
}

#[derive(Debug)]
pub(super) struct StoreDir {
    handle: Handle,
    /// Whether the directory can be listed: false if it was opened with `enter`.
    can_list: bool,
}

impl StoreDir {
    pub(super) fn open(shared: &SharedState, number: Number, can_list: bool) -> StoreDir {
        let mut state = shared.lock();
        StoreDir { handle: Handle::open(shared, &mut state, number), can_list }
    }

    fn child_dir(&self, verb: &'static str, name: &[u8], can_list: bool) -> Result<StoreDir> {
        let mut state = self.handle.begin(verb, name, false)?;
        let number = state.child(self.handle.number, name, "open")?;
        if !matches!(state.inode(number).content, Content::Dir(_)) {
            return Err(Error::new(ErrorKind::NotADirectory, "open", name));
        }
        Ok(StoreDir { handle: Handle::open(&self.handle.shared, &mut state, number), can_list })
    }

    /// Returns the number of a directory, which must be in the same store.
    fn of_this_store(&self, dir: &dyn WritableDir, verb: &'static str, name: &[u8]) -> Result<Number> {
        let dir = dir.as_any().downcast_ref::<StoreDir>();
        let dir = dir.filter(|dir| dir.handle.shared.is_same(&self.handle.shared));
        dir.map(|dir| dir.handle.number).ok_or_else(|| Error::new(ErrorKind::InvalidInput, verb, name))
    }

    fn file(&self, verb: &'static str, name: &[u8], writable: bool) -> Result<StoreFile> {
        let mut state = self.handle.begin(verb, name, writable)?;
        let number = state.file(self.handle.number, name)?;
        Ok(StoreFile::open(&self.handle.shared, &mut state, number, writable))
    }

    fn listable(&self, operation: &'static str) -> Result<()> {
        if self.can_list { Ok(()) } else { Err(Error::new(ErrorKind::Os(errno::EBADF), operation, b"")) }
    }
}

impl Dir for StoreDir {
    fn stat_self(&self) -> Result<Stat> {
        Ok(self.handle.begin("stat", b"", false)?.stat(self.handle.number))
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let state = self.handle.begin("list", b"", false)?;
        self.listable("list")?;
        // Not sorted, because file systems do not guarantee an order and callers must not rely on
        // one.
        Ok(state.names(self.handle.number).keys().rev().cloned().collect())
    }

    fn names_and_kinds(&self) -> Result<Vec<(Vec<u8>, Option<Kind>)>> {
        let state = self.handle.begin("list", b"", false)?;
        self.listable("list")?;
        let names = state.names(self.handle.number).iter().rev();
        Ok(names.map(|(name, number)| (name.clone(), state.stat(*number).kind())).collect())
    }

    fn stat(&self, name: &[u8]) -> Result<Stat> {
        let state = self.handle.begin("stat", name, false)?;
        let number = state.child(self.handle.number, name, "stat")?;
        Ok(self.handle.shared.stat(&state, number))
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        let state = self.handle.begin("read link", name, false)?;
        match &state.inode(state.child(self.handle.number, name, "read link")?).content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::new(ErrorKind::InvalidInput, "read link", name)),
        }
    }

    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let state = self.handle.begin("xattrs", name, false)?;
        state.child_or_self(self.handle.number, name, "list attributes")?;
        Ok(Vec::new())
    }

    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        Ok(Arc::new(self.child_dir("open directory", name, true)?))
    }

    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        Ok(Arc::new(self.child_dir("enter", name, false)?))
    }

    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        Ok(Box::new(self.file("open", name, false)?))
    }
}

impl WritableDir for StoreDir {
    fn open_writable_dir(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        Ok(Arc::new(self.child_dir("open directory", name, true)?))
    }

    fn enter_writable(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        Ok(Arc::new(self.child_dir("enter", name, false)?))
    }

    fn open_writable_file(&self, name: &[u8]) -> Result<Box<dyn WritableFile>> {
        Ok(Box::new(self.file("open for writing", name, true)?))
    }

    fn create_file(&self, name: &[u8], permissions: u32) -> Result<Box<dyn WritableFile>> {
        let mut state = self.handle.begin("create", name, true)?;
        let content = Content::File {
            bytes: SparseBytes::default(),
            synced: SparseBytes::default(),
            unsynced: Vec::new(),
        };
        let number = state.create(self.handle.number, name, content, permissions)?;
        Ok(Box::new(StoreFile::open(&self.handle.shared, &mut state, number, true)))
    }

    fn make_dir(&self, name: &[u8], permissions: u32) -> Result<()> {
        let mut state = self.handle.begin("make directory", name, true)?;
        state.create(self.handle.number, name, Content::Dir(BTreeMap::new()), permissions).map(drop)
    }

    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        let mut state = self.handle.begin("make link", name, true)?;
        state.create(self.handle.number, name, Content::Symlink(target.to_vec()), 0o777).map(drop)
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        self.handle.begin("remove", name, true)?.remove(self.handle.number, name, false)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.handle.begin("remove directory", name, true)?.remove(self.handle.number, name, true)
    }

    fn rename(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8], how: Rename) -> Result<()> {
        let to_dir = self.of_this_store(to_dir, "rename into a directory of another store", from)?;
        let mut state = self.handle.begin("rename", from, true)?;
        state.rename((self.handle.number, from), (to_dir, to), how)
    }

    fn link(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8]) -> Result<()> {
        let to_dir = self.of_this_store(to_dir, "link into a directory of another store", from)?;
        self.handle.begin("link", from, true)?.link((self.handle.number, from), (to_dir, to))
    }

    fn change(&self, name: &[u8], change: &Change) -> Result<()> {
        let mut state = self.handle.begin("change", name, true)?;
        let number = state.child_or_self(self.handle.number, name, "change")?;
        state.change(number, change)
    }

    fn change_open(&self, file: &dyn OpenFile, change: &Change) -> Result<()> {
        let number = file.stat()?.inode;
        self.handle.begin("change open file", b"", true)?.change(number, change)
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.handle.begin("sync directory", b"", false)?;
        state.sync_dir(self.handle.number);
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        Ok(self.handle.begin("space", b"", false)?.space())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct StoreFile {
    handle: Handle,
    /// The number of writeback failures that this descriptor has reported, or that it does not have
    /// to report.
    reported: AtomicU64,
    /// The owner of this open file's locks, which no other open file has.
    lock_owner: LockOwner,
    is_writable: bool,
}

impl StoreFile {
    /// Opens a file. As on Linux, the new descriptor also reports an earlier failure that no other
    /// descriptor has reported.
    fn open(shared: &SharedState, state: &mut State, number: Number, is_writable: bool) -> StoreFile {
        let inode = state.inode(number);
        let known = if inode.is_reported { 0 } else { inode.writeback_errors.min(1) };
        let reported = AtomicU64::new(inode.writeback_errors - known);
        state.lock_owners += 1;
        let lock_owner = LockOwner(state.lock_owners);
        StoreFile { handle: Handle::open(shared, state, number), reported, lock_owner, is_writable }
    }

    /// Makes the data that this node has written to the file visible on other nodes.
    fn written_back(&self, state: &mut State) {
        if self.handle.shared.delays_writes() {
            state.delayed.remove(&self.handle.number);
        }
    }
}

impl Drop for StoreFile {
    fn drop(&mut self) {
        let mut state = self.handle.shared.lock();
        if let Some(locks) = state.locks.get_mut(&self.handle.number) {
            locks.release((0, self.lock_owner));
        }
        if self.is_writable {
            self.written_back(&mut state);
        }
    }
}

/// Returns the scope for a range. The range of the largest offset alone stands for the whole file.
fn scope(first: u64, last: u64) -> LockScope {
    match (first, last) {
        (OFFSET_MAX, _) => LockScope::WholeFile,
        (0, OFFSET_MAX) => LockScope::Everything,
        (first, last) if last < OFFSET_MAX => LockScope::Bytes { first, last },
        _ => panic!("the log layer locks no such range"),
    }
}

impl RangeLocks for StoreFile {
    fn try_lock(&self, range: LockedRange) -> Result<bool> {
        let mut state = self.handle.begin("lock", b"", false)?;
        if range.mode == LockMode::Exclusive && !self.is_writable {
            return Err(Error::new(ErrorKind::Os(errno::EBADF), "lock", b""));
        }
        let locks = state.locks.entry(self.handle.number).or_default();
        locks.try_lock((0, self.lock_owner), scope(range.first, range.last), range.mode)
    }

    fn unlock(&self, first: u64, last: u64) -> Result<()> {
        let mut state = self.handle.begin("unlock", b"", false)?;
        let locks = state.locks.entry(self.handle.number).or_default();
        locks.unlock((0, self.lock_owner), scope(first, last))
    }

    fn needs_sync_between_nodes(&self) -> bool {
        self.handle.shared.delays_writes()
    }

    fn are_reliable(&self) -> Option<bool> {
        Some(self.handle.shared.lock().locks_are_reliable)
    }

    fn try_lock_on_node(&self, range: LockedRange) -> Result<bool> {
        self.try_lock(range)
    }

    fn conflicting_on_node(&self, range: LockedRange) -> Result<Option<LockedRange>> {
        self.conflicting(range)
    }

    fn conflicting(&self, range: LockedRange) -> Result<Option<LockedRange>> {
        let mut state = self.handle.begin("look for a lock", b"", false)?;
        let locks = state.locks.entry(self.handle.number).or_default();
        let scope = scope(range.first, range.last);
        let found = locks.conflicting((0, self.lock_owner), scope, range.mode)?;
        Ok(found.map(|found| {
            let (first, last) = match found.scope {
                LockScope::Bytes { first, last: TO_END } => (first, OFFSET_MAX - 1),
                LockScope::Bytes { first, last } => (first, last),
                LockScope::WholeFile | LockScope::Everything => (OFFSET_MAX, OFFSET_MAX),
            };
            LockedRange { first, last, mode: found.mode }
        }))
    }
}

impl ReadAt for StoreFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let state = self.handle.begin("read", b"", false)?;
        let size = self.handle.shared.stat(&state, self.handle.number).size_bytes;
        let visible = self.handle.shared.size_on_node(self.handle.number, size).saturating_sub(offset);
        let length = into.len().min(usize::try_from(visible).unwrap_or(usize::MAX));
        Ok(state.file_bytes(self.handle.number).read_at(&mut into[..length], offset))
    }
}

impl OpenFile for StoreFile {
    fn locks(&self) -> Option<&dyn RangeLocks> {
        Some(self)
    }

    fn stat(&self) -> Result<Stat> {
        let state = self.handle.begin("stat open file", b"", false)?;
        let found = self.handle.shared.stat(&state, self.handle.number);
        let size_bytes = self.handle.shared.size_on_node(self.handle.number, found.size_bytes);
        Ok(Stat { size_bytes, ..found })
    }

    fn counts_removed_names(&self) -> bool {
        self.handle.shared.lock().counts_removed_names
    }

    fn stat_from_server(&self) -> Result<Stat> {
        self.handle.shared.forget_size(self.handle.number);
        self.stat()
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.handle.shared.lock();
        let begun = state.begin("sync", self.handle.number, b"", false);
        match begun {
            Ok(()) => state.sync_file(self.handle.number),
            Err(_) => state.sync_failed(self.handle.number),
        }
        begun?;
        self.written_back(&mut state);
        let inode = state.inode_mut(self.handle.number);
        if self.reported.swap(inode.writeback_errors, Ordering::Relaxed) != inode.writeback_errors {
            inode.is_reported = true;
            return Err(Error::new(ErrorKind::Os(errno::EIO), "sync", inode.parent_and_name.1.clone()));
        }
        Ok(())
    }
}

impl WritableFile for StoreFile {
    fn write_pieces_at(&self, pieces: &[&[u8]], offset: u64) -> Result<()> {
        let number = self.handle.number;
        let from = pieces.concat();
        let mut state = self.handle.shared.lock();
        let begun = state.begin("write", number, b"", true);
        if begun.is_err() && state.gone.is_none() && !state.read_only {
            let count = state.random.below(from.len() + 1);
            let some = if state.random.one_in(2) { &from[..count] } else { &[] };
            // The first error is returned.
            let _ = state.write(number, some, offset);
        }
        begun?;
        self.handle.shared.forget_size(number);
        if self.handle.shared.delays_writes() {
            let before = state.stat(number).size_bytes;
            state.delayed.entry(number).or_insert(before);
        }
        state.write(number, &from, offset)
    }

    fn write_back(&self) -> Result<()> {
        let mut state = self.handle.shared.lock();
        let begun = state.begin("write back", self.handle.number, b"", false);
        match begun {
            Ok(()) => self.written_back(&mut state),
            Err(_) => state.sync_failed(self.handle.number),
        }
        begun
    }

    fn set_size(&self, size_bytes: u64) -> Result<()> {
        self.handle.shared.forget_size(self.handle.number);
        self.handle.begin("set size", b"", true)?.set_size(self.handle.number, size_bytes)
    }

    fn change(&self, change: &Change) -> Result<()> {
        self.handle.begin("change open file", b"", true)?.change(self.handle.number, change)
    }
}
