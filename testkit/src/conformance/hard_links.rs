//! Promise: the names of one file are one node, and different files are different nodes.

use std::collections::HashMap;

use quell_vfs::{Context, resolve};

use super::implementation::{Implementation, varied_tree};

pub(super) fn check(implementation: &Implementation<'_>) {
    let tree = varied_tree();
    let instance = implementation.create(&tree);
    let mut numbers = HashMap::new();
    let mut names: HashMap<_, u32> = HashMap::new();
    for (path, number) in tree.paths() {
        let Ok(found) = resolve(&*instance.fs, &Context::OWN, &path) else { continue };
        let before = *numbers.entry(found.node).or_insert(number);
        assert_eq!(before, number, "{} shares its node with another file", path.escape_ascii());
        *names.entry(number).or_default() += 1;
    }
    let nodes: std::collections::HashSet<_> = numbers.values().collect();
    assert_eq!(nodes.len(), numbers.len(), "one file has become two nodes");
    let tool = resolve(&*instance.fs, &Context::OWN, b"bin/tool").unwrap();
    assert_eq!(tool.nlink, 3);
    assert_eq!(tool.node, resolve(&*instance.fs, &Context::OWN, b"lib/the tool").unwrap().node);
    assert_eq!(tool.node, resolve(&*instance.fs, &Context::OWN, b"bin/tool-1.0").unwrap().node);
}
