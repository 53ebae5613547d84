//! The files of a mount that are open or were used recently. Each file has a single `LogFile`.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use lru::LruCache;
use quell_posix::assume;
use quell_vfs::{Error, ErrorKind, NodeId, Result};

use crate::container::{ContainerIdentity, delete_container};
use crate::fs::flatten_queue::FlattenQueue;
use crate::locks::{Rank, RankedMutex};
use crate::session::LogFile;
use crate::stores::{OnlyUserPeriod, Stores};

/// Number of containers that stay open although no process has the file open.
const FILES_KNOWN: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// A file that may be removed while it is open.
pub(crate) struct SharedFile {
    pub file: LogFile,
    stores: Arc<Stores>,
    pub flattening: Arc<FlattenQueue<SharedFile>>,
    table: Weak<RankedMutex<Table>>,
    /// Number of open handles.
    pub handles: AtomicUsize,
    /// The file was removed, and has no container that must be deleted.
    is_unlinked: AtomicBool,
    /// The name in `trash` after the file was removed. The container is deleted at the last close.
    trash: RankedMutex<Option<Vec<u8>>>,
}

impl SharedFile {
    /// Creates a flat index if one is due. Errors are ignored, because readers can use the logs.
    pub fn flatten(&self, is_cancelled: &AtomicBool) {
        if !self.is_removed()
            && let Err(error) = self.file.flatten_if_due(is_cancelled)
        {
            tracing::debug!(
                container = %self.file.container().shown_number(),
                %error,
                "cannot create a flat index"
            );
        }
    }

    /// Keeps the file open for its node, if the node is still referenced, after the last handle of
    /// the file was closed.
    pub fn keep_open(self: &Arc<Self>, node: NodeId) {
        if let Some(table) = self.table.upgrade() {
            let evicted = table.lock().keep_open(node, self);
            drop(evicted);
        }
    }

    /// Records that the file was removed and has this name in `trash`. The container is deleted
    /// when this value is dropped, at the last close.
    pub fn set_removed(&self, name: Vec<u8>) {
        *self.trash.lock() = Some(name);
    }

    /// Records that the object of the file was removed.
    pub fn set_unlinked(&self) {
        self.is_unlinked.store(true, Ordering::Relaxed);
    }

    /// Returns whether the file was removed.
    pub fn is_removed(&self) -> bool {
        self.is_unlinked.load(Ordering::Relaxed) || self.trash.lock().is_some()
    }

    /// Returns the current period in which this mount is the only user of its store.
    pub fn only_user_period(&self) -> Option<OnlyUserPeriod> {
        self.stores.only_user_period()
    }

    /// Makes later reads return what other processes have published so far. Errors: `Stale` if
    /// another process has removed or replaced the file, and the file has a container. An object
    /// can be read without a name.
    pub fn follow_others(&self) -> Result<()> {
        let container = self.file.container();
        if !self.is_removed() && !container.was_only_object() && container.is_gone()? {
            return Err(Error::new(ErrorKind::Stale, "read", "a file that was removed"));
        }
        self.file.refresh()
    }

    /// Deletes the container if the file was removed.
    pub fn delete_if_removed(&self) -> Result<()> {
        let container = self.file.container();
        let moved = self.trash.lock().take();
        let names = [moved, container.take_name_in_trash()];
        if names.iter().all(Option::is_none) {
            return Ok(());
        }
        // Assumes the process's own credentials, because the user of the last close may not be the
        // user who removed the file.
        let _process = assume(None)?;
        let mut deleted = Ok(());
        for name in names.into_iter().flatten() {
            deleted =
                deleted.and(delete_container(&self.stores, container.home(), &name, container.number()));
        }
        deleted
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // There is no caller to return an error to; `quell log fsck` finds containers that are left
        // in `trash`.
        let _ = self.delete_if_removed();
    }
}

struct Table {
    /// Files by the identity of their containers, so that an open file is found again after its
    /// node was forgotten and looked up again.
    all: HashMap<ContainerIdentity, Weak<SharedFile>>,
    open: HashMap<NodeId, Weak<SharedFile>>,
    /// Removed files that are still referenced.
    removed: HashMap<NodeId, Arc<SharedFile>>,
    /// The files that were used recently, which stay open.
    recent: LruCache<NodeId, Arc<SharedFile>>,
}

impl Table {
    /// Keeps the file of a node open. Returns a file that is closed instead.
    fn keep_open(&mut self, node: NodeId, shared: &Arc<SharedFile>) -> Option<(NodeId, Arc<SharedFile>)> {
        let is_of_node = self.open.get(&node).is_some_and(|known| known.as_ptr() == Arc::as_ptr(shared));
        is_of_node.then(|| self.recent.push(node, Arc::clone(shared))).flatten()
    }
}

/// The files of a mount. Files are dropped without the lock of the table, because the last close
/// may delete a file.
pub(crate) struct OpenFiles {
    stores: Arc<Stores>,
    flattening: Arc<FlattenQueue<SharedFile>>,
    table: Arc<RankedMutex<Table>>,
}

impl OpenFiles {
    pub fn new(stores: Arc<Stores>) -> OpenFiles {
        let table = Table {
            all: HashMap::new(),
            open: HashMap::new(),
            removed: HashMap::new(),
            recent: LruCache::new(FILES_KNOWN),
        };
        let flattening = Arc::new(FlattenQueue::new(SharedFile::flatten));
        OpenFiles { stores, flattening, table: Arc::new(RankedMutex::new(Rank::Leaf, table)) }
    }

    /// Returns the queue of files that are flattened in the background.
    pub fn flattening(&self) -> &FlattenQueue<SharedFile> {
        &self.flattening
    }

    /// Returns all files.
    pub fn all(&self) -> Vec<Arc<SharedFile>> {
        self.table.lock().all.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the file with this container, if it is known.
    pub fn with_container(&self, identity: &ContainerIdentity) -> Option<Arc<SharedFile>> {
        self.table.lock().all.get(identity).and_then(Weak::upgrade)
    }

    /// Returns the file of a node, if it is known, without marking it as recently used.
    pub fn peek(&self, node: NodeId) -> Option<Arc<SharedFile>> {
        self.table.lock().open.get(&node).and_then(Weak::upgrade)
    }

    /// Returns the file of a node, if it is known, and keeps it open.
    pub fn get(&self, node: NodeId) -> Option<Arc<SharedFile>> {
        let mut table = self.table.lock();
        let shared = table.open.get(&node)?.upgrade()?;
        let evicted = table.keep_open(node, &shared);
        drop(table);
        drop(evicted);
        Some(shared)
    }

    /// Makes `file` the file of a node, unless the file is already open, and keeps it open.
    pub fn add(&self, node: NodeId, file: LogFile) -> Arc<SharedFile> {
        let shared = self.add_new(node, file);
        shared.keep_open(node);
        shared
    }

    /// Makes `file` the file of a node, unless the file is already open. The file is closed with
    /// its last handle, if it is not used otherwise before.
    pub fn add_new(&self, node: NodeId, file: LogFile) -> Arc<SharedFile> {
        let number = file.container().identity();
        let (stores, flattening) = (Arc::clone(&self.stores), Arc::clone(&self.flattening));
        let (handles, trash) = (AtomicUsize::new(0), RankedMutex::new(Rank::Leaf, None));
        let (table, is_unlinked) = (Arc::downgrade(&self.table), AtomicBool::new(false));
        let shared = SharedFile { file, stores, flattening, table, handles, is_unlinked, trash };
        let mut table = self.table.lock();
        let known = table.all.get(&number).and_then(Weak::upgrade);
        let (shared, unused) = match known {
            Some(known) => (known, Some(shared)),
            None => (Arc::new(shared), None),
        };
        if table.all.len() > 4 * FILES_KNOWN.get() && table.all.len().is_power_of_two() {
            table.all.retain(|_, file| file.strong_count() > 0);
        }
        table.all.insert(number, Arc::downgrade(&shared));
        table.open.insert(node, Arc::downgrade(&shared));
        drop(table);
        drop(unused);
        shared
    }

    /// Keeps a removed file as long as its node is referenced. Returns the file that was kept for
    /// the node before.
    pub fn keep_removed(&self, node: NodeId, shared: &Arc<SharedFile>) -> Option<Arc<SharedFile>> {
        self.table.lock().removed.insert(node, Arc::clone(shared))
    }

    /// Forgets the file of a node; open handles keep it. The caller drops the result without a
    /// lock.
    pub fn forget(&self, node: NodeId) -> [Option<Arc<SharedFile>>; 2] {
        let mut table = self.table.lock();
        table.open.remove(&node);
        [table.recent.pop(&node), table.removed.remove(&node)]
    }
}
