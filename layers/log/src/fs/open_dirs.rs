//! Directories that stay open in all stores, so that a path is not resolved from the root again.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use quell_vfs::{Error, ErrorKind, Kind, NodeId, Result};

use crate::format::other_name;
use crate::fs::nodes::Nodes;
use crate::fs::store_dirs::Dirs;
use crate::locks::{Rank, RankedMutex};
use crate::stores::{Stores, open_in_all_stores};

/// Number of directories that stay open to resolve paths from.
const DIRS_OPEN: NonZeroUsize = NonZeroUsize::new(128).expect("not zero");

/// The open directories of a mount. Directories are dropped without a lock, because this closes
/// them in the stores.
pub(crate) struct OpenDirs {
    stores: Arc<Stores>,
    open: RankedMutex<LruCache<NodeId, Dirs>>,
    /// Removed directories that are still referenced.
    removed: RankedMutex<HashMap<NodeId, Dirs>>,
}

impl OpenDirs {
    pub fn new(stores: Arc<Stores>) -> OpenDirs {
        let open = RankedMutex::new(Rank::Leaf, LruCache::new(DIRS_OPEN));
        OpenDirs { stores, open, removed: RankedMutex::new(Rank::Leaf, HashMap::new()) }
    }

    /// Opens the directory `node` in all stores, starting at its nearest open ancestor.
    ///
    /// # Errors
    ///
    /// `NotADirectory`, and the errors of the stores.
    pub fn open(&self, nodes: &RankedMutex<Nodes>, node: NodeId) -> Result<Dirs> {
        if let Some(dirs) = self.removed.lock().get(&node) {
            return Ok(Arc::clone(dirs));
        }
        let (path, kind) = {
            let nodes = nodes.lock();
            (nodes.path_to(node)?, nodes.get(node)?.kind)
        };
        if kind != Kind::Dir {
            let name = path.last().map_or(&b""[..], |(_, name)| name);
            return Err(Error::new(ErrorKind::NotADirectory, "look into", name));
        }
        let roots = self.stores.roots();
        let mut from = 0;
        let mut at: Option<Dirs> = None;
        for (index, (node, _)) in path.iter().enumerate().rev() {
            // A directory that was opened before a store was added is opened again, so that it is
            // open in that store, too.
            if let Some(dirs) = self.open.lock().get(node).filter(|dirs| dirs.len() == roots.len()) {
                (from, at) = (index + 1, Some(Arc::clone(dirs)));
                break;
            }
        }
        let mut at = at.unwrap_or_else(|| Arc::new(roots));
        for (node, name) in &path[from..] {
            at = Arc::new(open_in_all_stores(&at, &other_name(name)?, self.stores.host())?);
            let evicted = self.open.lock().push(*node, Arc::clone(&at));
            drop(evicted);
        }
        Ok(at)
    }

    /// Returns the directory `node`, if it is open.
    pub fn peek(&self, node: NodeId) -> Option<Dirs> {
        self.open.lock().get(&node).cloned()
    }

    /// Closes a directory that has lost its name.
    pub fn close(&self, node: NodeId) {
        let closed = self.open.lock().pop(&node);
        drop(closed);
    }

    /// Keeps a removed directory as long as its node is referenced.
    pub fn keep_removed(&self, node: NodeId, dirs: Dirs) {
        let before = self.removed.lock().insert(node, dirs);
        drop(before);
    }

    /// Closes the directory of a node that is no longer referenced.
    pub fn forget(&self, node: NodeId) {
        let open = self.open.lock().pop(&node);
        let removed = self.removed.lock().remove(&node);
        drop((open, removed));
    }
}
