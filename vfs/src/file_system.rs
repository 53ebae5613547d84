//! The contract for a directory tree: a caller resolves a name to a node once, then uses the node.
//! A read-only implementation does not have the operations of [`Writable`], so it does not have to
//! refuse them.

use std::fmt;
use std::ops::Deref;

use crate::arguments::{Change, NewEntry, OpenMode, Rename, SetXattr, Space};
use crate::attributes::{Attributes, Kind, NodeId};
use crate::capability::Capabilities;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, errno};
use crate::file::{File, WritableFile};

/// A position in the listing of one directory. `Cursor::START` is before the first entry; the
/// cursor of a `DirEntry` continues after that entry. Cursors of an immutable file system never
/// expire.
///
/// The value is at most [`Cursor::MAX`], so that a frontend can add the entries `.` and `..` in a
/// positive `off_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor(pub u64);

impl Cursor {
    /// Before the first entry.
    pub const START: Cursor = Cursor(0);
    /// The largest cursor: 2^63 - 3.
    pub const MAX: Cursor = Cursor(i64::MAX as u64 - 2);
}

/// One entry of a listing, borrowed for one call of the visitor. A listing has no `.` and `..`; the
/// frontend adds them.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The name of the entry, one component.
    pub name: &'a [u8],
    /// The cursor that continues after this entry.
    pub next: Cursor,
    /// The number of the entry's node. A listing makes no reference to it.
    pub node: NodeId,
    /// The kind of the entry.
    pub kind: Kind,
    /// All attributes. A writable tree may omit them, because reading them would cost a request for
    /// each entry; `lookup` returns them.
    pub attributes: Option<Attributes>,
}

/// A readable tree of files. Every method may be called from any number of threads.
///
/// **References to nodes.** `lookup`, `create`, `make_dir` and `make_symlink` return a [`NodeRef`],
/// which is one reference to the node. A node with references keeps its number and its data, even
/// if it is renamed or removed. In an immutable tree every number is valid for ever.
///
/// **Paths.** The whole-path operations have a default, which looks each component up. An
/// implementation that can answer for a whole path with one request replaces it. The rules of
/// [`resolve`] hold for both.
pub trait FileSystem: Send + Sync {
    /// Returns the capabilities, which never change while mounted.
    fn capabilities(&self) -> Capabilities;

    /// Returns the root: always node 0, a number that no other node has.
    fn root(&self) -> NodeId;

    /// Returns the attributes of the entry `name` of the directory `dir`, or `Ok(None)` if there is
    /// no such entry. Errors: `NotADirectory`; `PermissionDenied`, for example if the content of
    /// the directory is not known; `NameTooLong`.
    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>>;

    /// Does the same as `lookup`, for a name in a path after which other names follow. The size and
    /// the times of a directory may be those of an earlier state; everything else is as current as
    /// in `lookup`.
    fn lookup_on_path(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        self.lookup(context, dir, name)
    }

    /// Returns the attributes of a node. Errors: `Stale` or `NotFound` if it no longer exists.
    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes>;

    /// Returns the directory that contains `node`. For a hard-linked file, returns one of several
    /// directories; the root is its own parent.
    fn parent(&self, node: NodeId) -> Result<NodeId>;

    /// Returns the path from the root to `node`, without a leading slash; empty for the root. For a
    /// hard-linked file, returns one of several paths.
    fn path(&self, node: NodeId) -> Result<Vec<u8>>;

    /// Visits the entries of `dir` after `after`, in an order that never changes, until `visit`
    /// returns `false` or the directory ends.
    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Returns the target of a symbolic link, unchanged.
    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>>;

    /// Returns the value of an extended attribute, or `Ok(None)` if it is not set.
    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Returns the names of all extended attributes, in an order that never changes.
    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>>;

    /// Opens a regular file for reading.
    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>>;

    /// Returns references to a node that were taken with [`NodeRef::into_attributes`]. An
    /// implementation whose numbers are permanent has nothing to do.
    fn forget(&self, node: NodeId, references: u64);

    /// Returns the attributes of the entry at `path`, or `Ok(None)` if there is no such entry.
    /// Errors: as [`resolve`], except `NotFound`.
    fn attributes_of_path(&self, context: &Context<'_>, path: &[u8]) -> Result<Option<Attributes>> {
        match resolve(self, context, path) {
            Ok(found) => Ok(Some(*found)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the regular file at `path` for reading. Errors: as [`resolve`] and `open`.
    fn open_path(&self, context: &Context<'_>, path: &[u8]) -> Result<Box<dyn File>> {
        self.open(context, resolve(self, context, path)?.node())
    }

    /// Returns the same tree with the operations that change it, or `None` if it is read-only.
    fn writable(&self) -> Option<&dyn Writable> {
        None
    }
}

/// A writable tree of files. Every method may be called from any number of threads.
///
/// Access is checked by the frontend (or by its kernel). The methods return only the errors of the
/// file system below.
pub trait Writable: FileSystem {
    /// Creates an empty regular file and opens it. Errors: `Exists`.
    fn create(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)>;

    /// Creates a directory. Errors: `Exists`.
    fn make_dir(&self, context: &Context<'_>, dir: NodeId, name: &[u8], new: NewEntry)
    -> Result<NodeRef<'_>>;

    /// Creates a symbolic link. Errors: `Exists`.
    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>>;

    /// Gives a node other than a directory another name, and returns one more reference to it.
    /// Errors: `Unsupported` if a node has only one name; `Exists`; `NotFound` if the node has no
    /// name any more; `Os(EPERM)` for a directory; `Os(EMLINK)` if the node has too many names.
    fn link(&self, _context: &Context<'_>, _node: NodeId, _dir: NodeId, name: &[u8]) -> Result<NodeRef<'_>> {
        Err(Error::new(ErrorKind::Unsupported, "link", name))
    }

    /// Removes an entry that is not a directory. Errors: `NotFound`, `IsADirectory`.
    fn remove(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()>;

    /// Removes an empty directory. Errors: `NotFound`, `NotADirectory`, `NotEmpty`.
    fn remove_dir(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()>;

    /// Renames an entry. Errors: `NotFound`; `Exists` as described in [`Rename`]; `NotEmpty`;
    /// `IsADirectory` or `NotADirectory` if only one of the two entries is a directory;
    /// `InvalidInput` if a directory would be moved below itself.
    fn rename(
        &self,
        context: &Context<'_>,
        from_dir: NodeId,
        from: &[u8],
        to_dir: NodeId,
        to: &[u8],
        mode: Rename,
    ) -> Result<()>;

    /// Changes attributes and returns the new ones. Errors: `InvalidInput` if a size is set and the
    /// node is not a regular file.
    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes>;

    /// Opens a regular file as described by `mode`.
    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>>;

    /// Opens the regular file at `path` as described by `mode`. Errors: as [`resolve`] and
    /// `open_as`.
    fn open_path_as(
        &self,
        context: &Context<'_>,
        path: &[u8],
        mode: OpenMode,
    ) -> Result<Box<dyn WritableFile>> {
        self.open_as(context, resolve(self, context, path)?.node(), mode)
    }

    /// Sets an extended attribute. Errors: `Unsupported` if the implementation has no extended
    /// attributes, or none with a name of this form; `Exists` and `Os(ENODATA)` as described in
    /// [`SetXattr`]; `InvalidInput` for a name without a part after the first period; `Os(ERANGE)`
    /// for a name of more than 255 bytes; `Os(E2BIG)` for a value of more than 64 KiB; `NoSpace` if
    /// the node has no space for it; `Os(EPERM)` for a `user.` attribute of a symbolic link.
    fn set_xattr(
        &self,
        _context: &Context<'_>,
        _node: NodeId,
        name: &[u8],
        _value: &[u8],
        _mode: SetXattr,
    ) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "set an extended attribute", name))
    }

    /// Removes an extended attribute. Errors: as `set_xattr`; `Os(ENODATA)` if it is not set.
    fn remove_xattr(&self, _context: &Context<'_>, _node: NodeId, name: &[u8]) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "remove an extended attribute", name))
    }

    /// Makes the names created, removed and renamed in a directory survive a power failure.
    fn sync_dir(&self, context: &Context<'_>, dir: NodeId) -> Result<()>;

    /// Returns the space for new files.
    fn space(&self) -> Result<Space>;
}

/// The attributes of a node, and one reference to it. While a reference exists, the node keeps its
/// number and its data, even if it is renamed or removed. Dropping this returns the reference.
///
/// A frontend that counts references itself, because its kernel does, takes the reference with
/// [`into_attributes`](Self::into_attributes) and returns it with [`FileSystem::forget`].
pub struct NodeRef<'a> {
    attributes: Attributes,
    /// `None` if the number of this node is permanent, so that no reference has to be returned.
    counted_by: Option<&'a dyn FileSystem>,
}

impl<'a> NodeRef<'a> {
    /// Takes over one reference that `fs` has counted.
    pub fn counted(fs: &'a dyn FileSystem, attributes: Attributes) -> NodeRef<'a> {
        NodeRef { attributes, counted_by: Some(fs) }
    }

    /// Returns a reference to a node whose number is valid for as long as the file system is
    /// mounted: the root, and every node of an immutable tree.
    pub fn permanent(attributes: Attributes) -> NodeRef<'a> {
        NodeRef { attributes, counted_by: None }
    }

    /// Returns the number of the node, which is valid as long as this reference exists.
    pub fn node(&self) -> NodeId {
        self.attributes.node
    }

    /// Returns the same reference with other attributes, for a layer that shows a node differently.
    pub fn with_attributes(mut self, attributes: Attributes) -> NodeRef<'a> {
        debug_assert_eq!(attributes.node, self.attributes.node, "a reference to one node");
        self.attributes = attributes;
        self
    }

    /// Passes the reference to the caller, which returns it with [`FileSystem::forget`].
    pub fn into_attributes(mut self) -> Attributes {
        self.counted_by = None;
        self.attributes
    }
}

/// Gives access to the attributes at the time when the reference was made.
impl Deref for NodeRef<'_> {
    type Target = Attributes;

    fn deref(&self) -> &Attributes {
        &self.attributes
    }
}

impl Drop for NodeRef<'_> {
    fn drop(&mut self) {
        if let Some(fs) = self.counted_by {
            fs.forget(self.attributes.node, 1);
        }
    }
}

/// Two references are equal if the attributes are.
impl PartialEq for NodeRef<'_> {
    fn eq(&self, other: &NodeRef<'_>) -> bool {
        self.attributes == other.attributes
    }
}

impl fmt::Debug for NodeRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeRef").field(&self.attributes).finish()
    }
}

/// Resolves `path` from the root. Components are separated by `/`; empty components and `.` are
/// skipped, and `..` is the parent directory, at most the root. Symbolic links are not followed.
/// Errors: `NotFound`; `NotADirectory` if a component before the last one is not a directory, or
/// `Os(ELOOP)` if it is a symbolic link.
pub fn resolve<'a, F: FileSystem + ?Sized>(
    fs: &'a F,
    context: &Context<'_>,
    path: &[u8],
) -> Result<NodeRef<'a>> {
    resolve_components(fs, context, path.split(|byte| *byte == b'/'), path, false)
}

/// The directory of the last name of a path, and that name.
#[derive(Debug)]
pub struct ParentAndName<'a, 'p> {
    /// The directory that has, or would have, the entry.
    pub parent: NodeRef<'a>,
    /// The name of the entry.
    pub name: &'p [u8],
}

/// Resolves `path` up to its last name, whether an entry of that name exists or not. Returns `None`
/// if the path does not end in a name, for example for the path of the root. Errors: as
/// [`resolve`].
pub fn resolve_parent<'a, 'p, F: FileSystem + ?Sized>(
    fs: &'a F,
    context: &Context<'_>,
    path: &'p [u8],
) -> Result<Option<ParentAndName<'a, 'p>>> {
    let mut components: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    while components.last().is_some_and(|last| matches!(*last, b"" | b".")) {
        components.pop();
    }
    match components.pop() {
        None | Some(b"..") => Ok(None),
        Some(name) => {
            let parent = resolve_components(fs, context, components.into_iter(), path, true)?;
            Ok(Some(ParentAndName { parent, name }))
        }
    }
}

/// `is_followed`: whether another name follows the last component.
fn resolve_components<'a, 'p, F: FileSystem + ?Sized>(
    fs: &'a F,
    context: &Context<'_>,
    components: impl Iterator<Item = &'p [u8]>,
    path: &[u8],
    is_followed: bool,
) -> Result<NodeRef<'a>> {
    let refused = |kind| Err(Error::new(kind, "resolve", path));
    let mut components = components.filter(|component| !matches!(*component, b"" | b".")).peekable();
    // `None` is the root, whose attributes are needed only if it is the result.
    let mut current: Option<NodeRef<'a>> = None;
    // The directories above, whose references are needed for `..`.
    let mut above = Vec::new();
    while let Some(component) = components.next() {
        match current.as_ref().map(|current| current.kind) {
            None | Some(Kind::Dir) => {}
            Some(Kind::Symlink) => return refused(ErrorKind::Os(errno::ELOOP)),
            Some(_) => return refused(ErrorKind::NotADirectory),
        }
        if component == b".." {
            current = above.pop().unwrap_or_default();
            continue;
        }
        let dir = current.as_ref().map_or(fs.root(), |current| current.node());
        let found = match is_followed || components.peek().is_some() {
            true => fs.lookup_on_path(context, dir, component)?,
            false => fs.lookup(context, dir, component)?,
        };
        match found {
            Some(found) => above.push(current.replace(found)),
            None => return refused(ErrorKind::NotFound),
        }
    }
    match current {
        Some(current) => Ok(current),
        None => Ok(NodeRef::permanent(fs.attributes(context, fs.root())?)),
    }
}
