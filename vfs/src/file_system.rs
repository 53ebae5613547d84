//! The contract for a directory tree: a caller resolves a name to a node once, then uses the node.

use crate::{Attributes, Capabilities, Error, ErrorKind, File, Kind, NodeId, Result, Writable};

/// A position in the listing of one directory. `Cursor::START` is before the first entry; the
/// cursor of a `DirEntry` continues after that entry. Cursors of an immutable file system never
/// expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor(pub u64);

impl Cursor {
    pub const START: Cursor = Cursor(0);
}

/// One entry of a listing, borrowed for one call of the visitor. A listing has no `.` and `..`; the
/// frontend adds them.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    /// The cursor that continues after this entry.
    pub next: Cursor,
    /// In a writable tree only `node` and `kind` are valid. Reading the other attributes may cost
    /// one request per entry; use `lookup` for them.
    pub attributes: Attributes,
}

/// A readable tree of files. Every method may be called from any number of threads.
pub trait FileSystem: Send + Sync {
    fn capabilities(&self) -> Capabilities;

    /// Returns the root: always node 0, a number that no other node has.
    fn root(&self) -> NodeId;

    /// Returns the attributes of the entry `name` of the directory `dir`, or `Ok(None)` if there is
    /// no such entry. Errors: not a directory, permission denied (the content of the directory is
    /// not known), name too long.
    fn lookup(&self, dir: NodeId, name: &[u8]) -> Result<Option<Attributes>>;

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

/// Implements the methods for names, attributes and link targets in an `impl FileSystem` by calling
/// those of the field `inner`. For file systems that wrap another one.
#[macro_export]
macro_rules! names_of_inner {
    () => {
        fn root(&self) -> $crate::NodeId {
            self.inner.root()
        }

        fn lookup(&self, dir: $crate::NodeId, name: &[u8]) -> $crate::Result<Option<$crate::Attributes>> {
            self.inner.lookup(dir, name)
        }

        fn attributes(&self, node: $crate::NodeId) -> $crate::Result<$crate::Attributes> {
            self.inner.attributes(node)
        }

        fn parent(&self, node: $crate::NodeId) -> $crate::Result<$crate::NodeId> {
            self.inner.parent(node)
        }

        fn path(&self, node: $crate::NodeId) -> $crate::Result<Vec<u8>> {
            self.inner.path(node)
        }

        fn list(
            &self,
            dir: $crate::NodeId,
            after: $crate::Cursor,
            visit: &mut dyn FnMut($crate::DirEntry<'_>) -> bool,
        ) -> $crate::Result<()> {
            self.inner.list(dir, after, visit)
        }

        fn read_link(&self, node: $crate::NodeId) -> $crate::Result<Vec<u8>> {
            self.inner.read_link(node)
        }
    };
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
