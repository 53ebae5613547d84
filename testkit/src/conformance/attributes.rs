//! Promise: attributes are as described, and the same however the node is reached.

use quell_vfs::resolve;

use super::{World, differences, one_of_everything};
use crate::Model;
use crate::operations::listing;

pub(super) fn check(world: &World<'_>) {
    let tree = one_of_everything();
    let model = Model::new(tree.clone().into());
    let made = world.made(&tree);
    assert_eq!(made.fs.root(), quell_vfs::NodeId(0));
    for (path, number) in tree.paths() {
        let Ok(found) = resolve(&*made.fs, &path) else {
            assert!(!world.devices && tree.node(number).rdev != 0, "{} is missing", path.escape_ascii());
            continue;
        };
        let expected = resolve(&model, &path).unwrap();
        let wrong = differences(&expected, &found, world.exact);
        assert!(wrong.is_empty(), "{}: {wrong:?}", path.escape_ascii());
        assert_eq!(made.fs.attributes(found.node).unwrap(), found);
        if found.kind == quell_vfs::Kind::Dir {
            for (name, listed) in listing(&*made.fs, found.node, 100).unwrap() {
                let looked_up = made.fs.lookup(found.node, &name).unwrap();
                assert_eq!(looked_up, Some(listed), "{}", name.escape_ascii());
            }
        }
    }
}
