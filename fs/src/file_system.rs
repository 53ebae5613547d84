//! The contract for a tree of names: resolve a name to a node once, then work with the node.

use crate::{Attributes, Capabilities, Error, ErrorKind, File, Kind, NodeId, Result, Writable};

/// A place within one directory's listing. `Cursor::START` is before the first entry; a cursor from
/// a `DirEntry` continues after that entry. Cursors of an immutable file system never expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor(pub u64);

impl Cursor {
    pub const START: Cursor = Cursor(0);
}

/// One entry of a listing, borrowed for the time of the visit. `.` and `..` are the door's to add.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    /// The cursor that continues after this entry.
    pub next: Cursor,
    /// Of a tree that may be changed only `node` and `kind` are sure: the rest may cost a question an entry, and is
    /// what `lookup` is for.
    pub attributes: Attributes,
}

/// A tree of files that may be read. Every method may be called from any number of threads.
pub trait FileSystem: Send + Sync {
    fn capabilities(&self) -> Capabilities;

    /// Always node 0; no other node has that number.
    fn root(&self) -> NodeId;

    /// The entry `name` of the directory `dir`. `Ok(None)`: there is no such entry.
    /// Errors: not a directory, permission denied (the directory's content is not known), name too long.
    fn lookup(&self, dir: NodeId, name: &[u8]) -> Result<Option<Attributes>>;

    fn attributes(&self, node: NodeId) -> Result<Attributes>;

    /// The directory that holds `node` (for a hard-linked file, one of them); the root is its own.
    fn parent(&self, node: NodeId) -> Result<NodeId>;

    /// The path from the root to `node` (for a hard-linked file, one of them), without a leading
    /// slash; empty for the root.
    fn path(&self, node: NodeId) -> Result<Vec<u8>>;

    /// Visits the entries of `dir` after `after`, in an order that never changes, until `visit`
    /// answers `false` or the directory ends.
    fn list(&self, dir: NodeId, after: Cursor, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;

    /// A symbolic link's target, byte for byte.
    fn read_link(&self, node: NodeId) -> Result<Vec<u8>>;

    /// The value of one extended attribute; `Ok(None)` where it is not set.
    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>>;

    /// The names of all extended attributes, in an order that never changes.
    fn xattr_names(&self, node: NodeId) -> Result<Vec<Vec<u8>>>;

    /// Opens a regular file for reading.
    fn open(&self, node: NodeId) -> Result<Box<dyn File>>;

    /// The same tree with the verbs that change it; `None`: it is read-only.
    fn writable(&self) -> Option<&dyn Writable> {
        None
    }
}

/// Within `impl FileSystem` of what wraps another one in a field `inner`: names, attributes and link targets are its.
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

/// Walks `path` (components between `/`; empty ones and `.` are skipped, `..` goes up) from the root
/// without following symbolic links.
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
