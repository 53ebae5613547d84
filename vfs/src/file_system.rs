//! The contract for a directory tree: a caller resolves a name to a node once, then uses the node. A
//! read-only implementation does not have the operations of [`Writable`], so it does not have to
//! refuse them.

use std::any::Any;

use crate::arguments::{Caller, Change, New, Open, Rename, Space};
use crate::attributes::{Attributes, Kind, NodeId};
use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{File, WritableFile};

/// A position in the listing of one directory. `Cursor::START` is before the first entry; the
/// cursor of a `DirEntry` continues after that entry. Cursors of an immutable file system never
/// expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor(pub u64);

impl Cursor {
    /// Before the first entry.
    pub const START: Cursor = Cursor(0);
}

/// One entry of a listing, borrowed for one call of the visitor. A listing has no `.` and `..`; the
/// frontend adds them.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The name of the entry, one component.
    pub name: &'a [u8],
    /// The cursor that continues after this entry.
    pub next: Cursor,
    /// In a writable tree only `node` and `kind` are valid. Reading the other attributes may cost
    /// one request per entry; use `lookup` for them.
    pub attributes: Attributes,
}

/// A readable tree of files. Every method may be called from any number of threads.
pub trait FileSystem: Send + Sync {
    /// Returns the capabilities, which never change while mounted.
    fn capabilities(&self) -> Capabilities;

    /// Returns the root: always node 0, a number that no other node has.
    fn root(&self) -> NodeId;

    /// Returns the attributes of the entry `name` of the directory `dir`, or `Ok(None)` if there is
    /// no such entry. Errors: not a directory, permission denied (the content of the directory is
    /// not known), name too long.
    fn lookup(&self, dir: NodeId, name: &[u8]) -> Result<Option<Attributes>>;

    /// Returns the attributes of a node. Errors: `Stale` or `NotFound` if it no longer exists.
    fn attributes(&self, node: NodeId) -> Result<Attributes>;

    /// Returns the directory that contains `node`. For a hard-linked file it is one of several; the
    /// root is its own parent.
    fn parent(&self, node: NodeId) -> Result<NodeId>;

    /// Returns the path from the root to `node`, without a leading slash; empty for the root. For a
    /// hard-linked file it is one of several.
    fn path(&self, node: NodeId) -> Result<Vec<u8>>;

    /// Visits the entries of `dir` after `after`, in an order that never changes, until `visit`
    /// returns `false` or the directory ends.
    fn list(&self, dir: NodeId, after: Cursor, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;

    /// Returns the target of a symbolic link, unchanged.
    fn read_link(&self, node: NodeId) -> Result<Vec<u8>>;

    /// Returns the value of an extended attribute, or `Ok(None)` if it is not set.
    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Returns the names of all extended attributes, in an order that never changes.
    fn xattr_names(&self, node: NodeId) -> Result<Vec<Vec<u8>>>;

    /// Opens a regular file for reading.
    fn open(&self, node: NodeId) -> Result<Box<dyn File>>;

    /// Returns the same tree with the operations that change it, or `None` if it is read-only.
    fn writable(&self) -> Option<&dyn Writable> {
        None
    }
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

/// Resolves `path` from the root without following symbolic links. Components are separated by `/`;
/// empty components and `.` are skipped, and `..` is the parent directory.
pub fn resolve(fs: &dyn FileSystem, path: &[u8]) -> Result<Attributes> {
    let mut at = fs.attributes(fs.root())?;
    for component in path.split(|b| *b == b'/') {
        at = match component {
            b"" | b"." => at,
            b".." => fs.attributes(fs.parent(at.node)?)?,
            name => {
                if at.kind != Kind::Dir {
                    return Err(Error::new(ErrorKind::NotADirectory, "resolve", path));
                }
                fs.lookup(at.node, name)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "resolve", path))?
            }
        };
    }
    Ok(at)
}
