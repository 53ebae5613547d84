//! Promise: a capability is claimed if and only if it holds.

use quell_vfs::{Capabilities, Context, FileSystem};

use super::implementation::Implementation;
use crate::tree::{Tree, TreeNode};

pub(super) fn check(implementation: &Implementation<'_>) {
    let mut plain = Tree::new();
    plain.add(Tree::ROOT, "file", TreeNode::file("x"));
    let mut cases = vec![plain.clone()];
    if implementation.xattrs {
        let mut noted = plain.clone();
        let dir = noted.add(Tree::ROOT, "dir", TreeNode::dir());
        noted.add(dir, "noted", TreeNode::file("x").with_xattr("user.note", "x"));
        cases.push(noted);
    }
    if implementation.xattrs && implementation.exact {
        let mut listed = plain;
        let acl =
            b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
        listed.add(Tree::ROOT, "acl", TreeNode::file("x").with_xattr("system.posix_acl_access", acl));
        cases.push(listed);
    }
    for tree in cases {
        let instance = implementation.create(&tree);
        let can = instance.fs.capabilities();
        assert_eq!((can.xattrs, can.acls), what_is_there(&*instance.fs, &tree), "{can:?}");
        if can.immutable {
            is_immutable(&*instance.fs, &tree, can);
        }
    }
}

fn what_is_there(fs: &dyn FileSystem, tree: &Tree) -> (bool, bool) {
    let (mut xattrs, mut acls) = (false, false);
    for (path, _) in tree.paths() {
        for name in
            fs.xattr_names(&Context::OWN, quell_vfs::resolve(fs, &Context::OWN, &path).unwrap().node).unwrap()
        {
            xattrs = true;
            acls |= name.starts_with(b"system.posix_acl_");
        }
    }
    (xattrs, acls)
}

/// Checks that the same request gives the same result twice.
fn is_immutable(fs: &dyn FileSystem, tree: &Tree, can: Capabilities) {
    assert_eq!(fs.capabilities(), can);
    for (path, _) in tree.paths() {
        let first = quell_vfs::resolve(fs, &Context::OWN, &path).unwrap();
        assert_eq!(quell_vfs::resolve(fs, &Context::OWN, &path).unwrap(), first);
        assert_eq!(fs.attributes(&Context::OWN, first.node).unwrap(), *first);
    }
}
