//! Promise: for a node that was never returned, or only by another generation, every method returns
//! `Stale`, and never the result of another node.

use quell_vfs::errno::ESTALE;
use quell_vfs::{Cursor, NodeId};

use super::implementation::{Implementation, refused};
use crate::tree::{Node, Tree};

pub(super) fn check(implementation: &Implementation<'_>) {
    let mut tree = Tree::new();
    tree.add(Tree::ROOT, "file", Node::file("x"));
    let instance = implementation.create(&tree);
    let fs = &*instance.fs;
    for node in [2, 1000, u64::from(u32::MAX), 1 << 32, u64::MAX].map(NodeId) {
        refused(fs.attributes(node), ESTALE);
        refused(fs.lookup(node, b"file"), ESTALE);
        refused(fs.parent(node), ESTALE);
        refused(fs.path(node), ESTALE);
        refused(fs.list(node, Cursor::START, &mut |_| true), ESTALE);
        refused(fs.read_link(node), ESTALE);
        refused(fs.xattr(node, b"user.note"), ESTALE);
        refused(fs.xattr_names(node), ESTALE);
        refused(fs.open(node), ESTALE);
    }
}
