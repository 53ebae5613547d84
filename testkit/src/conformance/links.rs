//! Promise: the target of a symbolic link is unchanged, and other nodes have no target.

use quell_vfs::Context;
use quell_vfs::errno::EINVAL;

use super::implementation::{Implementation, node_at, refused, varied_tree};
use crate::tree::{Tree, TreeNode};

pub(super) fn check(implementation: &Implementation<'_>) {
    let instance = implementation.create(&varied_tree());
    let fs = &*instance.fs;
    assert_eq!(fs.read_link(&Context::OWN, node_at(fs, "bin/link")).unwrap(), b"../lib/a");
    assert_eq!(fs.read_link(&Context::OWN, node_at(fs, "bin/dangling")).unwrap(), [b'x'; 4000]);
    for no_link in ["", "bin", "bin/tool", "lib/fifo"] {
        refused(fs.read_link(&Context::OWN, node_at(fs, no_link)), EINVAL);
    }
    let mut tree = Tree::new();
    for (i, target) in [&b"/"[..], b".", b"\xff\xfe\n ", b"a//b/", &[b'y'; 4095]].iter().enumerate() {
        tree.add(Tree::ROOT, format!("{i}"), TreeNode::symlink(target));
    }
    let instance = implementation.create(&tree);
    for (name, number) in &tree.node(Tree::ROOT).children {
        let found =
            instance.fs.lookup(&Context::OWN, instance.fs.root(), name).unwrap().expect("it was created");
        let target = &tree.node(*number).target;
        assert_eq!(&instance.fs.read_link(&Context::OWN, found.node).unwrap(), target);
        assert_eq!(found.size_bytes, target.len() as u64);
    }
}
