//! The traits of this crate: an open directory and an open file. Implementations for tests, in
//! memory and with faults, are in testkit.

use std::any::Any;
use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use quell_vfs::{
    Change, Error, ErrorKind, FileIdentity, FileState, Kind, LockMode, ReadAt, Rename, Result, Space, Time,
    errno,
};

/// The metadata of one name, without following symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// `st_mode`: kind and permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of hard links.
    pub nlink: u32,
    /// The device number of a device, as `st_rdev` packs it.
    pub rdev: u64,
    /// The size.
    pub size_bytes: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// The time of the last change of the data.
    pub modified: Time,
    /// The time of the last change of the data or metadata.
    pub changed: Time,
    /// The number of the file system, as `st_dev` packs it.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// The name is a mount point.
    pub mount_root: bool,
}

impl Stat {
    /// Returns the kind, or `None` if the file system reports an unknown kind.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_mode(self.mode)
    }

    /// Returns device and inode number, which are equal only for names of the same file.
    pub fn identity(&self) -> FileIdentity {
        FileIdentity { device: self.device, inode: self.inode }
    }

    /// Returns the state of the file.
    pub fn state(&self) -> FileState {
        let Stat { inode, nlink, size_bytes, modified, changed, .. } = *self;
        FileState { inode, nlink, size_bytes, modified, changed }
    }
}

/// An open directory.
pub trait Dir: Send + Sync {
    /// Returns the directory's current metadata.
    fn stat_self(&self) -> Result<Stat>;

    /// Returns the metadata that this node has cached, without a request to a file server.
    fn stat_self_cached(&self) -> Result<Stat> {
        self.stat_self()
    }

    /// Returns the descriptor. `None`: the implementation has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns all names except `.` and `..`, in the order of the file system.
    fn names(&self) -> Result<Vec<Vec<u8>>>;

    /// Returns all names as [`names`](Self::names) does, each with its kind if the listing contains
    /// it and it is a regular file, a directory or a symbolic link. `stat` returns the other kinds.
    fn names_and_kinds(&self) -> Result<Vec<(Vec<u8>, Option<Kind>)>> {
        Ok(self.names()?.into_iter().map(|name| (name, None)).collect())
    }

    /// Calls `visit` with each name, as [`names_and_kinds`](Self::names_and_kinds) returns it,
    /// until `visit` returns `false`. The memory use does not grow with the number of names.
    /// Another listing of this open directory waits until this one has ended.
    fn visit(&self, visit: &mut dyn FnMut(&[u8], Option<Kind>) -> bool) -> Result<()> {
        for (name, kind) in self.names_and_kinds()? {
            if !visit(&name, kind) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the metadata of a child, without following a link.
    fn stat(&self, name: &[u8]) -> Result<Stat>;

    /// Returns the metadata of a child that the file server has, without following a link.
    fn stat_from_server(&self, name: &[u8]) -> Result<Stat> {
        self.stat(name)
    }

    /// Returns the target of a symbolic link.
    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>>;

    /// Returns the extended attributes of a child, or of the directory itself if `name` is empty,
    /// sorted by name. The list is empty if the file system has no extended attributes.
    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Opens a child directory; a symbolic link is an error.
    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>>;

    /// Opens a child directory only as a starting point for names below it. This is cheaper than
    /// `open_dir`, because the file servers get no open, but the directory cannot be listed.
    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>>;

    /// Opens a regular file for reading. Any other kind of file is an error; the open never blocks.
    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>>;

    /// Does the same as [`open_file`](Dir::open_file), and returns the attributes of the opened
    /// file.
    fn open_file_and_stat(&self, name: &[u8]) -> Result<(Box<dyn OpenFile>, Stat)> {
        let file = self.open_file(name)?;
        let found = file.stat()?;
        Ok((file, found))
    }
}

/// An open file.
pub trait OpenFile: ReadAt {
    /// Returns the current metadata.
    fn stat(&self) -> Result<Stat>;

    /// Returns the metadata that the file server has. If it differs from the metadata that this
    /// node has cached, the node drops the cached data of the file.
    fn stat_from_server(&self) -> Result<Stat> {
        self.stat()
    }

    /// Returns whether the link count of this file becomes 0 when its last name is removed. Some
    /// file systems rename an open file instead of removing it.
    fn counts_removed_names(&self) -> bool {
        true
    }

    /// Returns the POSIX access control list as `getxattr(2)` does, or `None` if the file has none.
    fn acl(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Returns the descriptor. `None`: the implementation has none.
    fn into_descriptor(self: Box<Self>) -> Option<OwnedFd> {
        None
    }

    /// Returns the descriptor, which stays open. `None`: the implementation has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the first range at or after `offset` that has data, from its first byte to the byte
    /// after its last one; `None` if only a hole follows. An implementation that does not know its
    /// holes returns the whole rest of the file.
    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let size_bytes = self.stat()?.size_bytes;
        Ok((offset < size_bytes).then_some((offset, size_bytes)))
    }

    /// Makes data and size survive a power failure, including data written through other
    /// descriptors. Also possible if the file is open only for reading.
    fn sync(&self) -> Result<()>;

    /// Returns the locks of the file, or `None` if the implementation has none.
    fn locks(&self) -> Option<&dyn RangeLocks> {
        None
    }

    /// Reads from `offset` (bytes) into several consecutive buffers, with one call if the
    /// implementation can. Returns the number of bytes read, which is less than requested only at
    /// the end of the file.
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

/// The largest offset in fcntl(2). No file has a byte there, because its size would be larger than
/// the largest size.
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// A locked range of bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedRange {
    /// The first byte.
    pub first: u64,
    /// The last byte, at least `first` and at most [`OFFSET_MAX`].
    pub last: u64,
    /// The mode of the lock.
    pub mode: LockMode,
}

/// Locks of ranges of bytes. The owner of a lock is the open file; the locks end when it is
/// dropped.
///
/// Errors of all operations: `Os(ENOLCK)` if the file system has no locks, or if they are known to
/// hold on this node only.
pub trait RangeLocks {
    /// Locks a range, unless a lock of another open file conflicts with it; returns whether it is
    /// locked now. Never waits for the other lock. Locks of this open file in the range are
    /// replaced. Errors: `Os(EBADF)` for an exclusive lock of a file that is open for reading.
    fn try_lock(&self, range: LockedRange) -> Result<bool>;

    /// Removes the locks of this open file from a range of bytes, `last` included.
    fn unlock(&self, first: u64, last: u64) -> Result<()>;

    /// Returns a lock of another open file that conflicts with the described one.
    fn conflicting(&self, range: LockedRange) -> Result<Option<LockedRange>>;

    /// Returns whether data that one node has written to a file of this file system is visible on
    /// other nodes only after the writer has synced the file and the reader has opened it again. A
    /// lock of one file has no effect on the caches of other files.
    fn needs_sync_between_nodes(&self) -> bool;

    /// Returns whether it is certain, from the type of the file system, that locks hold between all
    /// nodes, and end when the process that holds them or its node has ended. `None` if this
    /// process cannot determine the type.
    fn are_reliable(&self) -> Option<bool>;

    /// Takes a lock as `try_lock` does, even if it may exclude only processes of this node.
    fn try_lock_on_node(&self, range: LockedRange) -> Result<bool>;

    /// Returns a lock as `conflicting` does, even if locks may hold on this node only.
    fn conflicting_on_node(&self, range: LockedRange) -> Result<Option<LockedRange>>;
}

/// The reason why [`WritableDir::change_of`] refuses a child.
pub(crate) const NOT_AN_OWNER: &str = "it does not belong to an expected user";

/// An open directory whose content may be changed. Code that only reads a tree takes a [`Dir`].
///
/// No operation is retried, and nothing is undone if a later step fails. Permissions are set
/// exactly; the umask of the process has no effect. A name is one component; anything else is
/// `InvalidInput`.
pub trait WritableDir: Dir {
    /// Opens a child directory; a symbolic link is an error.
    fn open_writable_dir(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>>;

    /// Opens a child directory only as a starting point for names below it: see [`Dir::enter`].
    fn enter_writable(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        self.open_writable_dir(name)
    }

    /// Opens a regular file for reading and writing. Any other kind of file is an error; the open
    /// never blocks.
    fn open_writable_file(&self, name: &[u8]) -> Result<Box<dyn WritableFile>>;

    /// Creates a regular file, open for reading and writing. Its permissions are `permissions`, and
    /// the permissions that another process has added meanwhile. Errors: `Exists`.
    fn create_file(&self, name: &[u8], permissions: u32) -> Result<Box<dyn WritableFile>>;

    /// Creates a regular file as [`create_file`](Self::create_file) does, but the umask of this
    /// process may have removed permissions. The caller reads the permissions, and adds the missing
    /// ones.
    fn create_file_with_umask(&self, name: &[u8], permissions: u32) -> Result<Box<dyn WritableFile>> {
        self.create_file(name, permissions)
    }

    /// Creates a directory. If this directory has the set-group-id bit, the new one gets it too,
    /// even if `permissions` does not have it. Errors: `Exists`.
    fn make_dir(&self, name: &[u8], permissions: u32) -> Result<()>;

    /// Creates a directory as `make_dir` does, and opens it.
    fn make_and_open_dir(&self, name: &[u8], permissions: u32) -> Result<Arc<dyn WritableDir>> {
        self.make_dir(name, permissions)?;
        self.open_writable_dir(name)
    }

    /// Creates a symbolic link. Errors: `Exists`.
    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()>;

    /// Removes a name that is not a directory.
    fn remove(&self, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, name: &[u8]) -> Result<()>;

    /// Renames the child `from` to `to` in `to_dir`, which must be of the same implementation
    /// (`InvalidInput` otherwise). A directory cannot be moved below itself (`InvalidInput`).
    /// `Unsupported`: the file system does not support `Rename::Keep` or `Rename::Exchange`. With
    /// these two a directory moved below itself also gives `Unsupported`, because the kernel
    /// returns the same error.
    fn rename(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8], how: Rename) -> Result<()>;

    /// Changes owners, permissions and time, in this order, of a child, or of the directory itself
    /// if `name` is empty. The permissions of a symbolic link cannot be changed (EOPNOTSUPP). A
    /// size is `InvalidInput`; use [`WritableFile::set_size`]. For a file that was just created,
    /// [`WritableFile::change`] is safer: the name may refer to another file meanwhile.
    fn change(&self, name: &[u8], change: &Change) -> Result<()>;

    /// Changes a child as [`change`](Self::change) does. If this directory belongs to root, the
    /// child must belong to one of `owners` (`Os(EPERM)` otherwise).
    fn change_of(&self, name: &[u8], owners: &[u32], change: &Change) -> Result<()> {
        if self.stat_self()?.uid == 0 && !owners.contains(&self.stat(name)?.uid) {
            return Err(Error {
                source: Some(NOT_AN_OWNER.into()),
                ..Error::new(ErrorKind::Os(errno::EPERM), "change", name)
            });
        }
        self.change(name, change)
    }

    /// Gives a file another name, which must not exist (`Exists`). A symbolic link is not followed.
    /// `Unsupported`: the implementation has no such links.
    fn link(&self, from: &[u8], _to_dir: &dyn WritableDir, _to: &[u8]) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "link", from))
    }

    /// Changes owners, permissions and time of a file that was opened in this directory, regardless
    /// of its current name, with the checks of [`change`](Self::change).
    fn change_open(&self, _file: &dyn OpenFile, _change: &Change) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "change", b"an open file"))
    }

    /// Sets an extended attribute of a child, or of the directory itself if `name` is empty, or
    /// removes it if `value` is `None`. A symbolic link is not followed. Errors: `Unsupported` if
    /// the file system has no such attributes, and for a directory that other users may change.
    fn set_xattr(&self, _name: &[u8], attribute: &[u8], _value: Option<&[u8]>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "set the extended attribute", attribute))
    }

    /// Makes names created, removed and renamed here survive a power failure.
    fn sync(&self) -> Result<()>;

    /// Returns the space of the file system.
    fn space(&self) -> Result<Space>;

    /// Returns the implementation, for `rename`, which needs two directories of the same
    /// implementation.
    fn as_any(&self) -> &dyn Any;
}

/// An open file that may be written to.
pub trait WritableFile: OpenFile {
    /// Writes all of several consecutive buffers from `offset` (bytes).
    fn write_pieces_at(&self, pieces: &[&[u8]], offset: u64) -> Result<()>;

    /// Writes all of a buffer at `offset` (bytes).
    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.write_pieces_at(&[from], offset)
    }

    /// Passes all written data to the file server, as close(2) does, so that other nodes can read
    /// it. The data need not survive a power failure.
    ///
    /// # Errors
    ///
    /// Some of the data may be lost. The success of a later call does not mean that it was written.
    fn write_back(&self) -> Result<()>;

    /// Truncates the file, or extends it with zeros.
    fn set_size(&self, size_bytes: u64) -> Result<()>;

    /// Asks the system to drop the clean pages of this range from its cache, so that the next read
    /// gets the data from the storage. The system may keep them.
    fn drop_cache(&self, _offset: u64, _length: NonZeroU64) -> Result<()> {
        Ok(())
    }

    /// Advises the system to read only the ranges from the storage that are requested, and the
    /// ranges of `will_read`. Without this advice, the system also reads the holes that follow in a
    /// sparse file into its cache, as zeros. It may ignore the advice.
    fn expect_random_reads(&self) {}

    /// Advises the system to read this range into its cache in advance, without a wait. It may
    /// ignore the advice.
    fn will_read(&self, _offset: u64, _length: NonZeroU64) {}

    /// Changes owners, permissions and time of this file, regardless of its current name: see
    /// [`WritableDir::change`].
    fn change(&self, change: &Change) -> Result<()>;
}
