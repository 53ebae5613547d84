//! A backing directory that writes down every operation that would reach the file system.

use std::sync::{Arc, Mutex, PoisonError};

use quell_backing::{Dir, OpenFile, Stat};
use quell_fs::Result;

/// What was asked, of which path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    pub verb: &'static str,
    pub path: Vec<u8>,
}

/// A directory that passes everything on to another and remembers it.
#[derive(Clone)]
pub struct CountingDir {
    inner: Arc<dyn Dir>,
    path: Vec<u8>,
    log: Arc<Mutex<Vec<Operation>>>,
}

impl std::fmt::Debug for CountingDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountingDir").field("path", &self.path).finish_non_exhaustive()
    }
}

impl CountingDir {
    pub fn new(inner: Arc<dyn Dir>) -> CountingDir {
        CountingDir { inner, path: Vec::new(), log: Arc::default() }
    }

    /// All operations so far, below this directory and everywhere else in the tree, in their order.
    pub fn operations(&self) -> Vec<Operation> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The operations of which a client's cache answers none: entering a directory whose name was just
    /// asked for sends no request.
    pub fn uncached_operations(&self) -> usize {
        let log = self.operations();
        let known = |i: usize| {
            let asked = |earlier: &Operation| earlier.verb == "stat" && earlier.path == log[i].path;
            log[i].verb == "enter" && log[..i].iter().any(asked)
        };
        (0..log.len()).filter(|i| !known(*i)).count()
    }

    fn at(&self, verb: &'static str, name: &[u8]) -> Vec<u8> {
        let mut path = self.path.clone();
        if !path.is_empty() && !name.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let operation = Operation { verb, path: path.clone() };
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
        path
    }

    fn below(&self, path: Vec<u8>, inner: Arc<dyn Dir>) -> Arc<dyn Dir> {
        Arc::new(CountingDir { inner, path, log: self.log.clone() })
    }
}

impl Dir for CountingDir {
    fn stat_self(&self) -> Result<Stat> {
        self.at("stat", b"");
        self.inner.stat_self()
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        self.at("list", b"");
        self.inner.names()
    }

    fn stat(&self, name: &[u8]) -> Result<Stat> {
        self.at("stat", name);
        self.inner.stat(name)
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.at("read link", name);
        self.inner.read_link(name)
    }

    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.at("xattrs", name);
        self.inner.xattrs(name)
    }

    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        let path = self.at("open directory", name);
        Ok(self.below(path, self.inner.open_dir(name)?))
    }

    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        let path = self.at("enter", name);
        Ok(self.below(path, self.inner.enter(name)?))
    }

    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        self.at("open", name);
        self.inner.open_file(name)
    }
}
