//! The parts of a mount that its open files use as well.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use quell_blob::{Snapshot, Store};
use quell_threads::lock;
use quell_vfs::{Attributes, Error, ErrorKind, Kind, Result};

use crate::attributes::{Owner, attributes, stored, time};
use crate::failure::failed;
use crate::names::Names;
use crate::nodes::{Node, NodeState, Nodes};

/// A mount.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) names: Names,
    pub(crate) owner: Owner,
    pub(crate) nodes: Mutex<Nodes>,
    /// Held for writing while the paths of nodes change, together with their blobs, and for reading
    /// from the use of a path until the store has answered. So a rename waits for the requests of
    /// this mount that were sent before, and later requests use the new names.
    pub(crate) paths: RwLock<()>,
    /// The number of names that [`removed_name`](Shared::removed_name) has returned so far.
    pub(crate) removed: AtomicU64,
    /// Whether the mount has a mark. Held while the mark is created or removed.
    pub(crate) is_marked: Mutex<bool>,
}

/// The largest number of attempts to read one state of a store with several groups of servers.
const ATTEMPTS: u32 = 20;

/// An entry that was found in the store: a file, a symbolic link or a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundEntry {
    pub(crate) kind: Kind,
    pub(crate) stat: Option<quell_blob::BlobStat>,
    /// The time of the last change, in nanoseconds since 1970.
    modified_ns: u64,
}

impl FoundEntry {
    pub(crate) fn of_blob(stat: quell_blob::BlobStat) -> FoundEntry {
        FoundEntry {
            kind: crate::attributes::kind_of(&stat),
            stat: Some(stat),
            modified_ns: stat.modified_ns,
        }
    }

    /// Returns the directory with the blob `blob`. `first` is the first blob whose name begins with
    /// this name. If there is none, the directory does not exist.
    pub(crate) fn of_dir(blob: &[u8], first: &[(Vec<u8>, quell_blob::BlobStat)]) -> Option<FoundEntry> {
        let (name, stat) = first.first()?;
        let own = (name == blob).then_some(*stat);
        Some(FoundEntry { kind: Kind::Dir, stat: own, modified_ns: stat.modified_ns })
    }

    /// Returns the attributes of the node of this entry.
    pub(crate) fn attributes(&self, node: &Node, owner: Owner) -> Attributes {
        let size_bytes = self.stat.map_or(0, |stat| stat.size_bytes);
        let stored = stored(self.kind, self.stat.as_ref(), owner);
        let found = attributes(node.id, self.kind, stored, size_bytes, time(self.modified_ns));
        node.content.note_mode(found.permissions);
        node.content.with_buffered(found)
    }
}

impl Shared {
    /// Finds an entry in the store. A file hides a directory of the same name.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<FoundEntry>> {
        let failed = |cause| failed(cause, "look up", path);
        if !path.is_empty()
            && let Some(stat) = self.store.stat(self.names.of_file(path)?).map_err(failed)?
        {
            return Ok(Some(FoundEntry::of_blob(stat)));
        }
        self.find_dir(path)
    }

    /// Reads one state of the store. In a store with several groups of servers, a state cannot be
    /// read if a transaction over several groups ends meanwhile; in this case a later state is
    /// read.
    pub(crate) fn at_one_state<T>(&self, mut read: impl FnMut(&Snapshot) -> Result<T>) -> Result<T> {
        let begin = || self.store.snapshot().map_err(|cause| failed(cause, "read", b"the store"));
        for attempt in 1..ATTEMPTS {
            match begin().and_then(|state| read(&state)) {
                Err(error) if error.kind == ErrorKind::Stale && self.store.groups() > 1 => {
                    std::thread::sleep(Duration::from_millis(u64::from(attempt)));
                }
                result => return result,
            }
        }
        read(&begin()?)
    }

    fn find_dir(&self, path: &[u8]) -> Result<Option<FoundEntry>> {
        let failed = |cause| failed(cause, "look up", path);
        let (blob, below) = (self.names.of_dir(path)?, self.names.below(path)?);
        let (first, stat) = self.at_one_state(|state| {
            let first = state.list(&below, "", 1).map_err(failed)?;
            let stat = if path.is_empty() { state.stat(&blob).map_err(failed)? } else { None };
            Ok((first, stat))
        })?;
        if !path.is_empty() {
            return Ok(FoundEntry::of_dir(&blob, &first));
        }
        // The root exists even without blobs.
        let modified_ns = stat.or(first.first().map(|(_, stat)| *stat)).map_or(0, |stat| stat.modified_ns);
        Ok(Some(FoundEntry { kind: Kind::Dir, stat, modified_ns }))
    }

    /// Returns the attributes of a node. The caller holds the lock `paths`.
    pub(crate) fn attributes(&self, node: &Node) -> Result<Attributes> {
        let (found, nlink) = match node.state() {
            NodeState::Named(path) if node.kind == Kind::Dir => (self.find_dir(&path)?, 1),
            NodeState::Named(path) => {
                (self.stat(&self.names.of_file(&path)?)?.filter(|found| found.kind == node.kind), 1)
            }
            NodeState::Unnamed(blob) => (self.stat(&blob)?, 0),
            NodeState::RemovedDir(attributes) => return Ok(attributes),
            NodeState::Gone => (None, 0),
        };
        let found = found.ok_or_else(|| Error::new(ErrorKind::Stale, "read the attributes", ""))?;
        Ok(Attributes { nlink, ..found.attributes(node, self.owner) })
    }

    fn stat(&self, blob: &[u8]) -> Result<Option<FoundEntry>> {
        let stat = self.store.stat(blob).map_err(|cause| failed(cause, "read the attributes", blob))?;
        Ok(stat.map(FoundEntry::of_blob))
    }

    /// Returns the blob of a file or symbolic link. The caller holds the lock `paths`.
    pub(crate) fn blob_of(&self, node: &Node) -> Result<Vec<u8>> {
        match node.state() {
            NodeState::Named(path) => self.names.of_file(&path),
            NodeState::Unnamed(blob) => Ok(blob),
            NodeState::RemovedDir(_) | NodeState::Gone => Err(Error::new(ErrorKind::Stale, "use", "")),
        }
    }

    /// Removes uses of a node, and deletes its data if it has no name and these were its last uses.
    pub(crate) fn release(&self, node: quell_vfs::NodeId, uses: u64) -> Result<()> {
        let Some(last) = lock(&self.nodes).release(node, uses) else { return Ok(()) };
        self.delete_data_of(&last)
    }

    /// Deletes the data of a file that has no name. Another mount may have deleted the data
    /// already, if this mount was suspended until its mark was too old.
    pub(crate) fn delete_data_of(&self, node: &Arc<Node>) -> Result<()> {
        match node.state() {
            NodeState::Unnamed(blob) => {
                self.delete_removed(&blob)?;
                node.set_state(NodeState::Gone);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
