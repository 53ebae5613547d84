//! Promise: a node keeps its number and its data while it has references, even if its name changes
//! or is removed. A node with neither references nor a name is stale.

use quell_vfs::errno::ESTALE;
use quell_vfs::{Context, Cursor, NodeId, OpenMode, Rename};

use super::mount::WritableImplementation;
use crate::conformance::implementation::refused;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    assert_eq!((root, mount.attributes(root).node), (NodeId(0), root));
    let node = mount.write("file", b"bytes");
    for _ in 0..5 {
        assert_eq!(mount.lookup(root, "file").unwrap().node, node);
    }
    // A lookup makes a reference, which ends with its guard.
    for _ in 0..3 {
        drop(mount.fs.lookup(&Context::OWN, root, b"file").unwrap());
        assert!(mount.fs.attributes_of_path(&Context::OWN, b"file").unwrap().is_some());
    }
    verbs.rename(&Context::OWN, root, b"file", root, b"moved", Rename::Replace).unwrap();
    verbs.forget(node, 5);
    assert_eq!(mount.bytes(node), b"bytes", "one reference is left");
    verbs.remove(&Context::OWN, root, b"moved").unwrap();
    assert_eq!(mount.bytes(node), b"bytes", "one reference is left");
    verbs.forget(node, 1);
    stale(&mount, node);

    // A removed directory is empty.
    let dir = mount.make_dir("dir");
    verbs.remove_dir(&Context::OWN, root, b"dir").unwrap();
    assert_eq!(mount.attributes(dir).kind, quell_vfs::Kind::Dir);
    verbs.forget(dir, 1);
    stale(&mount, dir);

    // A number is not reused while it has references.
    let mut held = vec![root];
    for round in 0..50 {
        let created = if round % 2 == 0 { mount.write("again", b"x") } else { mount.make_dir("again") };
        assert!(!held.contains(&created), "{created:?}");
        if round % 2 == 0 {
            verbs.remove(&Context::OWN, root, b"again").unwrap();
        } else {
            verbs.remove_dir(&Context::OWN, root, b"again").unwrap();
        }
        if round % 3 == 0 {
            verbs.forget(created, 1);
        } else {
            held.push(created);
        }
    }
    // A node with a name but without references is found again by its name.
    let node = mount.write("kept", b"kept");
    verbs.forget(node, 1);
    assert_eq!(mount.bytes_at("kept").unwrap(), b"kept");
    verbs.forget(root, 1000);
    assert_eq!(mount.attributes(root).node, root);
    for unknown in [1 << 40, u64::MAX] {
        stale(&mount, NodeId(unknown));
    }
}

fn stale(mount: &super::mount::Mount, node: NodeId) {
    let (fs, verbs, new) = (&*mount.fs, mount.verbs(), mount.new);
    refused(fs.attributes(&Context::OWN, node), ESTALE);
    refused(fs.lookup(&Context::OWN, node, b"x"), ESTALE);
    refused(fs.list(&Context::OWN, node, Cursor::START, &mut |_| true), ESTALE);
    refused(fs.open(&Context::OWN, node), ESTALE);
    refused(fs.read_link(&Context::OWN, node), ESTALE);
    refused(verbs.open_as(&Context::OWN, node, OpenMode::READ_WRITE), ESTALE);
    refused(verbs.change(&Context::OWN, node, &quell_vfs::Change::default()), ESTALE);
    refused(verbs.create(&Context::OWN, node, b"x", new, OpenMode::READ_WRITE), ESTALE);
    refused(verbs.make_dir(&Context::OWN, node, b"x", new), ESTALE);
    refused(verbs.remove(&Context::OWN, node, b"x"), ESTALE);
    refused(verbs.rename(&Context::OWN, node, b"x", mount.root, b"y", Rename::Replace), ESTALE);
    verbs.forget(node, 1);
}
