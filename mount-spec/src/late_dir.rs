//! The root directory of a tree, opened at its first use. A program whose files are all in memory
//! sends no request to the tree's file system.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use quell_posix::{Dir, OpenFile, PosixDir, Stat};
use quell_vfs::{Error, ErrorKind, Kind, Result};

/// A directory at a path, with the attributes that another process has read.
pub struct LateDir {
    path: PathBuf,
    known: Stat,
    opened: OnceLock<PosixDir>,
}

impl LateDir {
    /// Returns the directory, which is not opened yet.
    pub fn new(path: &Path, known: Stat) -> LateDir {
        LateDir { path: path.into(), known, opened: OnceLock::new() }
    }

    /// Opens the directory. Errors: `Stale` if its identity differs from the identity in the known
    /// attributes.
    fn dir(&self) -> Result<&PosixDir> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = PosixDir::start(&self.path)?;
        if opened.stat_self()?.identity() != self.known.identity() {
            return Err(Error::new(ErrorKind::Stale, "open", self.path.as_os_str().as_encoded_bytes()));
        }
        Ok(self.opened.get_or_init(|| opened))
    }
}

impl Dir for LateDir {
    fn stat_self(&self) -> Result<Stat> {
        self.opened.get().map_or(Ok(self.known), Dir::stat_self)
    }

    fn stat_self_cached(&self) -> Result<Stat> {
        self.opened.get().map_or(Ok(self.known), Dir::stat_self_cached)
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        self.dir()?.names()
    }

    fn names_and_kinds(&self) -> Result<Vec<(Vec<u8>, Option<Kind>)>> {
        self.dir()?.names_and_kinds()
    }

    fn stat(&self, name: &[u8]) -> Result<Stat> {
        self.dir()?.stat(name)
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.dir()?.read_link(name)
    }

    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.dir()?.xattrs(name)
    }

    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        self.dir()?.open_dir(name)
    }

    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        self.dir()?.enter(name)
    }

    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        self.dir()?.open_file(name)
    }
}
