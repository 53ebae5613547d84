//! The nodes that the callers of a mount have references to or have open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use quell_threads::lock;
use quell_vfs::{Attributes, Error, ErrorKind, Kind, NodeId, Result};

use crate::content::Content;
use crate::names::{is_within, node_number};

/// A node that is in use.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) kind: Kind,
    state: Mutex<NodeState>,
    /// The bytes of a file.
    pub(crate) content: Content,
}

/// The path or the blob of a node, or its state without them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// The node is at this path.
    Named(Vec<u8>),
    /// The node has no name any more. Its data is in this blob.
    Unnamed(Vec<u8>),
    /// The node is a directory that was removed. Its last attributes.
    RemovedDir(Attributes),
    /// Another client has removed the node.
    Gone,
}

impl Node {
    fn new(id: NodeId, kind: Kind, path: &[u8]) -> Arc<Node> {
        Arc::new(Node {
            id,
            kind,
            state: Mutex::new(NodeState::Named(path.to_vec())),
            content: Content::default(),
        })
    }

    pub(crate) fn state(&self) -> NodeState {
        lock(&self.state).clone()
    }

    pub(crate) fn set_state(&self, state: NodeState) {
        *lock(&self.state) = state;
    }

    /// Returns the path. Errors: `Stale` if the node has no path.
    pub(crate) fn path(&self) -> Result<Vec<u8>> {
        match &*lock(&self.state) {
            NodeState::Named(path) => Ok(path.clone()),
            _ => Err(Error::new(ErrorKind::Stale, "find the path", "")),
        }
    }
}

struct Used {
    node: Arc<Node>,
    /// The number of references and open files.
    uses: u64,
}

/// The nodes in use.
pub(crate) struct Nodes {
    by_id: HashMap<NodeId, Used>,
    by_path: HashMap<Vec<u8>, NodeId>,
}

const ROOT: NodeId = NodeId(0);

impl Nodes {
    pub(crate) fn new() -> Nodes {
        let root = Used { node: Node::new(ROOT, Kind::Dir, b""), uses: 1 };
        Nodes { by_id: HashMap::from([(ROOT, root)]), by_path: HashMap::from([(Vec::new(), ROOT)]) }
    }

    /// Returns a node. Errors: `Stale` if it is not in use.
    pub(crate) fn get(&self, id: NodeId) -> Result<Arc<Node>> {
        match self.by_id.get(&id) {
            Some(used) => Ok(used.node.clone()),
            None => Err(Error::new(ErrorKind::Stale, "use", "")),
        }
    }

    /// Returns the node at a path.
    pub(crate) fn at(&self, path: &[u8]) -> Option<Arc<Node>> {
        Some(self.by_id.get(self.by_path.get(path)?)?.node.clone())
    }

    /// Returns the number that the node at a path has, or would have.
    pub(crate) fn number_of(&self, path: &[u8]) -> NodeId {
        let mut numbers = (0..).map(|attempt| node_number(path, attempt));
        let free = || numbers.find(|number| !self.by_id.contains_key(number));
        self.by_path.get(path).copied().or_else(free).unwrap_or(ROOT)
    }

    /// Adds uses to the node at a path. If the node at the path is of another kind, another client
    /// has replaced its entry.
    pub(crate) fn hold(&mut self, path: &[u8], kind: Kind, uses: u64) -> Arc<Node> {
        if self.at(path).is_some_and(|node| node.kind != kind) {
            self.detach(path, NodeState::Gone);
        }
        let id = self.number_of(path);
        let used = self.by_id.entry(id).or_insert_with(|| Used { node: Node::new(id, kind, path), uses: 0 });
        used.uses += uses;
        self.by_path.insert(path.to_vec(), id);
        used.node.clone()
    }

    /// Adds a use to a node. Errors: `Stale` if it is not in use.
    pub(crate) fn use_again(&mut self, id: NodeId) -> Result<Arc<Node>> {
        let used = self.by_id.get_mut(&id).ok_or_else(|| Error::new(ErrorKind::Stale, "use", ""))?;
        used.uses += u64::from(id != ROOT);
        Ok(used.node.clone())
    }

    /// Removes uses of a node. Returns the node if these were its last uses.
    pub(crate) fn release(&mut self, id: NodeId, uses: u64) -> Option<Arc<Node>> {
        let used = self.by_id.get_mut(&id).filter(|_| id != ROOT)?;
        used.uses = used.uses.saturating_sub(uses);
        if used.uses > 0 {
            return None;
        }
        let used = self.by_id.remove(&id)?;
        if let NodeState::Named(path) = used.node.state()
            && self.by_path.get(&path) == Some(&id)
        {
            self.by_path.remove(&path);
        }
        Some(used.node)
    }

    /// Removes the path of the node at `path`, and sets its state to `state`.
    pub(crate) fn detach(&mut self, path: &[u8], state: NodeState) {
        if let Some(node) = self.at(path) {
            node.set_state(state);
            self.by_path.remove(path);
        }
    }

    /// Removes the paths of the nodes below a directory that is removed: other clients have removed
    /// their blobs.
    pub(crate) fn detach_below(&mut self, dir: &[u8]) {
        let is_below = |path: &&Vec<u8>| path.len() > dir.len() && is_within(path, dir);
        let below: Vec<Vec<u8>> = self.by_path.keys().filter(is_below).cloned().collect();
        below.iter().for_each(|path| self.detach(path, NodeState::Gone));
    }

    /// Changes the paths of the nodes at and below a path, and exchanges them with the paths of the
    /// nodes at and below the other path.
    pub(crate) fn exchange(&mut self, a: &[u8], b: &[u8]) {
        let mut moved = Vec::new();
        for (from, to) in [(a, b), (b, a)] {
            let within = |path: &&Vec<u8>| is_within(path, from);
            let paths: Vec<Vec<u8>> = self.by_path.keys().filter(within).cloned().collect();
            for path in paths {
                let new = [to, &path[from.len()..]].concat();
                moved.extend(self.by_path.remove(&path).map(|id| (new, id)));
            }
        }
        for (path, id) in moved {
            if let Some(used) = self.by_id.get(&id) {
                used.node.set_state(NodeState::Named(path.clone()));
            }
            self.by_path.insert(path, id);
        }
    }

    /// Returns all nodes.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        self.by_id.values().map(|used| used.node.clone()).collect()
    }
}
