//! The engine's trait: an open directory. Fakes and broken twins for tests are in testkit.

use std::any::Any;
use std::sync::Arc;

use quell_fs::{Change, File, Kind, Rename, Result, Space, Time};

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

    /// The same as this node last heard of it, without a request to a server of the file system.
    fn stat_self_cached(&self) -> Result<Stat> {
        self.stat_self()
    }

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

    /// Its POSIX access control list as `getxattr(2)` returns it; `None` where it has none.
    fn acl(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Bytes and size survive a loss of power, whoever wrote them: also of a file that is open for reading alone.
    fn sync(&self) -> Result<()>;

    /// Fills the pieces one after another from `offset` on, with one call where the engine can. Fewer bytes than
    /// asked only at the end of the file.
    fn read_pieces_at(&self, pieces: &mut [&mut [u8]], offset: u64) -> Result<usize> {
        let mut done = 0;
        for into in pieces {
            let n = self.read_at(into, offset + done as u64)?;
            done += n;
            if n < into.len() {
                break;
            }
        }
        Ok(done)
    }
}

/// An open directory whose content may be changed. What only reads a tree asks for a [`Dir`], which cannot.
///
/// Nothing here is tried again, and nothing is undone when a later step fails. Permissions are set exactly: the process's
/// mask does not count. A name is one component; anything else is `InvalidInput`.
pub trait WritableDir: Dir {
    /// A child directory; a symbolic link is an error.
    fn open_writable_dir(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>>;

    /// A child directory that is only a starting point for names below it: see [`Dir::enter`].
    fn enter_writable(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        self.open_writable_dir(name)
    }

    /// A regular file for reading and writing; anything else is an error, and is never waited for.
    fn open_writable_file(&self, name: &[u8]) -> Result<Box<dyn WritableFile>>;

    /// Makes a regular file, open for reading and writing. Errors: `Exists`.
    fn create_file(&self, name: &[u8], permissions: u32) -> Result<Box<dyn WritableFile>>;

    /// Where this directory passes its group on (the set-group-id bit), the new one does too, whatever `permissions`
    /// say. Errors: `Exists`.
    fn make_dir(&self, name: &[u8], permissions: u32) -> Result<()>;

    /// Errors: `Exists`.
    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()>;

    /// Removes a name that is no directory.
    fn remove(&self, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, name: &[u8]) -> Result<()>;

    /// Gives the child `from` the name `to` in `to_dir`, which must be of the same engine (`InvalidInput`); a directory
    /// cannot come below itself (`InvalidInput`). `Unsupported`: the file system cannot keep or exchange what has the name
    /// already; of a directory that would come below itself the kernel says the same there.
    fn rename(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8], how: Rename) -> Result<()>;

    /// Changes owners, permissions and time of a child, in this order, or of the directory itself where `name` is empty;
    /// a symbolic link's permissions cannot be changed (EOPNOTSUPP). A size is `InvalidInput`: that is the open file's. Of a
    /// file that was just made, [`WritableFile::change`] changes it for sure, and not what has its name by then.
    fn change(&self, name: &[u8], change: &Change) -> Result<()>;

    /// Names made, removed and renamed here survive a loss of power.
    fn sync(&self) -> Result<()>;

    fn space(&self) -> Result<Space>;

    /// For `rename`, which needs two directories of one engine.
    fn as_any(&self) -> &dyn Any;
}

/// An open file of a backing directory that may be written to.
pub trait WritableFile: OpenFile {
    /// Writes the pieces one after another, all of them, from `offset` on.
    fn write_pieces_at(&self, pieces: &[&[u8]], offset: u64) -> Result<()>;

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.write_pieces_at(&[from], offset)
    }

    fn set_size(&self, size_bytes: u64) -> Result<()>;

    /// Changes owners, permissions and time of this file, whatever name it has by now: see [`WritableDir::change`].
    fn change(&self, change: &Change) -> Result<()>;
}
