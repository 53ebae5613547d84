//! Promise: for a node that was never returned, or only by another generation, every method returns
//! `Stale`, and never the result of another node.

use quell_vfs::errno::ESTALE;
use quell_vfs::{Context, Cursor, NodeId};

use super::implementation::{Implementation, refused};
use crate::tree::{Tree, TreeNode};

pub(super) fn check(implementation: &Implementation<'_>) {
    let mut tree = Tree::new();
    tree.add(Tree::ROOT, "file", TreeNode::file("x"));
    let instance = implementation.create(&tree);
    let fs = &*instance.fs;
    for node in [2, 1000, u64::from(u32::MAX), 1 << 32, u64::MAX].map(NodeId) {
        refused(fs.attributes(&Context::OWN, node), ESTALE);
        refused(fs.lookup(&Context::OWN, node, b"file"), ESTALE);
        refused(fs.parent(node), ESTALE);
        refused(fs.path(node), ESTALE);
        refused(fs.list(&Context::OWN, node, Cursor::START, &mut |_| true), ESTALE);
        refused(fs.read_link(&Context::OWN, node), ESTALE);
        refused(fs.xattr(&Context::OWN, node, b"user.note"), ESTALE);
        refused(fs.xattr_names(&Context::OWN, node), ESTALE);
        refused(fs.open(&Context::OWN, node), ESTALE);
    }
}
