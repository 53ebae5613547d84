//! Promise: resolving a node's `path` returns the node, and its `parent` lists it.

use quell_vfs::{Context, resolve};

use super::implementation::{Implementation, varied_tree};
use crate::compare::listing;

pub(super) fn check(implementation: &Implementation<'_>) {
    let tree = varied_tree();
    let instance = implementation.create(&tree);
    let fs = &*instance.fs;
    assert_eq!(fs.path(fs.root()).unwrap(), b"");
    assert_eq!(fs.parent(fs.root()).unwrap(), fs.root());
    for (path, number) in tree.paths() {
        let Ok(found) = resolve(fs, &Context::OWN, &path) else { continue };
        let said = fs.path(found.node).unwrap();
        assert_eq!(resolve(fs, &Context::OWN, &said).unwrap(), found, "{}", path.escape_ascii());
        if found.nlink == 1 || tree.node(number).kind == quell_vfs::Kind::Dir {
            assert_eq!(said, path);
        }
        if !said.is_empty() {
            let parent = fs.parent(found.node).unwrap();
            let listed = listing(fs, parent, 1000).unwrap();
            let name = said.rsplit(|b| *b == b'/').next().expect("split gives one");
            assert!(listed.iter().any(|(n, a)| n == name && a.node == found.node));
        }
    }
}
