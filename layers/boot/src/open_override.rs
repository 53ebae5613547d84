//! A file system with the names and attributes of another one, which opens files differently.

use std::fmt;
use std::sync::Arc;

use quell_vfs::{
    Attributes, Capabilities, Context, Cursor, DirEntry, File, FileSystem, NodeId, NodeRef, Result,
};

/// Opens files instead of `inner`.
pub trait Opener: Send + Sync {
    /// Opens a file of `inner` for reading.
    fn open(&self, context: &Context<'_>, inner: &Arc<dyn FileSystem>, node: NodeId)
    -> Result<Box<dyn File>>;
}

/// A file system that opens files with an [`Opener`]; `inner` does all other operations.
pub struct OpenOverride<O> {
    inner: Arc<dyn FileSystem>,
    opener: O,
}

impl<O: fmt::Debug> fmt::Debug for OpenOverride<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenOverride").field(&self.opener).finish()
    }
}

impl<O: Opener> OpenOverride<O> {
    /// Returns a file system that opens the files of `inner` with `opener`.
    pub fn new(inner: Arc<dyn FileSystem>, opener: O) -> OpenOverride<O> {
        OpenOverride { inner, opener }
    }
}

impl<O: Opener> FileSystem for OpenOverride<O> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn root(&self) -> NodeId {
        self.inner.root()
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        self.inner.lookup(context, dir, name)
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        self.inner.attributes(context, node)
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        self.inner.parent(node)
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        self.inner.path(node)
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.inner.list(context, dir, after, visit)
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        self.inner.read_link(context, node)
    }

    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.xattr(context, node, name)
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.inner.xattr_names(context, node)
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        self.opener.open(context, &self.inner, node)
    }

    fn forget(&self, node: NodeId, references: u64) {
        self.inner.forget(node, references);
    }
}
