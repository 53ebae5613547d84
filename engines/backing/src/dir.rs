//! The engine's trait: an open directory. Fakes and broken twins for tests are in testkit.

use std::sync::Arc;

use quell_fs::{File, Kind, Result, Time};

/// What the file system says of one name, without following it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u64,
    pub size_bytes: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub modified: Time,
    pub changed: Time,
    pub device: u64,
    pub inode: u64,
    /// Something is mounted here.
    pub mount_root: bool,
}

impl Stat {
    /// `None` where the file system answers with a kind that does not exist.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_mode(self.mode)
    }

    /// Equal for two names of one file and for nothing else.
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

/// An open directory.
pub trait Dir: Send + Sync {
    /// The directory's own metadata, as it is now.
    fn stat_self(&self) -> Result<Stat>;

    /// All names but `.` and `..`, in the file system's order.
    fn names(&self) -> Result<Vec<Vec<u8>>>;

    fn stat(&self, name: &[u8]) -> Result<Stat>;

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>>;

    /// The extended attributes of a child, or of the directory itself where `name` is empty, sorted by
    /// name. A file system that has none answers with an empty list.
    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// A child directory; a symbolic link is an error.
    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>>;

    /// A child directory that is only a starting point for names below it: cheaper than `open_dir`, as
    /// the file system's servers see no open, but it cannot be listed.
    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>>;

    /// A regular file for reading; anything else is an error, and is never waited for.
    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>>;
}

/// An open file of a backing directory.
pub trait OpenFile: File {
    /// Its metadata as it is now.
    fn stat(&self) -> Result<Stat>;
}
