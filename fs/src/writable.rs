//! The contract for a tree that may be changed: what [`FileSystem`] says, and the verbs that write. An
//! implementation that is read-only does not have them, so there is nothing to refuse.

use std::any::Any;

use crate::{Attributes, File, FileSystem, NodeId, Result, Time};

/// The user on whose behalf something is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// How a regular file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Open {
    pub read: bool,
    pub write: bool,
    /// The file has no bytes from this moment on. Only with `write`.
    pub truncate: bool,
    /// The process that opens, as its node numbers it; 0 where that is not known. An implementation may keep
    /// apart what different processes write; it decides nothing else by it.
    pub process: u32,
}

impl Open {
    pub const READ: Open = Open { read: true, write: false, truncate: false, process: 0 };
    pub const WRITE: Open = Open { read: false, write: true, truncate: false, process: 0 };
    pub const READ_WRITE: Open = Open { read: true, write: true, truncate: false, process: 0 };
}

/// What a new entry begins with. Where the directory passes its group on (the set-group-id bit), the group is the
/// directory's, and a new directory has the bit too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct New {
    /// The lower twelve bits of `st_mode`, the caller's mask already taken away.
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
}

/// What is to become different about a node; `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// The lower twelve bits of `st_mode`.
    pub permissions: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Of a regular file: bytes from here on are gone, or the file is filled up with zeros.
    pub size_bytes: Option<u64>,
    pub modified: Option<Time>,
}

/// What becomes of an entry that has the new name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// It is removed in the same step, if it is a file and no directory is to replace it, or an empty directory
    /// that a directory replaces.
    Replace,
    /// The rename fails with `Exists`.
    Keep,
    /// It gets the old name.
    Exchange,
}

/// How much room there is, as `statfs` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Free for those who are not root.
    pub available_bytes: u64,
    /// Entries that could exist and that could still be made; 0 and 0 where the file system does not tell.
    pub entries: u64,
    pub entries_free: u64,
}

/// A tree of files that may be changed. Every method may be called from any number of threads.
///
/// Who may do what is the door's to ask (or its kernel's): these verbs refuse only what the world refuses.
///
/// **How long a number names a node.** Each attributes that a verb of this contract hands out for a name
/// (`lookup`, `create`, `make_dir`, `make_symlink`) is one reference to the node, and [`forget`](Self::forget) gives
/// references back. A node with references keeps its number and its bytes, also when it is renamed or removed.
/// A listing makes no references.
pub trait Writable: FileSystem {
    /// Makes an empty regular file and opens it; the attributes are one reference. Errors: `Exists`.
    fn create(
        &self,
        dir: NodeId,
        name: &[u8],
        new: New,
        how: Open,
    ) -> Result<(Attributes, Box<dyn WritableFile>)>;

    /// Errors: `Exists`.
    fn make_dir(&self, dir: NodeId, name: &[u8], new: New) -> Result<Attributes>;

    /// Errors: `Exists`.
    fn make_symlink(&self, dir: NodeId, name: &[u8], target: &[u8], new: New) -> Result<Attributes>;

    /// Removes a name that is no directory. Errors: `NotFound`, `IsADirectory`.
    fn remove(&self, dir: NodeId, name: &[u8]) -> Result<()>;

    /// Removes an empty directory. Errors: `NotFound`, `NotADirectory`, `NotEmpty`.
    fn remove_dir(&self, dir: NodeId, name: &[u8]) -> Result<()>;

    /// Errors: `NotFound`; `Exists` as [`Rename`] says; `NotEmpty`; `IsADirectory` or `NotADirectory` where one of both is a
    /// directory; `InvalidInput` where a directory would come below itself.
    fn rename(&self, from_dir: NodeId, from: &[u8], to_dir: NodeId, to: &[u8], how: Rename) -> Result<()>;

    /// Returns the attributes afterwards. Errors: `InvalidInput` for the size of what is no regular file.
    fn change(&self, node: NodeId, change: &Change) -> Result<Attributes>;

    /// Opens a regular file as `how` says.
    fn open_as(&self, node: NodeId, how: Open) -> Result<Box<dyn WritableFile>>;

    /// Names made, removed and renamed in a directory survive a loss of power. An implementation whose names
    /// need nothing for it has nothing to say.
    fn sync_dir(&self, _dir: NodeId) -> Result<()> {
        Ok(())
    }

    /// Everything that this thread asks for until the answer is dropped is done with the rights of `caller`, and what it opens
    /// keeps them. For a process that serves several users. An implementation that has no rights of its own, as it keeps its
    /// files in memory, has nothing to do.
    fn act_for(&self, _caller: Caller) -> Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    /// Gives back `references` to a node.
    fn forget(&self, node: NodeId, references: u64);

    /// The room that there is for new files.
    fn space(&self) -> Result<Space>;
}

/// An open file that may be written to. When what was written is seen, and by whom, is in docs/semantics.md.
///
/// Dropping it closes it; nothing that matters may be left to the drop, which cannot fail: [`publish`](Self::publish) first.
pub trait WritableFile: File {
    /// Writes all of `from` at `offset`; after an error any part of it may have been written.
    /// Errors: `InvalidInput` where the file would end beyond 2^63 - 1.
    fn write_at(&self, from: &[u8], offset: u64) -> Result<()>;

    /// Writes all of `from` at the end of the file in one step, and returns where that was.
    fn append(&self, from: &[u8]) -> Result<u64>;

    /// What was written so far is given to the file system below, for everybody to see: close-to-open.
    fn publish(&self) -> Result<()>;

    /// As [`publish`](Self::publish), and what was written survives a loss of power.
    fn sync(&self) -> Result<()>;

    /// Takes away the set-user-ID bit, and the set-group-ID bit of a file that its group may execute, if it has them: what a
    /// write or truncation by a process without `CAP_FSETID` does. An implementation whose files have no such bits has
    /// nothing to do.
    fn drop_set_id(&self) -> Result<()> {
        Ok(())
    }

    /// Fills the pieces, each from its own offset, and returns how many bytes each received (see [`File::read_at`]).
    fn read_pieces(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<Vec<usize>> {
        pieces.iter_mut().map(|(offset, into)| self.read_at(into, *offset)).collect()
    }

    /// Writes the pieces in order, each at its own offset: a later one wins where two overlap.
    fn write_pieces(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        pieces.iter().try_for_each(|(offset, from)| self.write_at(from, *offset))
    }
}
