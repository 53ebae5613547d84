//! Promise: extended attributes are as they were set, and their names have an order that never
//! changes. An attribute that is not set is not an error.

use super::implementation::Implementation;
use crate::tree::{Tree, TreeNode};
use quell_vfs::Context;

pub(super) fn check(implementation: &Implementation<'_>) {
    let mut tree = Tree::new();
    let mut node = TreeNode::file("x");
    for (name, value) in [("user.b", "2"), ("user.a", "1"), ("user.empty", "")] {
        node = node.with_xattr(name, value);
    }
    let node = node.with_xattr("user.long", vec![9; 2000]).with_xattr(b"user.\xff\xfe", "odd");
    let number = tree.add(Tree::ROOT, "file", node);
    tree.link(Tree::ROOT, "the same file", number);
    let dir = tree.add(Tree::ROOT, "dir", TreeNode::dir().with_xattr("user.of-dir", "x"));
    tree.add(dir, "plain", TreeNode::file("x"));
    let instance = implementation.create(&tree);
    let fs = &*instance.fs;
    for (path, number) in tree.paths() {
        let node = quell_vfs::resolve(fs, &Context::OWN, &path).unwrap().node;
        let expected =
            if implementation.xattrs { tree.node(number).xattrs.clone() } else { Default::default() };
        let names = fs.xattr_names(&Context::OWN, node).unwrap();
        assert_eq!(fs.xattr_names(&Context::OWN, node).unwrap(), names);
        let mut sorted = names.clone();
        sorted.sort();
        assert!(sorted.iter().eq(expected.keys()), "{}: {names:?}", path.escape_ascii());
        for name in names {
            assert_eq!(fs.xattr(&Context::OWN, node, &name).unwrap().as_ref(), expected.get(&name));
        }
        for absent in [&b"user.none"[..], b"user.", b"", b"security.capability"] {
            assert_eq!(fs.xattr(&Context::OWN, node, absent).unwrap(), None);
        }
    }
}
