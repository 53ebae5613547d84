//! An implementation to be checked, and the code that the checks share: a tree with every kind of
//! node, and assertions.

use std::any::Any;
use std::sync::Arc;

use quell_vfs::{Context, FileSystem, Kind, NodeId};

use crate::tree::{Tree, TreeNode};

/// A file system created from a described tree, and the resources that must live as long.
pub struct Instance {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// The resources that must live as long as the file system.
    pub keep: Option<Box<dyn Any>>,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").finish_non_exhaustive()
    }
}

/// One implementation, and the features that it supports.
pub struct Implementation<'a> {
    /// The name for messages.
    pub name: &'a str,
    /// Whether all attributes are as described. If false, the file system that holds the tree
    /// determines owners, status change times, block counts, and the sizes and link counts of
    /// directories.
    pub exact: bool,
    /// Whether trees may have devices.
    pub devices: bool,
    /// Whether trees may have extended attributes.
    pub xattrs: bool,
    /// Creates the file system from a tree.
    pub make: &'a dyn Fn(&Tree) -> Instance,
}

impl std::fmt::Debug for Implementation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Implementation").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Implementation<'_> {
    /// Creates the tree without nodes and attributes that the implementation does not support.
    pub(super) fn create(&self, tree: &Tree) -> Instance {
        let device = |node: &TreeNode| matches!(node.kind, Kind::CharDevice | Kind::BlockDevice);
        let mut tree = tree.without(|node| device(node) && !self.devices);
        if !self.xattrs {
            for number in 0..tree.node_count() {
                tree.node_mut(number).xattrs.clear();
            }
        }
        (self.make)(&tree)
    }
}

/// Returns a tree with every kind of node and many kinds of names.
pub(super) fn varied_tree() -> Tree {
    let mut tree = Tree::new();
    let bin = tree.add(Tree::ROOT, "bin", TreeNode::dir().with_permissions(0o2755));
    let tool = tree.add(bin, "tool", TreeNode::file("#!/bin/sh\n").with_permissions(0o4751));
    tree.link(bin, "tool-1.0", tool);
    tree.add(bin, "link", TreeNode::symlink("../lib/a"));
    tree.add(bin, "dangling", TreeNode::symlink(vec![b'x'; 4000]));
    let lib = tree.add(Tree::ROOT, "lib", TreeNode::dir().with_permissions(0o700));
    tree.link(lib, "the tool", tool);
    tree.add(lib, "a", TreeNode::file(vec![7; 70_000]).with_xattr("user.note", "seven"));
    let mut sparse = TreeNode::file("begins");
    sparse.size_bytes = 1 << 33;
    tree.add(lib, "sparse", sparse);
    tree.add(lib, "empty file", TreeNode::file(""));
    tree.add(lib, "fifo", TreeNode::special(Kind::Fifo, 0));
    tree.add(lib, "socket", TreeNode::special(Kind::Socket, 0));
    tree.add(lib, "null", TreeNode::special(Kind::CharDevice, 0x0103));
    tree.add(lib, "disk", TreeNode::special(Kind::BlockDevice, 0x0801));
    let names = tree.add(lib, "names", TreeNode::dir().with_xattr("user.empty", ""));
    for name in [&b"\xff\xfe"[..], b"with\nnewline", b" ", b"...", b"-rf", &[b'n'; 255]] {
        tree.add(names, name, TreeNode::file(name));
    }
    let mut at = tree.add(Tree::ROOT, "deep", TreeNode::dir());
    for depth in 0..40 {
        at = tree.add(at, format!("{depth}"), TreeNode::dir());
    }
    tree.add(Tree::ROOT, "empty", TreeNode::dir());
    let many = tree.add(Tree::ROOT, "many", TreeNode::dir());
    for i in 0..700 {
        tree.add(many, format!("f{i}"), TreeNode::file(format!("{i}")));
    }
    tree
}

/// Returns the node at a path that must exist.
pub(super) fn node_at(fs: &dyn FileSystem, path: &str) -> NodeId {
    let found = quell_vfs::resolve(fs, &Context::OWN, path.as_bytes());
    found.unwrap_or_else(|e| panic!("{path}: {e}")).node()
}

#[track_caller]
pub(super) fn refused<T>(answer: quell_vfs::Result<T>, errno: i32) {
    match answer {
        Ok(_) => panic!("this must be refused"),
        Err(e) => assert_eq!(e.errno(), errno, "{e}"),
    }
}
