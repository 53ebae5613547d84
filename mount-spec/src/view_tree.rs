//! Opens an indexed tree of a view in the user's own process.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use quell_index::{Image, OnChange, Rules};
use quell_vfs::{Error, ErrorKind, FileIdentity, FileSystem, NodeId, Result};

use rustix::fs::OFlags;

use crate::assemble::{belongs_to_root, cover, owners_are_hidden};
use crate::display::shown;
use crate::index_file::load_index_from;
use crate::trust::{Ownership, Trusted, TrustedUse};
use crate::view_variable::ViewTree;

/// The largest index that is loaded into the user's own process, in bytes.
const INDEX_BYTES_MAX: u64 = 4 << 30;

/// The root of an index.
const ROOT: u32 = 0;

/// An index that was checked, and the rules with which it is served.
#[derive(Debug)]
pub struct CheckedIndex {
    image: Arc<Image>,
    rules: Rules,
    /// The directory whose owner was compared.
    root: FileIdentity,
}

/// An indexed tree.
pub struct OpenTree {
    /// The tree as the index describes it.
    pub fs: Arc<dyn FileSystem>,
    image: Arc<Image>,
    /// The device of the tree, if its inode numbers are those in the index.
    device: Option<u64>,
}

impl std::fmt::Debug for OpenTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenTree").field("image", &self.image).finish_non_exhaustive()
    }
}

impl ViewTree {
    /// Reads and checks the index.
    ///
    /// # Errors
    ///
    /// Those of `load_index`; `PermissionDenied` if the index belongs to a user who is not trusted,
    /// or if it has access control lists, which the caller of the tree cannot check.
    pub fn load(&self) -> Result<CheckedIndex> {
        let refused = |reason: String| Error {
            source: Some(reason.into()),
            ..Error::new(ErrorKind::PermissionDenied, "use", self.index.as_os_str().as_encoded_bytes())
        };
        let failed = |path: &Path, cause| Error::from_io(cause, "open", path.as_os_str().as_encoded_bytes());
        let open = |path: &Path, flags: OFlags| {
            OpenOptions::new()
                .read(true)
                .custom_flags(flags.bits() as i32)
                .open(path)
                .map_err(|e| failed(path, e))
        };
        // NONBLOCK: the path may name a FIFO.
        let file = open(&self.index, OFlags::NONBLOCK)?;
        let root = open(&self.path, OFlags::DIRECTORY | OFlags::NONBLOCK)?;
        let owner = Ownership::read(&root, &self.path)?;
        if let Err(distrust) =
            Trusted::by_caller(&[]).check(&file, &self.index, TrustedUse::Index, Some(&owner))?
        {
            return Err(refused(format!("it is not trusted: {:?}", distrust.reason)));
        }
        let image = load_index_from(&file, &self.index, |bytes| match bytes <= INDEX_BYTES_MAX {
            true => Ok(()),
            false => Err(refused(format!("it is larger than {INDEX_BYTES_MAX} bytes"))),
        })?;
        if image.root_path() != self.path.as_os_str().as_encoded_bytes() {
            return Err(refused(format!("it is not an index of {}", shown(&self.path))));
        }
        let found = root.metadata().map_err(|cause| failed(&self.path, cause))?;
        let root = FileIdentity { device: found.dev(), inode: found.ino() };
        let rules = Rules {
            serves_others: false,
            index_is_roots: belongs_to_root(&file),
            owners_unknown: owners_are_hidden(),
        };
        Ok(CheckedIndex { image: Arc::new(image), rules, root })
    }

    /// Opens the tree with its index. Files that changed since it was indexed are refused (ESTALE).
    pub fn open(&self, index: &CheckedIndex) -> Result<OpenTree> {
        let covered = cover(Arc::clone(&index.image), &self.path, OnChange::Refuse, index.rules)?;
        if covered.fs.capabilities().acls {
            return Err(Error {
                source: Some(
                    "its files have access control lists, which only a view of `quell run` checks".into(),
                ),
                ..Error::new(ErrorKind::PermissionDenied, "use", self.index.as_os_str().as_encoded_bytes())
            });
        }
        let root = covered.source().stat_self()?;
        if (FileIdentity { device: root.device, inode: root.inode }) != index.root {
            return Err(Error::new(ErrorKind::Stale, "open", self.path.as_os_str().as_encoded_bytes()));
        }
        let is_original = index.image.inode(ROOT) == Some(root.inode);
        let device = is_original.then_some(root.device);
        Ok(OpenTree { fs: covered.fs, image: Arc::clone(&index.image), device })
    }
}

impl OpenTree {
    /// Returns the identity of an entry in the original tree, as stat(2) shows it; `None` if the
    /// index does not have it. All entries are taken to be on the file system of the root.
    pub fn identity(&self, node: NodeId) -> Option<FileIdentity> {
        let entry = u32::try_from(node.0).ok().filter(|entry| *entry < self.image.entries())?;
        Some(FileIdentity { device: self.device?, inode: self.image.inode(entry)? })
    }
}
