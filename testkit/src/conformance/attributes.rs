//! Promise: attributes are as described, and a lookup, a listing, a path and a request by node
//! number return the same attributes.

use quell_vfs::{Context, resolve};

use super::implementation::{Implementation, varied_tree};
use crate::Model;
use crate::compare::differences;
use crate::compare::listing;

pub(super) fn check(implementation: &Implementation<'_>) {
    let tree = varied_tree();
    let model = Model::new(tree.clone().into());
    let instance = implementation.create(&tree);
    assert_eq!(instance.fs.root(), quell_vfs::NodeId(0));
    for (path, number) in tree.paths() {
        let Ok(found) = resolve(&*instance.fs, &Context::OWN, &path) else {
            assert!(
                !implementation.devices && tree.node(number).rdev != 0,
                "{} is missing",
                path.escape_ascii()
            );
            continue;
        };
        let expected = resolve(&model, &Context::OWN, &path).unwrap();
        let wrong = differences(&expected, &found, implementation.exact);
        assert!(wrong.is_empty(), "{}: {wrong:?}", path.escape_ascii());
        assert_eq!(instance.fs.attributes(&Context::OWN, found.node).unwrap(), *found);
        if found.kind == quell_vfs::Kind::Dir {
            for (name, listed) in listing(&*instance.fs, found.node, 100).unwrap() {
                let looked_up = instance.fs.lookup(&Context::OWN, found.node, &name).unwrap().unwrap();
                let attributes = listed.attributes.expect("a read-only tree lists all attributes");
                assert_eq!(attributes, *looked_up, "{}", name.escape_ascii());
                assert_eq!((listed.node, listed.kind), (attributes.node, attributes.kind));
            }
        }
    }
}
