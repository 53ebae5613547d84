//! Opens an indexed tree of a view in the user's own process.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use quell_index::{Image, IndexFs, OnChange, Rules};
use quell_vfs::{Error, ErrorKind, FileIdentity, FileSystem, NodeId, Result};

use rustix::fs::OFlags;

use crate::assemble::{belongs_to_root, cover, owners_are_hidden};
use crate::display::shown;
use crate::index_file::load_index_from;
use crate::late_dir::LateDir;
use crate::shared_tree::SharedFiles;
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
    /// The files in the memory of the process that has checked the index.
    shared: Option<SharedFiles>,
}

/// Maps a sealed file of this user for the life of the process.
pub type MapFile<'a> = &'a dyn Fn(&File) -> Option<&'static [u8]>;

/// An indexed tree.
pub struct OpenTree {
    /// The tree as the index describes it.
    pub fs: Arc<dyn FileSystem>,
    image: Arc<Image>,
    /// The device of the tree, if its inode numbers are equal to those in the index.
    device: Option<u64>,
    /// The files of the tree that are in memory.
    pub shared: Option<SharedFiles>,
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
    /// The errors of `load_index`; `PermissionDenied` if the index belongs to an untrusted user, or
    /// if it has access control lists, which the caller of the tree cannot check.
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
            index_is_roots: belongs_to_root(&Ownership::read(&file, &self.index)?),
            owners_unknown: owners_are_hidden(),
        };
        Ok(CheckedIndex { image: Arc::new(image), rules, root, shared: None })
    }

    /// Uses the index in the memory of the process that `shared` names, which has checked it and
    /// the tree; `None` if this process cannot use it. Neither the index file nor the tree is
    /// opened.
    pub fn load_shared(&self, map: MapFile<'_>) -> Option<CheckedIndex> {
        let tree = self.shared.as_ref()?;
        let [index, table] = tree.open()?;
        let image = Image::of_validated(map(&index)?).ok()?;
        let shared = SharedFiles::decode(tree, map(&table)?)?;
        if image.root_path() != self.path.as_os_str().as_encoded_bytes() {
            return None;
        }
        // Privileges that only an index of root may give have no effect in a user's own process.
        let rules =
            Rules { serves_others: false, index_is_roots: false, owners_unknown: owners_are_hidden() };
        let root = shared.root.identity();
        Some(CheckedIndex { image: Arc::new(image), rules, root, shared: Some(shared) })
    }

    /// Opens the tree with its index. Files that changed since it was indexed are refused (ESTALE).
    pub fn open(&self, index: &CheckedIndex) -> Result<OpenTree> {
        let image = &index.image;
        let (fs, root): (Arc<dyn FileSystem>, _) = match &index.shared {
            Some(shared) => {
                let dir = Arc::new(LateDir::new(&self.path, shared.root));
                (
                    Arc::new(IndexFs::with_rules(image.clone(), dir, OnChange::Refuse, index.rules)),
                    shared.root,
                )
            }
            None => {
                let covered = cover(image.clone(), &self.path, OnChange::Refuse, index.rules)?;
                let root = covered.source().stat_self()?;
                (covered.fs, root)
            }
        };
        if fs.capabilities().acls {
            return Err(Error {
                source: Some(
                    "its files have access control lists, which only a view of `quell run` checks".into(),
                ),
                ..Error::new(ErrorKind::PermissionDenied, "use", self.index.as_os_str().as_encoded_bytes())
            });
        }
        if root.identity() != index.root {
            return Err(Error::new(ErrorKind::Stale, "open", self.path.as_os_str().as_encoded_bytes()));
        }
        let is_original = image.inode(ROOT) == Some(root.inode);
        let device = is_original.then_some(root.device);
        Ok(OpenTree { fs, image: image.clone(), device, shared: index.shared.clone() })
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
