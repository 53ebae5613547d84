//! An indexed tree whose nodes have the inode numbers of the originals. Programs such as git
//! compare inode numbers with those that they have stored before.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use quell_vfs::{
    Attributes, Capabilities, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, NodeId, NodeRef,
    ReadAt, Result,
};

use crate::file_system::VERSION_SHIFT;
use crate::image::{EntryId, Image, ROOT};

/// The bit of nodes of files that have changed since they were first opened. The index does not
/// have the inode number of such a file.
const CHANGED: u64 = 1 << 63;

/// A file system that shows the nodes of `inner` with other numbers: the indexed inode number minus
/// 1, as a frontend adds 1. The root is node 0, as in every file system.
pub struct InodeNumbers {
    inner: Arc<dyn FileSystem>,
    image: Arc<Image>,
    /// The entries that identify nodes, without the root, sorted by their inode numbers.
    by_inode: Vec<EntryId>,
}

impl std::fmt::Debug for InodeNumbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InodeNumbers").field("image", &self.image).finish_non_exhaustive()
    }
}

impl InodeNumbers {
    /// Returns the file system; `None` if the index has no inode numbers, or if they do not
    /// identify nodes, as in a tree that contains mount points. `inner`: a file system with the
    /// nodes of an [`IndexFs`](crate::IndexFs) of `image`. Takes 4 bytes of memory for each entry.
    pub fn new(inner: Arc<dyn FileSystem>, image: Arc<Image>) -> Option<InodeNumbers> {
        if !image.has_persistent_inodes() {
            return None;
        }
        let nodes = (ROOT + 1..image.entries()).filter(|entry| image.node_of(*entry) == *entry);
        let mut numbers: Vec<(u64, EntryId)> =
            nodes.map(|entry| Some((image.inode(entry)?, entry))).collect::<Option<_>>()?;
        numbers.sort_unstable();
        // The kernel reserves 0 and 1.
        let is_in_range = |number: u64| (2..CHANGED).contains(&number);
        let are_in_range = [numbers.first(), numbers.last()].iter().flatten().all(|(n, _)| is_in_range(*n));
        let are_different = numbers.windows(2).all(|two| two[0].0 != two[1].0);
        let by_inode = numbers.into_iter().map(|(_, entry)| entry).collect();
        (are_in_range && are_different).then_some(InodeNumbers { inner, image, by_inode })
    }

    /// Returns the number that this file system gives to a node of `inner`.
    pub fn number_of(&self, node: NodeId) -> NodeId {
        let entry = node.0 as EntryId;
        match node.0 >> VERSION_SHIFT {
            0 if entry == ROOT => node,
            0 => self.image.inode(entry).map_or(node, |inode| NodeId(inode - 1)),
            // A file that has changed 2^31 times gets the number of one of its earlier states, and
            // opening it fails with `Stale`.
            _ => NodeId(node.0 | CHANGED),
        }
    }

    /// Returns the node of `inner` with a number of this file system. Errors: `Stale` if there is
    /// no such node.
    pub fn inner_node(&self, number: NodeId) -> Result<NodeId> {
        if number == self.root() {
            return Ok(number);
        }
        if number.0 & CHANGED != 0 {
            return Ok(NodeId(number.0 & !CHANGED));
        }
        let inode = Some(number.0 + 1);
        let position = self.by_inode.binary_search_by_key(&inode, |entry| self.image.inode(*entry));
        match position {
            Ok(position) => Ok(NodeId(self.by_inode[position].into())),
            Err(_) => Err(Error::new(ErrorKind::Stale, "node", number.0.to_string())),
        }
    }

    fn shown(&self, attributes: Attributes) -> Attributes {
        Attributes { node: self.number_of(attributes.node), ..attributes }
    }
}

impl FileSystem for InodeNumbers {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn root(&self) -> NodeId {
        self.inner.root()
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let found = self.inner.lookup(context, self.inner_node(dir)?, name)?;
        // The nodes of an index are permanent.
        Ok(found.map(|found| NodeRef::permanent(self.shown(found.into_attributes()))))
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        let attributes = self.inner.attributes(context, self.inner_node(node)?)?;
        Ok(self.shown(attributes))
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        Ok(self.number_of(self.inner.parent(self.inner_node(node)?)?))
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        self.inner.path(self.inner_node(node)?)
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.inner.list(context, self.inner_node(dir)?, after, &mut |entry| {
            let attributes = entry.attributes.map(|attributes| self.shown(attributes));
            visit(DirEntry { node: self.number_of(entry.node), attributes, ..entry })
        })
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        self.inner.read_link(context, self.inner_node(node)?)
    }

    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.xattr(context, self.inner_node(node)?, name)
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.inner.xattr_names(context, self.inner_node(node)?)
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        let file = self.inner.open(context, self.inner_node(node)?)?;
        Ok(Box::new(NumberedFile { file, number: node }))
    }

    fn forget(&self, _: NodeId, _: u64) {}
}

/// An open file, with the number of its node.
struct NumberedFile {
    file: Box<dyn File>,
    number: NodeId,
}

impl ReadAt for NumberedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(into, offset)
    }
}

impl File for NumberedFile {
    fn into_descriptor(self: Box<Self>) -> Option<OwnedFd> {
        self.file.into_descriptor()
    }

    fn attributes(&self) -> Result<Attributes> {
        Ok(Attributes { node: self.number, ..self.file.attributes()? })
    }

    fn read_pieces(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<Vec<usize>> {
        self.file.read_pieces(pieces)
    }
}
