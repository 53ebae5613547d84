//! A directory tree described in memory, from which the model, the memory directory and a real
//! directory are created. It stores what `stat` returns, except values that can be derived.

use std::collections::BTreeMap;

use quell_vfs::{Kind, Time};

/// The number of a node in the description; the root is 0.
pub type NodeNumber = usize;

/// A node of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeNode {
    /// The kind.
    pub kind: Kind,
    /// The lower twelve bits of `st_mode`.
    pub permissions: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number of a device.
    pub rdev: u64,
    /// The size.
    pub size_bytes: u64,
    /// The block count, in units of 512 bytes.
    pub blocks: u64,
    /// The modification time.
    pub modified: Time,
    /// The status change time.
    pub changed: Time,
    /// The first bytes of a file; zeros follow up to its size.
    pub data: Vec<u8>,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// The extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The entries of a directory.
    pub children: BTreeMap<Vec<u8>, NodeNumber>,
    /// The number of names that a file has outside the tree.
    pub outside_links: u32,
}

impl TreeNode {
    fn new(kind: Kind, permissions: u32) -> TreeNode {
        let time = Time { seconds: 1_700_000_000, nanoseconds: 123_456_789 };
        TreeNode {
            kind,
            permissions,
            uid: 1000,
            gid: 100,
            rdev: 0,
            size_bytes: 0,
            blocks: 0,
            modified: time,
            changed: time,
            data: Vec::new(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            children: BTreeMap::new(),
            outside_links: 0,
        }
    }

    /// Returns an empty directory.
    pub fn dir() -> TreeNode {
        TreeNode { size_bytes: 4096, blocks: 8, ..TreeNode::new(Kind::Dir, 0o755) }
    }

    /// Returns a regular file with this data.
    pub fn file(data: impl AsRef<[u8]>) -> TreeNode {
        let data = data.as_ref().to_vec();
        let size_bytes = data.len() as u64;
        TreeNode {
            size_bytes,
            blocks: size_bytes.div_ceil(4096) * 8,
            data,
            ..TreeNode::new(Kind::File, 0o644)
        }
    }

    /// Returns a symbolic link with this target.
    pub fn symlink(target: impl AsRef<[u8]>) -> TreeNode {
        let target = target.as_ref().to_vec();
        TreeNode { size_bytes: target.len() as u64, target, ..TreeNode::new(Kind::Symlink, 0o777) }
    }

    /// Creates a fifo, a socket or, with its number, a device.
    pub fn special(kind: Kind, rdev: u64) -> TreeNode {
        TreeNode { rdev, ..TreeNode::new(kind, 0o600) }
    }

    /// Returns the node with other permissions.
    pub fn with_permissions(self, permissions: u32) -> TreeNode {
        TreeNode { permissions, ..self }
    }

    /// Returns the node with one more extended attribute.
    pub fn with_xattr(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> TreeNode {
        self.xattrs.insert(name.as_ref().to_vec(), value.as_ref().to_vec());
        self
    }

    /// Reads from `offset`; returns the number of bytes read.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> usize {
        let count = self.size_bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        for (i, byte) in into[..count].iter_mut().enumerate() {
            let at = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(i));
            *byte = at.and_then(|at| self.data.get(at)).copied().unwrap_or(0);
        }
        count
    }
}

/// A complete tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    nodes: Vec<TreeNode>,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree::new()
    }
}

impl Tree {
    /// The root directory.
    pub const ROOT: NodeNumber = 0;

    /// Creates a root without entries.
    pub fn new() -> Tree {
        Tree { nodes: vec![TreeNode::dir()] }
    }

    /// Returns a node.
    pub fn node(&self, number: NodeNumber) -> &TreeNode {
        &self.nodes[number]
    }

    /// Returns a node to be changed.
    pub fn node_mut(&mut self, number: NodeNumber) -> &mut TreeNode {
        &mut self.nodes[number]
    }

    /// Returns the number of nodes ever added; nodes without names still count.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Adds a node with a name and replaces an existing entry of that name.
    pub fn add(&mut self, dir: NodeNumber, name: impl AsRef<[u8]>, node: TreeNode) -> NodeNumber {
        let number = self.nodes.len();
        self.nodes.push(node);
        self.link(dir, name, number);
        number
    }

    /// Adds a name for a node.
    pub fn link(&mut self, dir: NodeNumber, name: impl AsRef<[u8]>, number: NodeNumber) {
        assert_eq!(self.nodes[dir].kind, Kind::Dir);
        quell_vfs::check_name(name.as_ref()).expect("a legal name");
        self.nodes[dir].children.insert(name.as_ref().to_vec(), number);
    }

    /// Removes a name and returns its node; `None` if there is no such name.
    pub fn remove(&mut self, dir: NodeNumber, name: &[u8]) -> Option<NodeNumber> {
        self.nodes[dir].children.remove(name)
    }

    /// Returns all paths with their nodes: the root first, and each directory before its entries.
    pub fn paths(&self) -> Vec<(Vec<u8>, NodeNumber)> {
        let mut paths = vec![(Vec::new(), Tree::ROOT)];
        let mut next = 0;
        while let Some((path, number)) = paths.get(next).cloned() {
            next += 1;
            for (name, child) in &self.nodes[number].children {
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(name);
                paths.push((below, *child));
            }
        }
        paths
    }

    /// Returns the link count of each node: for a file the number of its names, for a directory 2
    /// plus the number of its child directories.
    pub fn link_counts(&self) -> Vec<u32> {
        let directories =
            |node: &TreeNode| node.children.values().filter(|c| self.nodes[**c].kind == Kind::Dir).count();
        let of = |node: &TreeNode| match node.kind {
            Kind::Dir => 2 + directories(node) as u32,
            _ => node.outside_links,
        };
        let mut counts: Vec<u32> = self.nodes.iter().map(of).collect();
        for (_, number) in self.paths() {
            if self.nodes[number].kind != Kind::Dir {
                counts[number] += 1;
            }
        }
        counts
    }

    /// Returns the same tree without the nodes for which `drop` returns true.
    pub fn without(&self, drop: impl Fn(&TreeNode) -> bool) -> Tree {
        let mut tree = self.clone();
        for number in 0..tree.nodes.len() {
            let names: Vec<_> = tree.nodes[number].children.clone().into_iter().collect();
            for (name, child) in names {
                if drop(&self.nodes[child]) {
                    tree.remove(number, &name);
                }
            }
        }
        tree
    }
}
