//! A file system with the names and attributes of another, which opens files in its own way.

use std::fmt;
use std::sync::Arc;

use quell_vfs::{Capabilities, File, FileSystem, NodeId, Result};

/// How files are opened.
pub trait Open: Send + Sync {
    fn open(&self, inner: &Arc<dyn FileSystem>, node: NodeId) -> Result<Box<dyn File>>;
}

pub struct Over<O> {
    inner: Arc<dyn FileSystem>,
    opens: O,
}

impl<O: fmt::Debug> fmt::Debug for Over<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Over").field(&self.opens).finish()
    }
}

impl<O: Open> Over<O> {
    pub fn new(inner: Arc<dyn FileSystem>, opens: O) -> Over<O> {
        Over { inner, opens }
    }
}

impl<O: Open> FileSystem for Over<O> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    quell_vfs::names_of_inner!();

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.xattr(node, name)
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.inner.xattr_names(node)
    }

    fn open(&self, node: NodeId) -> Result<Box<dyn File>> {
        self.opens.open(&self.inner, node)
    }
}
