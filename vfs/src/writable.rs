//! The contract for a writable tree: [`FileSystem`] with operations that change it. A read-only
//! implementation does not have these operations, so it does not have to refuse them.

use std::any::Any;

use crate::{Attributes, File, FileSystem, NodeId, Result, Time};

/// The user for whom an operation is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// How to open a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Open {
    pub read: bool,
    pub write: bool,
    /// Truncate the file to 0 bytes. Only with `write`.
    pub truncate: bool,
    /// The process that opens the file, as numbered on its node; 0 if it is not known. An
    /// implementation may keep the writes of different processes apart; it uses the number for
    /// nothing else.
    pub process: u32,
}

impl Open {
    pub const READ: Open = Open { read: true, write: false, truncate: false, process: 0 };
    pub const WRITE: Open = Open { read: false, write: true, truncate: false, process: 0 };
    pub const READ_WRITE: Open = Open { read: true, write: true, truncate: false, process: 0 };
}

/// The attributes of a new entry. In a directory with the set-group-id bit the entry gets the group
/// of the directory, and a new directory also gets the bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct New {
    /// The lower twelve bits of `st_mode`, after the caller's umask was applied.
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
}

/// A change of a node's attributes. A field that is `None` is left unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// The lower twelve bits of `st_mode`.
    pub permissions: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// For a regular file: its new size. Data beyond it is removed; a file that becomes longer is
    /// filled with zeros.
    pub size_bytes: Option<u64>,
    pub modified: Option<Time>,
}

/// What a rename does if an entry of the new name already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// It is replaced atomically, if neither of the two is a directory, or if both are and it is
    /// empty.
    Replace,
    /// The rename fails with `Exists`.
    Keep,
    /// The two entries exchange their names.
    Exchange,
}

/// The space of a file system, as `statfs` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Free for users other than root.
    pub available_bytes: u64,
    /// How many entries can exist, and how many more can be created; 0 and 0 if the file system
    /// does not report them.
    pub entries: u64,
    pub entries_free: u64,
}

/// A writable tree of files. Every method may be called from any number of threads.
///
/// Access is checked by the frontend (or by its kernel). The methods return only the errors of the
/// file system below.
///
/// **References to nodes.** Each `Attributes` that `lookup`, `create`, `make_dir` or `make_symlink`
/// returns is one reference to the node, and [`forget`](Self::forget) returns references. A node
/// with references keeps its number and its data, even if it is renamed or removed. A listing
/// creates no references.
pub trait Writable: FileSystem {
    /// Creates an empty regular file and opens it. The attributes are one reference. Errors:
    /// `Exists`.
    fn create(
        &self,
        dir: NodeId,
        name: &[u8],
        new: New,
        how: Open,
    ) -> Result<(Attributes, Box<dyn WritableFile>)>;

    /// Creates a directory. Errors: `Exists`.
    fn make_dir(&self, dir: NodeId, name: &[u8], new: New) -> Result<Attributes>;

    /// Creates a symbolic link. Errors: `Exists`.
    fn make_symlink(&self, dir: NodeId, name: &[u8], target: &[u8], new: New) -> Result<Attributes>;

    /// Removes an entry that is not a directory. Errors: `NotFound`, `IsADirectory`.
    fn remove(&self, dir: NodeId, name: &[u8]) -> Result<()>;

    /// Removes an empty directory. Errors: `NotFound`, `NotADirectory`, `NotEmpty`.
    fn remove_dir(&self, dir: NodeId, name: &[u8]) -> Result<()>;

    /// Renames an entry. Errors: `NotFound`; `Exists` as described in [`Rename`]; `NotEmpty`;
    /// `IsADirectory` or `NotADirectory` if only one of the two entries is a directory;
    /// `InvalidInput` if a directory would be moved below itself.
    fn rename(&self, from_dir: NodeId, from: &[u8], to_dir: NodeId, to: &[u8], how: Rename) -> Result<()>;

    /// Changes attributes and returns the new ones. Errors: `InvalidInput` if a size is set and the
    /// node is not a regular file.
    fn change(&self, node: NodeId, change: &Change) -> Result<Attributes>;

    /// Opens a regular file as described by `how`.
    fn open_as(&self, node: NodeId, how: Open) -> Result<Box<dyn WritableFile>>;

    /// Makes the names created, removed and renamed in a directory survive a power failure. An
    /// implementation whose names always survive needs no action.
    fn sync_dir(&self, _dir: NodeId) -> Result<()> {
        Ok(())
    }

    /// Performs all further calls of this thread with the permissions of `caller`, until the result
    /// is dropped; files that are opened keep these permissions. For a process that serves several
    /// users. An implementation without permissions of its own, such as one that keeps its files in
    /// memory, needs no action.
    fn act_for(&self, _caller: Caller) -> Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    /// Returns `references` references to a node.
    fn forget(&self, node: NodeId, references: u64);

    /// Returns the space for new files.
    fn space(&self) -> Result<Space>;
}

/// An open file that may be written to. docs/semantics.md states when written data becomes visible
/// to other processes and nodes.
///
/// Dropping the file closes it. A drop cannot report errors, so callers must call
/// [`publish`](Self::publish) first.
pub trait WritableFile: File {
    /// Writes all of `from` at `offset` (bytes). After an error, any part of it may have been
    /// written. Errors: `InvalidInput` if the file would end beyond 2^63 - 1.
    fn write_at(&self, from: &[u8], offset: u64) -> Result<()>;

    /// Appends all of `from` to the file atomically and returns the offset at which it was written.
    fn append(&self, from: &[u8]) -> Result<u64>;

    /// Passes all data written so far to the file system below, where other processes can read it
    /// (close-to-open consistency).
    fn publish(&self) -> Result<()>;

    /// As [`publish`](Self::publish); in addition the data survives a power failure.
    fn sync(&self) -> Result<()>;

    /// Removes the set-user-ID bit, and the set-group-ID bit if the group may execute the file. A
    /// write or truncation by a process without `CAP_FSETID` has this effect. An implementation
    /// whose files never have these bits needs no action.
    fn drop_set_id(&self) -> Result<()> {
        Ok(())
    }

    /// Reads several ranges, each from its own offset, and returns the number of bytes read for
    /// each (see [`File::read_at`]).
    fn read_pieces(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<Vec<usize>> {
        pieces.iter_mut().map(|(offset, into)| self.read_at(into, *offset)).collect()
    }

    /// Writes several ranges in order, each at its own offset. Where two overlap, the later one
    /// remains.
    fn write_pieces(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        pieces.iter().try_for_each(|(offset, from)| self.write_at(from, *offset))
    }
}
