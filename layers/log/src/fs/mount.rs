//! The state of a log mount, which the modules of its operations share.

use std::collections::HashMap;
use std::sync::Arc;

use quell_posix::{Acting, WritableDir, assume};
use quell_vfs::{Attributes, Context, NodeId, Result};

use crate::container::Descriptors;
use crate::format::is_own;
use crate::fs::missing_names::MissingNames;
use crate::fs::name_changes::NameChanges;
use crate::fs::nodes::{Node, Nodes, ROOT};
use crate::fs::open_dirs::OpenDirs;
use crate::fs::open_files::OpenFiles;
use crate::fs::store_dirs::Dirs;
use crate::locks::{Rank, RankedMutex};
use crate::session::Choices;
use crate::stores::{OTHERS_WRITE, Stores};

/// The state of a mount.
pub(crate) struct Mount {
    pub stores: Arc<Stores>,
    pub choices: Choices,
    pub descriptors: Arc<Descriptors>,
    pub nodes: RankedMutex<Nodes>,
    pub dirs: OpenDirs,
    pub files: OpenFiles,
    pub missing_names: MissingNames,
    pub renames: NameChanges,
    /// Removed symbolic links that are still referenced.
    pub removed_links: RankedMutex<HashMap<NodeId, RemovedLink>>,
}

/// A symbolic link that was removed while it is still referenced.
pub(crate) struct RemovedLink {
    pub attributes: Attributes,
    pub target: Vec<u8>,
}

/// A name in a directory of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryName<'a> {
    pub dir: NodeId,
    pub name: &'a [u8],
}

impl Mount {
    pub fn new(stores: Stores, choices: Choices) -> Mount {
        let stores = Arc::new(stores);
        Mount {
            dirs: OpenDirs::new(Arc::clone(&stores)),
            files: OpenFiles::new(Arc::clone(&stores)),
            stores,
            choices,
            descriptors: Arc::default(),
            missing_names: MissingNames::new(),
            renames: NameChanges::default(),
            nodes: RankedMutex::new(Rank::Leaf, Nodes::new()),
            removed_links: RankedMutex::new(Rank::Leaf, HashMap::new()),
        }
    }

    /// Makes this thread assume the credentials of the caller until the result is dropped, in
    /// root's mount for callers other than root. Otherwise the thread keeps the credentials of the
    /// process; the restrictions of root are described at `PosixDir::open_shared`.
    pub fn assume_caller(&self, context: &Context<'_>) -> Result<Option<Acting>> {
        match context.caller {
            Some(caller) if self.stores.host().uid == 0 && caller.uid != 0 => {
                Ok(Some(assume(Some(Arc::new(caller.clone())))?))
            }
            _ => Ok(None),
        }
    }

    /// Returns whether a truncation by the caller keeps the set-id bits of a file, as a truncation
    /// by root does (`CAP_FSETID`).
    pub fn keeps_set_id(&self, context: &Context<'_>) -> bool {
        context.keeps_set_id(self.stores.host().uid)
    }

    /// Prepares the stores for a node with these permissions, and for the user `uid`, if it is
    /// given: the user who creates the node, or to whom it is given. Other users than the owner of
    /// the stores may then create files. The kernel has checked that the caller may do this.
    pub fn prepare_for_writers(&self, permissions: u32, uid: Option<u32>) -> Result<()> {
        if permissions & OTHERS_WRITE != 0 {
            self.stores.allow_writer(None)?;
        }
        uid.map_or(Ok(()), |uid| self.stores.allow_writer(Some(uid)))
    }

    pub fn node(&self, node: NodeId) -> Result<Node> {
        self.nodes.lock().get(node).cloned()
    }

    /// Returns the node with this name, if it is referenced.
    pub fn named(&self, at: EntryName<'_>) -> Option<NodeId> {
        self.nodes.lock().named(at.dir, at.name)
    }

    /// Returns true if a name is known to be missing, because this process has created its
    /// directory as the only user of the store.
    pub fn is_missing(&self, at: EntryName<'_>) -> bool {
        let period = self.stores.only_user_period();
        self.nodes.lock().lacks(at.dir, at.name, period)
    }

    /// Must be called before a name is created. Returns true if the name is known to be missing.
    pub fn begin_name(&self, at: EntryName<'_>) -> bool {
        let period = self.stores.only_user_period();
        self.nodes.lock().begin_name(at.dir, at.name, period)
    }

    /// Opens the directory `node` in all stores.
    pub fn open_dir(&self, node: NodeId) -> Result<Dirs> {
        self.dirs.open(&self.nodes, node)
    }

    /// Opens the directory `node` in the only store, if this process is the only user of the store.
    pub fn open_dir_of_only_user(&self, node: NodeId) -> Result<Option<Arc<dyn WritableDir>>> {
        if self.stores.only_user_period().is_none() {
            return Ok(None);
        }
        let dirs = self.open_dir(node)?;
        Ok(if let [dir] = &dirs[..] { Some(Arc::clone(dir)) } else { None })
    }

    /// Returns true for a name that a store uses itself, and that the mount does not show.
    pub fn is_hidden(&self, at: EntryName<'_>) -> bool {
        at.dir == ROOT && is_own(at.name)
    }

    /// Drops `references` references to `node`.
    pub fn forget(&self, node: NodeId, references: u64) {
        self.nodes.lock().forget(node, references);
        self.forget_unused();
    }

    /// Drops everything that is kept for nodes without references.
    pub fn forget_unused(&self) {
        let forgotten = self.nodes.lock().take_forgotten();
        for node in forgotten {
            // Dropped without a lock, because the last close may delete the file.
            let file = self.files.forget(node);
            drop(file);
            self.dirs.forget(node);
            let link = self.removed_links.lock().remove(&node);
            drop(link);
        }
    }
}
