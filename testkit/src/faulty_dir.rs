//! A directory with injected faults: errors, entries that disappear, listings that change while
//! they are read, short reads, delays. The failing operations and their faults depend only on a
//! seed and on the operation's kind and path, so a run can be repeated and does not depend on the
//! scheduling of threads.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_posix::{Dir, OpenFile, Stat};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, ReadAt, Result, errno};

use crate::Random;

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Every operation of one kind on one path fails with this error number.
    Error(i32),
    /// The name is listed but does not exist.
    Vanished,
    /// This many first listings of a directory lack a name or have one too many, and the times of
    /// the directory show the change.
    Unsettled(u32),
    /// A read returns fewer bytes than available.
    Torn,
    /// An operation is delayed.
    Slow,
}

impl Fault {
    /// One fault of each kind, and several error numbers.
    pub const ALL: [Fault; 8] = [
        Fault::Error(errno::EIO),
        Fault::Error(errno::EACCES),
        Fault::Error(errno::ESTALE),
        Fault::Vanished,
        Fault::Unsettled(1),
        Fault::Unsettled(5),
        Fault::Torn,
        Fault::Slow,
    ];
}

/// The faults to inject, and the paths where one occurred.
#[derive(Debug)]
pub struct Faults {
    seed: u64,
    /// The reciprocal of the share of operations that fail.
    one_in: usize,
    kinds: Vec<Fault>,
    affected: Mutex<BTreeSet<Vec<u8>>>,
    listings: Mutex<HashMap<Vec<u8>, u32>>,
}

impl Faults {
    /// Returns faults of these kinds that affect one in `one_in` operations.
    pub fn new(seed: u64, one_in: usize, kinds: &[Fault]) -> Arc<Faults> {
        let (affected, listings) = Default::default();
        Arc::new(Faults { seed, one_in, kinds: kinds.to_vec(), affected, listings })
    }

    /// Returns the paths on which an operation gave a wrong result.
    pub fn affected_paths(&self) -> BTreeSet<Vec<u8>> {
        lock(&self.affected).clone()
    }

    fn fault_for(&self, verb: &str, path: &[u8]) -> Option<Fault> {
        let mut hash = DefaultHasher::new();
        (self.seed, verb, path).hash(&mut hash);
        let mut random = Random::new(hash.finish());
        (!self.kinds.is_empty() && random.one_in(self.one_in)).then(|| *random.pick(&self.kinds))
    }

    fn record(&self, path: &[u8]) {
        lock(&self.affected).insert(path.to_vec());
    }

    /// Fails if a fault is due. Whether a name has vanished is the same for all operations.
    fn check(&self, verb: &'static str, path: &[u8]) -> Result<()> {
        if self.fault_for("name", path) == Some(Fault::Vanished) && !path.is_empty() {
            self.record(path);
            return Err(Error::new(ErrorKind::NotFound, verb, path));
        }
        match self.fault_for(verb, path) {
            Some(Fault::Error(number)) => {
                self.record(path);
                Err(Error::new(ErrorKind::from_errno(number), verb, path))
            }
            Some(Fault::Slow) => {
                std::thread::sleep(Duration::from_micros(100));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of earlier listings of the directory, at most the number of wrong
    /// listings, and the number of wrong listings.
    fn unsettled(&self, path: &[u8]) -> (u32, u32) {
        let Some(Fault::Unsettled(until)) = self.fault_for("settle", path) else { return (0, 0) };
        let listings = lock(&self.listings);
        (listings.get(path).copied().unwrap_or(0).min(until), until)
    }
}

/// A directory with faults.
#[derive(Clone)]
pub struct FaultyDir {
    inner: Arc<dyn Dir>,
    path: Vec<u8>,
    faults: Arc<Faults>,
}

impl std::fmt::Debug for FaultyDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyDir").field("path", &self.path).finish_non_exhaustive()
    }
}

impl FaultyDir {
    /// Returns `inner` with faults.
    pub fn new(inner: Arc<dyn Dir>, faults: Arc<Faults>) -> FaultyDir {
        FaultyDir { inner, path: Vec::new(), faults }
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        match (self.path.as_slice(), name) {
            (path, b"") => path.to_vec(),
            (b"", name) => name.to_vec(),
            (path, name) => [path, b"/", name].concat(),
        }
    }

    fn checked(&self, verb: &'static str, name: &[u8]) -> Result<Vec<u8>> {
        let path = self.path_of(name);
        self.faults.check(verb, &path)?;
        Ok(path)
    }

    /// Adjusts the times of a directory, which must show every change of its listing.
    fn shown(&self, path: &[u8], mut stat: Stat) -> Stat {
        stat.changed.nanoseconds = (stat.changed.nanoseconds + self.faults.unsettled(path).0) % 1_000_000_000;
        stat
    }
}

impl Dir for FaultyDir {
    fn stat_self(&self) -> Result<Stat> {
        let path = self.checked("stat itself", b"")?;
        Ok(self.shown(&path, self.inner.stat_self()?))
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let path = self.checked("list", b"")?;
        let mut names = self.inner.names()?;
        let (before, until) = self.faults.unsettled(&path);
        if before < until {
            *lock(&self.faults.listings).entry(path.clone()).or_default() += 1;
            self.faults.record(&path);
            if before % 2 == 0 && !names.is_empty() {
                names.pop();
            } else {
                names.push(b"\xfe a name that comes and goes".to_vec());
                self.faults.record(&self.path_of(b"\xfe a name that comes and goes"));
            }
        }
        Ok(names)
    }

    fn stat(&self, name: &[u8]) -> Result<Stat> {
        let path = self.checked("stat", name)?;
        Ok(self.shown(&path, self.inner.stat(name)?))
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.checked("read link", name)?;
        self.inner.read_link(name)
    }

    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.checked("list attributes", name)?;
        self.inner.xattrs(name)
    }

    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        let path = self.checked("open directory", name)?;
        let inner = self.inner.open_dir(name)?;
        Ok(Arc::new(FaultyDir { inner, path, faults: self.faults.clone() }))
    }

    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        let path = self.checked("enter", name)?;
        let inner = self.inner.enter(name)?;
        Ok(Arc::new(FaultyDir { inner, path, faults: self.faults.clone() }))
    }

    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        let path = self.checked("open", name)?;
        let inner = self.inner.open_file(name)?;
        Ok(Box::new(FaultyFile { inner, path, faults: self.faults.clone() }))
    }
}

struct FaultyFile {
    inner: Box<dyn OpenFile>,
    path: Vec<u8>,
    faults: Arc<Faults>,
}

impl ReadAt for FaultyFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.faults.check("read", &self.path)?;
        let count = self.inner.read_at(into, offset)?;
        match self.faults.fault_for("read", &self.path) {
            Some(Fault::Torn) if count > 1 => {
                self.faults.record(&self.path);
                Ok(count / 2)
            }
            _ => Ok(count),
        }
    }
}

impl OpenFile for FaultyFile {
    fn stat(&self) -> Result<Stat> {
        self.faults.check("stat open file", &self.path)?;
        self.inner.stat()
    }

    fn sync(&self) -> Result<()> {
        self.faults.check("sync", &self.path)?;
        self.inner.sync()
    }
}
