//! A directory that records every operation that would reach the file system.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use quell_posix::{Dir, OpenFile, RangeLocks, Stat, WritableDir, WritableFile};
use quell_threads::lock;
use quell_vfs::{Change, Error, ErrorKind, Kind, ReadAt, Rename, Result, Space};

/// An operation and its path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    /// The name of the operation.
    pub verb: &'static str,
    /// The path below the directory that counts; empty for that directory itself.
    pub path: Vec<u8>,
}

/// Called before each operation, with its number, while no lock is held.
type Hook = Box<dyn Fn(usize, &Operation) + Send + Sync>;

#[derive(Default)]
struct Log {
    operations: Mutex<Vec<Operation>>,
    hook: Option<Hook>,
}

fn record(log: &Log, verb: &'static str, path: &[u8]) {
    let operation = Operation { verb, path: path.to_vec() };
    let number = {
        let mut operations = lock(&log.operations);
        operations.push(operation.clone());
        operations.len() - 1
    };
    if let Some(hook) = &log.hook {
        hook(number, &operation);
    }
}

/// A directory that passes all operations on to another one and records them. If the other
/// directory is a [`WritableDir`], this one is writable too, and also records the operations on
/// files opened for writing.
pub struct CountingDir<D: ?Sized = dyn Dir> {
    inner: Arc<D>,
    path: Vec<u8>,
    log: Arc<Log>,
}

impl<D: ?Sized> Clone for CountingDir<D> {
    fn clone(&self) -> CountingDir<D> {
        CountingDir { inner: self.inner.clone(), path: self.path.clone(), log: self.log.clone() }
    }
}

impl<D: ?Sized> std::fmt::Debug for CountingDir<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountingDir").field("path", &self.path).finish_non_exhaustive()
    }
}

impl<D: ?Sized> CountingDir<D> {
    /// Returns a directory that has counted nothing yet.
    pub fn new(inner: Arc<D>) -> CountingDir<D> {
        CountingDir { inner, path: Vec::new(), log: Arc::default() }
    }

    /// Does the same as `new`, with a `hook` that is called before each operation reaches the file
    /// system, with the number of the operation. The hook may use the file system, so a test can
    /// interleave two users of it at every operation.
    pub fn with_hook(
        inner: Arc<D>,
        hook: impl Fn(usize, &Operation) + Send + Sync + 'static,
    ) -> CountingDir<D> {
        let log = Log { operations: Mutex::default(), hook: Some(Box::new(hook)) };
        CountingDir { inner, path: Vec::new(), log: Arc::new(log) }
    }

    /// Returns all operations so far in the whole tree, in their order.
    pub fn operations(&self) -> Vec<Operation> {
        lock(&self.log.operations).clone()
    }

    /// Returns the number of operations that a client's cache does not answer. Entering a directory
    /// after a stat of its name sends no request.
    pub fn uncached_operations(&self) -> usize {
        let log = self.operations();
        let is_cached = |i: usize| {
            let is_stat = |earlier: &Operation| earlier.verb == "stat" && earlier.path == log[i].path;
            log[i].verb == "enter" && log[..i].iter().any(is_stat)
        };
        (0..log.len()).filter(|i| !is_cached(*i)).count()
    }

    fn record_at(&self, verb: &'static str, name: &[u8]) -> Vec<u8> {
        let mut path = self.path.clone();
        if !path.is_empty() && !name.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        record(&self.log, verb, &path);
        path
    }

    fn below<E: ?Sized>(&self, path: Vec<u8>, inner: Arc<E>) -> Arc<CountingDir<E>> {
        Arc::new(CountingDir { inner, path, log: self.log.clone() })
    }

    fn file(&self, path: Vec<u8>, inner: Box<dyn WritableFile>) -> Box<dyn WritableFile> {
        Box::new(CountingFile { inner, path, log: self.log.clone() })
    }
}

impl<D: Dir + ?Sized> Dir for CountingDir<D> {
    fn stat_self(&self) -> Result<Stat> {
        self.record_at("stat", b"");
        self.inner.stat_self()
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        self.record_at("list", b"");
        self.inner.names()
    }

    fn names_and_kinds(&self) -> Result<Vec<(Vec<u8>, Option<Kind>)>> {
        self.record_at("list", b"");
        self.inner.names_and_kinds()
    }

    fn stat(&self, name: &[u8]) -> Result<Stat> {
        self.record_at("stat", name);
        self.inner.stat(name)
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.record_at("read link", name);
        self.inner.read_link(name)
    }

    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.record_at("xattrs", name);
        self.inner.xattrs(name)
    }

    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        let path = self.record_at("open directory", name);
        Ok(self.below(path, self.inner.open_dir(name)?))
    }

    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        let path = self.record_at("enter", name);
        Ok(self.below(path, self.inner.enter(name)?))
    }

    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        self.record_at("open", name);
        self.inner.open_file(name)
    }
}

impl WritableDir for CountingDir<dyn WritableDir> {
    fn open_writable_dir(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        let path = self.record_at("open directory", name);
        Ok(self.below(path, self.inner.open_writable_dir(name)?))
    }

    fn enter_writable(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        let path = self.record_at("enter", name);
        Ok(self.below(path, self.inner.enter_writable(name)?))
    }

    fn open_writable_file(&self, name: &[u8]) -> Result<Box<dyn WritableFile>> {
        let path = self.record_at("open for writing", name);
        Ok(self.file(path, self.inner.open_writable_file(name)?))
    }

    fn create_file(&self, name: &[u8], permissions: u32) -> Result<Box<dyn WritableFile>> {
        let path = self.record_at("create", name);
        Ok(self.file(path, self.inner.create_file(name, permissions)?))
    }

    fn make_dir(&self, name: &[u8], permissions: u32) -> Result<()> {
        self.record_at("make directory", name);
        self.inner.make_dir(name, permissions)
    }

    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        self.record_at("make link", name);
        self.inner.make_symlink(name, target)
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        self.record_at("remove", name);
        self.inner.remove(name)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.record_at("remove directory", name);
        self.inner.remove_dir(name)
    }

    fn rename(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8], how: Rename) -> Result<()> {
        self.record_at("rename", from);
        match to_dir.as_any().downcast_ref::<CountingDir<dyn WritableDir>>() {
            Some(to_dir) => self.inner.rename(from, &*to_dir.inner, to, how),
            None => {
                Err(Error::new(ErrorKind::InvalidInput, "rename into a directory of another backend", from))
            }
        }
    }

    fn link(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8]) -> Result<()> {
        self.record_at("link", from);
        match to_dir.as_any().downcast_ref::<CountingDir<dyn WritableDir>>() {
            Some(to_dir) => self.inner.link(from, &*to_dir.inner, to),
            None => {
                Err(Error::new(ErrorKind::InvalidInput, "link into a directory of another backend", from))
            }
        }
    }

    fn change(&self, name: &[u8], change: &Change) -> Result<()> {
        self.record_at("change", name);
        self.inner.change(name, change)
    }

    fn change_open(&self, file: &dyn OpenFile, change: &Change) -> Result<()> {
        self.record_at("change open file", b"");
        self.inner.change_open(file, change)
    }

    fn sync(&self) -> Result<()> {
        self.record_at("sync directory", b"");
        self.inner.sync()
    }

    fn space(&self) -> Result<Space> {
        self.record_at("space", b"");
        self.inner.space()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A file opened for writing.
struct CountingFile {
    inner: Box<dyn WritableFile>,
    path: Vec<u8>,
    log: Arc<Log>,
}

impl CountingFile {
    fn record(&self, verb: &'static str) {
        record(&self.log, verb, &self.path);
    }
}

impl ReadAt for CountingFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.record("read");
        self.inner.read_at(into, offset)
    }
}

impl OpenFile for CountingFile {
    fn stat(&self) -> Result<Stat> {
        self.record("stat open file");
        self.inner.stat()
    }

    fn sync(&self) -> Result<()> {
        self.record("sync");
        self.inner.sync()
    }

    fn counts_removed_names(&self) -> bool {
        self.inner.counts_removed_names()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    /// Locks are not counted.
    fn locks(&self) -> Option<&dyn RangeLocks> {
        self.inner.locks()
    }

    fn read_pieces_at(&self, pieces: &mut [&mut [u8]], offset: u64) -> Result<usize> {
        self.record("read");
        self.inner.read_pieces_at(pieces, offset)
    }
}

impl WritableFile for CountingFile {
    fn write_pieces_at(&self, pieces: &[&[u8]], offset: u64) -> Result<()> {
        self.record("write");
        self.inner.write_pieces_at(pieces, offset)
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.record("write");
        self.inner.write_at(from, offset)
    }

    fn write_back(&self) -> Result<()> {
        self.record("write back");
        self.inner.write_back()
    }

    fn set_size(&self, size_bytes: u64) -> Result<()> {
        self.record("set size");
        self.inner.set_size(size_bytes)
    }

    fn change(&self, change: &Change) -> Result<()> {
        self.record("change open file");
        self.inner.change(change)
    }
}
