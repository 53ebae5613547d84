//! The nodes that the callers of a mount have references to or have open.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quell_vfs::{Error, ErrorKind, NodeId, Result};
use quell_wire::pool::{FileId, Node, NodeKind};

/// The set-id bits of `st_mode`.
const SET_ID: u16 = 0o6000;

/// A node that is in use.
#[derive(Debug)]
pub struct KnownNode {
    pub id: FileId,
    pub kind: NodeKind,
    /// A size that the file had at some time, in bytes. The file is shorter only if another client
    /// has truncated it since.
    known_bytes: AtomicU64,
    /// The largest end of the writes whose size was not sent to the daemon, in bytes; 0 if there
    /// are none.
    unsent_end: AtomicU64,
    /// Whether the data of the file is in chunks, not inline. It never becomes inline again.
    is_in_chunks: AtomicBool,
    /// Whether the daemon last reported set-id bits.
    has_set_id: AtomicBool,
    /// Whether the node was removed while the client had no reference to it, because its daemon had
    /// ended.
    is_gone: AtomicBool,
}

impl KnownNode {
    fn new(id: FileId, kind: NodeKind) -> KnownNode {
        let (known_bytes, unsent_end) = (AtomicU64::new(0), AtomicU64::new(0));
        let [is_in_chunks, has_set_id, is_gone] = [const { AtomicBool::new(false) }; 3];
        KnownNode { id, kind, known_bytes, unsent_end, is_in_chunks, has_set_id, is_gone }
    }

    /// Returns whether the node does not exist any more, although it is in use.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// Records that the node does not exist any more.
    pub fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    pub fn known_bytes(&self) -> u64 {
        self.known_bytes.load(Ordering::Relaxed)
    }

    /// Records the attributes that the daemon reported.
    pub fn note(&self, node: &Node) {
        self.known_bytes.store(node.size_bytes.max(self.unsent_end()), Ordering::Relaxed);
        self.has_set_id.store(node.permissions & SET_ID != 0, Ordering::Relaxed);
        if !node.is_inline {
            self.set_in_chunks();
        }
    }

    /// Returns whether the data of the file is known to be in chunks.
    pub fn is_in_chunks(&self) -> bool {
        self.is_in_chunks.load(Ordering::Relaxed)
    }

    /// Records that the data of the file is in chunks.
    pub fn set_in_chunks(&self) {
        self.is_in_chunks.store(true, Ordering::Relaxed);
    }

    /// Returns whether the daemon last reported set-id bits.
    pub fn has_set_id(&self) -> bool {
        self.has_set_id.load(Ordering::Relaxed)
    }

    /// Records that this client has written up to this offset.
    pub fn has_written_to(&self, end: u64) {
        self.known_bytes.fetch_max(end, Ordering::Relaxed);
    }

    /// Returns the largest end of the writes whose size was not sent; 0 if there are none.
    pub fn unsent_end(&self) -> u64 {
        self.unsent_end.load(Ordering::SeqCst)
    }

    /// Records that a write ends at `end`, and that its size is to be sent later.
    pub fn add_unsent(&self, end: u64) {
        self.unsent_end.fetch_max(end, Ordering::SeqCst);
    }

    /// Records that the size `end` was sent. If a later write ends beyond it, its size is still
    /// unsent.
    pub fn sent(&self, end: u64) {
        // If the value has changed, a later write has replaced it.
        let _ = self.unsent_end.compare_exchange(end, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

struct Uses {
    node: Arc<KnownNode>,
    /// The number of references and open files of callers.
    count: u64,
    /// The number of references that the daemon has counted for this client, for the connection of
    /// the present generation.
    held: u32,
}

/// The references that are to be returned to the daemon.
pub type Returned = (FileId, u32);

/// A node that is no longer in use.
#[derive(Debug, PartialEq, Eq)]
pub struct Released {
    pub returned: Returned,
    /// The generation of the connection that has the references.
    pub generation: u64,
    /// Whether the file had data in chunks when it was last used.
    pub has_chunks: bool,
}

/// All nodes that are in use.
pub struct Nodes {
    uses: HashMap<FileId, Uses>,
    /// The generation of the connection that has the references.
    generation: u64,
}

impl Nodes {
    pub fn new() -> Nodes {
        let root = KnownNode::new(FileId::ROOT, NodeKind::Dir);
        let root = Uses { node: Arc::new(root), count: 1, held: 0 };
        Nodes { uses: HashMap::from([(FileId::ROOT, root)]), generation: 0 }
    }

    /// Returns a node that is in use.
    pub fn get(&self, node: NodeId) -> Result<Arc<KnownNode>> {
        let uses = self.uses.get(&FileId::from(node)).filter(|uses| !uses.node.is_gone());
        Ok(Arc::clone(&uses.ok_or_else(|| stale(node))?.node))
    }

    /// Adds `count` uses of a node to which the daemon has counted a reference for the connection
    /// of `generation`. Also returns whether this client has the reference: false if the connection
    /// was lost meanwhile.
    pub fn held(&mut self, node: &Node, count: u64, generation: u64) -> (Arc<KnownNode>, bool) {
        let uses = self.uses.entry(node.id).or_insert_with(|| Uses {
            node: Arc::new(KnownNode::new(node.id, node.kind)),
            count: 0,
            held: 0,
        });
        uses.node.note(node);
        uses.count += count;
        let is_held = generation == self.generation;
        uses.held = uses.held.saturating_add(is_held.into());
        (Arc::clone(&uses.node), is_held)
    }

    /// Returns the generation of the connection that has the references.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Begins the generation of a new connection, which has no references. Returns all nodes that
    /// need one.
    pub fn begin(&mut self, generation: u64) -> Vec<FileId> {
        self.generation = generation;
        self.uses.values_mut().for_each(|uses| uses.held = 0);
        let needed = self.uses.iter().filter(|(id, uses)| **id != FileId::ROOT && !uses.node.is_gone());
        needed.map(|(id, _)| *id).collect()
    }

    /// Records that the connection of `generation` has a reference to each of these nodes, except
    /// to those that do not exist any more. Returns the references to nodes that are no longer in
    /// use.
    pub fn held_again(&mut self, ids: &[FileId], missing: &[FileId], generation: u64) -> Vec<Returned> {
        let mut unused = Vec::new();
        for id in ids {
            match self.uses.get_mut(id) {
                Some(uses) if missing.contains(id) => uses.node.set_gone(),
                None if missing.contains(id) => {}
                Some(uses) if generation == self.generation => uses.held = uses.held.saturating_add(1),
                // The reference has ended with its connection.
                Some(_) => {}
                None => unused.push((*id, 1)),
            }
        }
        unused
    }

    /// Returns a node if this client has writes to it whose size was not sent.
    pub fn with_unsent(&self, id: FileId) -> Option<Arc<KnownNode>> {
        let uses = self.uses.get(&id).filter(|uses| uses.node.unsent_end() > 0)?;
        Some(Arc::clone(&uses.node))
    }

    /// Adds a use of a node that is in use.
    pub fn use_again(&mut self, node: NodeId) -> Result<Arc<KnownNode>> {
        let uses = self.uses.get_mut(&FileId::from(node)).ok_or_else(|| stale(node))?;
        uses.count += 1;
        Ok(Arc::clone(&uses.node))
    }

    /// Removes uses. Returns the node after the last use.
    pub fn release(&mut self, id: FileId, count: u64) -> Option<Released> {
        let uses = self.uses.get_mut(&id).filter(|_| id != FileId::ROOT)?;
        uses.count = uses.count.saturating_sub(count);
        if uses.count > 0 {
            return None;
        }
        let Uses { node, held, .. } = self.uses.remove(&id)?;
        Some(Released {
            returned: (id, held),
            generation: self.generation,
            has_chunks: node.kind == NodeKind::File && node.is_in_chunks() && node.known_bytes() > 0,
        })
    }
}

fn stale(node: NodeId) -> Error {
    Error::new(ErrorKind::Stale, "node", node.0.to_string())
}

#[cfg(test)]
mod tests {
    use quell_wire::pool::Stamp;

    use super::*;

    #[test]
    fn references_are_returned_together_after_the_last_use() {
        let mut nodes = Nodes::new();
        let node = Node {
            id: FileId(7),
            kind: NodeKind::File,
            permissions: 0o644,
            uid: 0,
            gid: 0,
            is_named: true,
            size_bytes: 10,
            is_inline: false,
            modified: Stamp::default(),
            changed: Stamp::default(),
        };
        nodes.held(&node, 1, 0);
        nodes.held(&node, 1, 0);
        nodes.use_again(NodeId(7)).unwrap();
        assert_eq!(nodes.release(FileId(7), 2), None);
        assert_eq!(nodes.get(NodeId(7)).unwrap().known_bytes(), 10);
        let released = Released { returned: (FileId(7), 2), generation: 0, has_chunks: true };
        assert_eq!(nodes.release(FileId(7), 1), Some(released));
        assert_eq!(nodes.get(NodeId(7)).unwrap_err().kind, ErrorKind::Stale);
        assert_eq!(nodes.release(FileId::ROOT, 100), None);
        assert!(nodes.get(NodeId(0)).is_ok());
    }
}
