//! The table of referenced nodes: maps numbers to names and back. A number is derived from the
//! name, so that a listing needs no memory, and a number is the same after the next mount unless a
//! file was renamed meanwhile.

use std::collections::HashMap;

use quell_vfs::{Error, ErrorKind, Kind, NodeId, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::fs::new_dirs::NewDirs;
use crate::stores::OnlyUserPeriod;

pub const ROOT: NodeId = NodeId(0);

/// Numbers plus one must fit a signed 64-bit inode number.
const NUMBER_BITS: u64 = (1 << 62) - 1;

/// A node of the mount.
#[derive(Debug, Clone)]
pub struct Node {
    pub parent: NodeId,
    pub name: Vec<u8>,
    pub kind: Kind,
    /// The name was removed. The node can be reached by its number only.
    pub is_removed: bool,
    references: u64,
    /// Number of nodes in the table whose parent is this node.
    children: u64,
}

/// All nodes with references, and their parents.
#[derive(Debug)]
pub struct Nodes {
    nodes: HashMap<NodeId, Node>,
    names: HashMap<(NodeId, Vec<u8>), NodeId>,
    new_dirs: NewDirs,
    /// Nodes that were removed from the table and whose numbers may be reused. Callers that keep
    /// state by number must drop it.
    forgotten: Vec<NodeId>,
}

impl Nodes {
    pub fn new() -> Nodes {
        let root = Node {
            parent: ROOT,
            name: Vec::new(),
            kind: Kind::Dir,
            is_removed: false,
            references: 1,
            children: 0,
        };
        Nodes {
            nodes: HashMap::from([(ROOT, root)]),
            names: HashMap::new(),
            new_dirs: NewDirs::default(),
            forgotten: Vec::new(),
        }
    }

    pub fn get(&self, node: NodeId) -> Result<&Node> {
        self.nodes.get(&node).ok_or_else(|| Error::new(ErrorKind::Stale, "node", node.0.to_string()))
    }

    pub fn named(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        self.names.get(&(dir, name.to_vec())).copied()
    }

    /// Returns the number for a name, whether the name has a referenced node or not.
    pub fn number(&self, dir: NodeId, name: &[u8]) -> NodeId {
        if let Some(node) = self.named(dir, name) {
            return node;
        }
        let mut seed = dir.0;
        loop {
            let number = NodeId(xxh3_64_with_seed(name, seed) & NUMBER_BITS);
            if number != ROOT && !self.nodes.contains_key(&number) {
                return number;
            }
            seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        }
    }

    /// Adds a reference to the node with this name and kind, and returns its number.
    pub fn refer(&mut self, dir: NodeId, name: &[u8], kind: Kind) -> NodeId {
        if let Some(known) = self.named(dir, name) {
            let node = self.nodes.get_mut(&known).expect("a name has a node");
            if node.kind == kind {
                node.references += 1;
                return known;
            }
            // Another mount replaced the node.
            self.removed(dir, name);
        }
        let number = self.number(dir, name);
        let node =
            Node { parent: dir, name: name.to_vec(), kind, is_removed: false, references: 1, children: 0 };
        self.nodes.insert(number, node);
        self.names.insert((dir, name.to_vec()), number);
        self.add_child(dir);
        number
    }

    /// Adds a reference to the node of a directory that was just created. `period` is the period in
    /// which this process was the only user of the store before it created the directory. Another
    /// thread that has found the directory since may have created names in it.
    pub fn refer_to_new_dir(&mut self, dir: NodeId, name: &[u8], period: Option<OnlyUserPeriod>) -> NodeId {
        let is_found = self.named(dir, name).is_some();
        let node = self.refer(dir, name, Kind::Dir);
        if let (Some(period), false) = (period, is_found) {
            self.new_dirs.add(node, period);
        }
        node
    }

    /// Returns true if a directory is known not to have this name. `period` is the current period.
    pub fn lacks(&self, dir: NodeId, name: &[u8], period: Option<OnlyUserPeriod>) -> bool {
        self.new_dirs.lacks(dir, name, period)
    }

    /// Must be called before a name is created in a directory. Returns true if the directory is
    /// known not to have the name.
    pub fn begin_name(&mut self, dir: NodeId, name: &[u8], period: Option<OnlyUserPeriod>) -> bool {
        self.new_dirs.add_name(dir, name, period)
    }

    fn add_child(&mut self, dir: NodeId) {
        if let Some(parent) = self.nodes.get_mut(&dir) {
            parent.children += 1;
        }
    }

    /// Marks the node with this name as removed. The node stays in the table as long as it is
    /// referenced.
    pub fn removed(&mut self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        let number = self.names.remove(&(dir, name.to_vec()))?;
        self.nodes.get_mut(&number).expect("a name has a node").is_removed = true;
        Some(number)
    }

    /// Changes the name of a node from `from` to `to`. A node that had the name `to` must be
    /// `removed` before.
    pub fn renamed(&mut self, from_dir: NodeId, from: &[u8], to_dir: NodeId, to: &[u8]) {
        let Some(number) = self.names.remove(&(from_dir, from.to_vec())) else { return };
        self.names.insert((to_dir, to.to_vec()), number);
        let node = self.nodes.get_mut(&number).expect("a name has a node");
        (node.parent, node.name) = (to_dir, to.to_vec());
        self.add_child(to_dir);
        self.remove_child(from_dir);
    }

    pub fn exchanged(&mut self, a_dir: NodeId, a: &[u8], b_dir: NodeId, b: &[u8]) {
        let (first, second) = (self.named(a_dir, a), self.named(b_dir, b));
        self.names.remove(&(a_dir, a.to_vec()));
        self.names.remove(&(b_dir, b.to_vec()));
        for (number, old, dir, name) in [(first, a_dir, b_dir, b), (second, b_dir, a_dir, a)] {
            let Some(number) = number else { continue };
            self.names.insert((dir, name.to_vec()), number);
            let node = self.nodes.get_mut(&number).expect("a name has a node");
            (node.parent, node.name) = (dir, name.to_vec());
            self.add_child(dir);
            self.remove_child(old);
        }
    }

    /// Drops `references` references to `node`.
    pub fn forget(&mut self, node: NodeId, references: u64) {
        if let Some(found) = self.nodes.get_mut(&node) {
            found.references = found.references.saturating_sub(references);
            self.drop_unused(node);
        }
    }

    /// Returns the nodes that were removed from the table since the last call.
    pub fn take_forgotten(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.forgotten)
    }

    fn drop_unused(&mut self, node: NodeId) {
        let unused = |found: &Node| found.references == 0 && found.children == 0;
        if node == ROOT || !self.nodes.get(&node).is_some_and(unused) {
            return;
        }
        let gone = self.nodes.remove(&node).expect("it was there");
        if !gone.is_removed {
            self.names.remove(&(gone.parent, gone.name));
        }
        self.new_dirs.forget(node);
        self.forgotten.push(node);
        self.remove_child(gone.parent);
    }

    fn remove_child(&mut self, dir: NodeId) {
        if let Some(parent) = self.nodes.get_mut(&dir) {
            parent.children -= 1;
            self.drop_unused(dir);
        }
    }

    /// Returns the nodes and names on the path from the root to `node`, without the root.
    pub fn path_to(&self, node: NodeId) -> Result<Vec<(NodeId, Vec<u8>)>> {
        let mut path = Vec::new();
        let mut at = node;
        while at != ROOT {
            let found = self.get(at)?;
            if found.is_removed {
                return Err(Error::new(ErrorKind::Stale, "node", &found.name));
            }
            path.push((at, found.name.clone()));
            at = found.parent;
        }
        path.reverse();
        Ok(path)
    }

    /// Returns true if `node` is `dir` or lies below it.
    pub fn is_below(&self, node: NodeId, dir: NodeId) -> bool {
        let mut at = node;
        while at != dir {
            match self.nodes.get(&at) {
                Some(found) if at != ROOT => at = found.parent,
                _ => return false,
            }
        }
        true
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_stays_while_it_or_a_node_below_it_is_referenced() {
        let mut nodes = Nodes::new();
        let dir = nodes.refer(ROOT, b"dir", Kind::Dir);
        let file = nodes.refer(dir, b"file", Kind::File);
        assert_eq!(nodes.refer(dir, b"file", Kind::File), file);
        nodes.forget(dir, 1);
        nodes.forget(file, 1);
        assert_eq!(nodes.take_forgotten(), []);
        assert_eq!(nodes.path_to(file).unwrap(), [(dir, b"dir".to_vec()), (file, b"file".to_vec())]);
        nodes.forget(file, 1);
        assert_eq!(nodes.take_forgotten(), [file, dir]);
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes.get(file).unwrap_err().kind, ErrorKind::Stale);
    }

    #[test]
    fn numbers_are_the_same_after_the_next_mount_and_follow_a_rename() {
        let (mut one, mut two) = (Nodes::new(), Nodes::new());
        let a = one.refer(ROOT, b"a", Kind::File);
        assert_eq!(two.refer(ROOT, b"a", Kind::File), a);
        one.renamed(ROOT, b"a", ROOT, b"b");
        assert_eq!(one.named(ROOT, b"b"), Some(a));
        let next = one.refer(ROOT, b"a", Kind::File);
        assert_ne!(next, a);
        one.exchanged(ROOT, b"a", ROOT, b"b");
        assert_eq!((one.named(ROOT, b"a"), one.named(ROOT, b"b")), (Some(a), Some(next)));
        assert_eq!(one.removed(ROOT, b"a"), Some(a));
        assert!(one.get(a).unwrap().is_removed && one.named(ROOT, b"a").is_none());
        one.forget(a, 1);
        one.forget(next, 1);
        assert_eq!(one.len(), 1);
    }
}
