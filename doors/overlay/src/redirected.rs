//! A file system's metadata as overlayfs wants its metadata layer: every regular file says where in the
//! data layers its bytes are. Served by the FUSE door for trees too large for a tmpfs.

use std::sync::Arc;

use quell_fs::{Capabilities, Error, ErrorKind, File, FileSystem, Kind, NodeId, Result, errno};

pub(crate) const METACOPY: &[u8] = b"user.overlay.metacopy";
pub(crate) const REDIRECT: &[u8] = b"user.overlay.redirect";
const OVERLAY_PREFIX: &[u8] = b"user.overlay.";

/// The kernel looks a redirect up as one path.
pub(crate) const REDIRECT_BYTES_MAX: usize = 4095;

/// Overlayfs keeps names with its prefix to itself; one more `overlay.` makes them the file's own.
pub(crate) fn escaped(name: &[u8]) -> Vec<u8> {
    match name.strip_prefix(OVERLAY_PREFIX) {
        Some(rest) => [OVERLAY_PREFIX, b"overlay.", rest].concat(),
        None => name.to_vec(),
    }
}

/// The inner file system as a layer: with redirected files, which cannot be opened here, or with its own
/// ones. In both its attributes that overlayfs would take for orders are escaped.
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
    pub fn new(inner: Arc<dyn FileSystem>) -> Redirected {
        Redirected { inner, redirects: true }
    }

    /// A layer that has the bytes, too.
    pub fn with_data(inner: Arc<dyn FileSystem>) -> Redirected {
        Redirected { inner, redirects: false }
    }
}

impl FileSystem for Redirected {
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { xattrs: self.redirects || inner.xattrs, ..inner }
    }

    quell_fs::names_of_inner!();

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.redirects && (name == METACOPY || name == REDIRECT) {
            if self.inner.attributes(node)?.kind != Kind::File {
                return Ok(None);
            }
            return Ok(Some(match name {
                METACOPY => Vec::new(),
                _ => [b"/", self.inner.path(node)?.as_slice()].concat(),
            }));
        }
        match name.strip_prefix(OVERLAY_PREFIX) {
            Some(rest) => match rest.strip_prefix(b"overlay.") {
                Some(own) => self.inner.xattr(node, &[OVERLAY_PREFIX, own].concat()),
                None => Ok(None),
            },
            None => self.inner.xattr(node, name),
        }
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(self.inner.xattr_names(node)?.iter().map(|name| escaped(name)).collect())
    }

    /// Before it copies a file up, overlayfs asks for flags (`lsattr`), for which FUSE opens it. This answer
    /// it takes for "there are no flags"; any other makes the copy fail.
    fn open(&self, node: NodeId) -> Result<Box<dyn File>> {
        if !self.redirects {
            return self.inner.open(node);
        }
        Err(Error::new(ErrorKind::Os(errno::ENOTTY), "open in the metadata layer", self.inner.path(node)?))
    }
}
