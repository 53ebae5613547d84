//! The tree of the nodes of a job, as the reader keeps it. No I/O.
//!
//! Nodes are numbered in the order in which they join, and the reader is node 0. The parent of a
//! node has a smaller number, so there are no cycles.

use std::net::SocketAddr;

use quell_wire::job::{NODE_NAME_BYTES_MAX, NodeNumber, NodeState, Placement, TREE_NODES_MAX, shortened};

/// The number of children of a node. A block then crosses the network to all of N nodes in about
/// log2(N) steps, and no node sends it more than twice.
const CHILDREN: usize = 2;

/// The largest number of nodes.
const NODES_MAX: usize = 1 << 16;

/// The nodes of a job.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    state: NodeState,
    /// `None` for the reader, which every node can reach already.
    address: Option<SocketAddr>,
    /// The first child that has reported the node as lost.
    reporter: Option<NodeNumber>,
    /// Whether two children have reported the node as lost. One report can be caused by the network
    /// of the child.
    is_lost: bool,
}

impl Member {
    fn new(state: NodeState, address: Option<SocketAddr>) -> Member {
        Member { state, address, reporter: None, is_lost: false }
    }
}

impl Tree {
    /// Returns a tree of the reader alone.
    pub fn new(name: &str) -> Tree {
        Tree { nodes: vec![Member::new(state(0, None, name), None)] }
    }

    /// Adds a node, and returns its position; `None` if there are too many nodes.
    pub fn join(&mut self, address: SocketAddr, name: &str) -> Option<Placement> {
        let node = self.nodes.len();
        if node >= NODES_MAX {
            return None;
        }
        let parent = self.living((node - 1) / CHILDREN);
        let state = state(node as NodeNumber, Some(parent as NodeNumber), name);
        self.nodes.push(Member::new(state, Some(address)));
        Some(self.placement(node, parent))
    }

    /// Returns the new position of a node that gets no more blocks from `parent`: an ancestor of
    /// `parent`. `None` if `parent` is not the parent of `node`, or if it is the reader.
    pub fn lost(&mut self, node: NodeNumber, parent: NodeNumber) -> Option<Placement> {
        let (node, lost) = (node as usize, parent as usize);
        if node >= self.nodes.len() || lost == 0 || self.nodes[node].state.parent != Some(parent) {
            return None;
        }
        let member = &mut self.nodes[lost];
        let reporter = *member.reporter.get_or_insert(node as NodeNumber);
        member.is_lost |= reporter as usize != node;
        let above = member.state.parent.map_or(0, |parent| parent as usize);
        let parent = self.living(above);
        self.nodes[node].state.parent = Some(parent as NodeNumber);
        Some(self.placement(node, parent))
    }

    /// Records that a node has all blocks.
    pub fn complete(&mut self, node: NodeNumber, received_bytes: u64, read_bytes: u64, milliseconds: u64) {
        if let Some(member) = self.nodes.get_mut(node as usize) {
            let state = &mut member.state;
            (state.received_bytes, state.read_bytes) = (received_bytes, read_bytes);
            state.milliseconds = Some(milliseconds);
        }
    }

    /// Returns the first nodes.
    pub fn states(&self) -> Vec<NodeState> {
        self.nodes.iter().take(TREE_NODES_MAX).map(|member| member.state.clone()).collect()
    }

    /// Returns the nearest node that is not lost, from `node` upwards.
    fn living(&self, mut node: usize) -> usize {
        while self.nodes[node].is_lost {
            node = self.nodes[node].state.parent.map_or(0, |parent| parent as usize);
        }
        node
    }

    fn placement(&self, node: usize, parent: usize) -> Placement {
        let address = self.nodes[parent].address;
        Placement { node: node as NodeNumber, parent: parent as NodeNumber, address }
    }
}

fn state(node: NodeNumber, parent: Option<NodeNumber>, name: &str) -> NodeState {
    let name = shortened(name, NODE_NAME_BYTES_MAX).to_owned();
    NodeState { node, parent, name, received_bytes: 0, read_bytes: 0, milliseconds: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(node: u16) -> SocketAddr {
        ([10, 0, 0, 1], node).into()
    }

    fn tree(nodes: u16) -> Tree {
        let mut tree = Tree::new("reader");
        for node in 1..nodes {
            assert_eq!(tree.join(address(node), "node").unwrap().node, u32::from(node));
        }
        tree
    }

    fn parents(tree: &Tree) -> Vec<Option<u32>> {
        tree.states().iter().map(|state| state.parent).collect()
    }

    #[test]
    fn each_node_has_two_children_in_the_order_of_joining() {
        let parents = parents(&tree(9));
        assert_eq!(parents, [None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(2), Some(3), Some(3)]);
    }

    #[test]
    fn the_children_of_a_lost_node_get_its_nearest_ancestor_that_is_not_lost() {
        let mut tree = tree(9);
        let place = tree.lost(7, 3).unwrap();
        assert_eq!((place.parent, place.address), (1, Some(address(1))));
        assert_eq!(tree.lost(3, 1).unwrap(), Placement { node: 3, parent: 0, address: None });
        assert_eq!(tree.lost(4, 1).unwrap().parent, 0);
        // Node 1 is lost, too: two children have reported it.
        assert_eq!(tree.lost(8, 3).unwrap().parent, 0);
        assert_eq!(tree.lost(7, 1).unwrap().parent, 0);
        assert_eq!(tree.join(address(9), "n").unwrap().parent, 4);
        assert_eq!(tree.join(address(10), "n").unwrap().parent, 4);
        assert_eq!(tree.lost(9, 4).unwrap().parent, 0);
        assert_eq!(tree.lost(10, 4).unwrap().parent, 0);
    }

    #[test]
    fn one_report_moves_one_child_and_two_children_make_a_parent_lost_for_all() {
        let mut tree = tree(4);
        assert_eq!(tree.lost(3, 1).unwrap().parent, 0);
        // The network of node 3 may be the cause, so the next node is a child of node 1.
        assert_eq!(tree.join(address(4), "n").unwrap().parent, 1);
        // The same node again: its parent is another one now.
        assert_eq!(tree.lost(3, 1), None);
        for node in 5..9 {
            tree.join(address(node), "n");
        }
        assert_eq!(tree.lost(4, 1).unwrap().parent, 0);
        // Node 9 is a child of node 4; children of node 3 that lose it get no lost node.
        assert_eq!(tree.join(address(9), "n").unwrap().parent, 4);
        assert_eq!(tree.lost(7, 3).unwrap().parent, 0);
        let mut tree = self::tree(4);
        tree.lost(3, 1);
        tree.join(address(4), "n");
        tree.lost(4, 1);
        // A new node gets no lost parent.
        tree.nodes.truncate(3);
        assert_eq!(tree.join(address(3), "n").unwrap().parent, 0);
    }

    #[test]
    fn a_message_about_nodes_that_are_no_child_and_parent_changes_nothing() {
        let mut tree = tree(4);
        for (node, parent) in [(3, 2), (3, 0), (1, 0), (9, 1), (0, 0), (u32::MAX, u32::MAX)] {
            assert_eq!(tree.lost(node, parent), None, "{node} {parent}");
        }
        assert_eq!(parents(&tree), [None, Some(0), Some(0), Some(1)]);
        tree.complete(7, 1, 2, 3);
        tree.complete(2, 10, 0, 30);
        let states = tree.states();
        assert_eq!((states[2].received_bytes, states[2].milliseconds), (10, Some(30)));
        assert_eq!(states[1].milliseconds, None);
    }
}
