//! Metadata of a file system in the form that overlayfs needs for its metadata layer: each regular
//! file names its data in the data layers. Served by the FUSE server for trees too large for a
//! tmpfs.

use std::sync::Arc;

use quell_vfs::{
    Attributes, Capabilities, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind, NodeId,
    NodeRef, Result, errno,
};

pub(crate) const METACOPY: &[u8] = b"user.overlay.metacopy";
pub(crate) const REDIRECT: &[u8] = b"user.overlay.redirect";
const OVERLAY_PREFIX: &[u8] = b"user.overlay.";

/// The kernel looks a redirect up as one path.
pub(crate) const REDIRECT_BYTES_MAX: usize = 4095;

/// Escapes a name: overlayfs hides names with its own prefix, and shows those with an additional
/// `overlay.` as the file's own.
pub(crate) fn escaped(name: &[u8]) -> Vec<u8> {
    match name.strip_prefix(OVERLAY_PREFIX) {
        Some(rest) => [OVERLAY_PREFIX, b"overlay.", rest].concat(),
        None => name.to_vec(),
    }
}

/// The inner file system as a layer, either with redirected files, which cannot be opened here, or
/// with its own files. In both cases attributes that overlayfs would interpret are escaped.
pub struct Redirected {
    inner: Arc<dyn FileSystem>,
    redirects: bool,
}

impl std::fmt::Debug for Redirected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redirected").finish_non_exhaustive()
    }
}

impl Redirected {
    /// Creates a metadata layer: its files direct overlayfs to the data layers.
    pub fn new(inner: Arc<dyn FileSystem>) -> Redirected {
        Redirected { inner, redirects: true }
    }

    /// Creates a layer that also has the data.
    pub fn with_data(inner: Arc<dyn FileSystem>) -> Redirected {
        Redirected { inner, redirects: false }
    }
}

impl FileSystem for Redirected {
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { xattrs: self.redirects || inner.xattrs, ..inner }
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
        if self.redirects && (name == METACOPY || name == REDIRECT) {
            if self.inner.attributes(context, node)?.kind != Kind::File {
                return Ok(None);
            }
            return Ok(Some(match name {
                METACOPY => Vec::new(),
                _ => [b"/", self.inner.path(node)?.as_slice()].concat(),
            }));
        }
        match name.strip_prefix(OVERLAY_PREFIX) {
            Some(rest) => match rest.strip_prefix(b"overlay.") {
                Some(own) => self.inner.xattr(context, node, &[OVERLAY_PREFIX, own].concat()),
                None => Ok(None),
            },
            None => self.inner.xattr(context, node, name),
        }
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(self.inner.xattr_names(context, node)?.iter().map(|name| escaped(name)).collect())
    }

    /// Opens a file. Before overlayfs copies a file up, it reads the inode flags (`lsattr`), for
    /// which FUSE opens the file. overlayfs treats ENOTTY as "no flags"; any other error makes the
    /// copy fail.
    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        if !self.redirects {
            return self.inner.open(context, node);
        }
        Err(Error::new(ErrorKind::Os(errno::ENOTTY), "open in the metadata layer", self.inner.path(node)?))
    }

    fn forget(&self, node: NodeId, references: u64) {
        self.inner.forget(node, references);
    }
}
