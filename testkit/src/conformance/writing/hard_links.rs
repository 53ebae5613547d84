//! Promise: a node other than a directory can get several names, which are the same node until the
//! last one is removed.

use quell_vfs::errno::{EEXIST, EINVAL, ENAMETOOLONG, ENOENT, ENOTDIR, EOPNOTSUPP, EPERM, ESTALE};
use quell_vfs::{Change, Context, NodeId, Rename};

use super::mount::{Mount, WritableImplementation, whole};
use crate::conformance::implementation::refused;

impl Mount {
    /// Links a node, and keeps the reference.
    fn link(&self, node: NodeId, dir: NodeId, name: &str) {
        let linked = self.verbs().link(&Context::OWN, node, dir, name.as_bytes());
        assert_eq!(linked.unwrap_or_else(|e| panic!("{name}: {e}")).into_attributes().node, node);
    }
}

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    let node = mount.write("file", b"bytes");
    if !implementation.hard_links {
        return refused(verbs.link(&Context::OWN, node, root, b"other"), EOPNOTSUPP);
    }
    let dir = mount.make_dir("dir");
    let file = mount.open(node);
    file.append(b" and more").unwrap();
    mount.link(node, root, "other");
    mount.link(node, dir, "third");
    assert_eq!(mount.attributes(node).nlink, 3);
    for (dir, name) in [(root, "file"), (root, "other"), (dir, "third")] {
        let found = mount.lookup(dir, name).unwrap();
        assert_eq!((found.node, found.nlink, found.size_bytes), (node, 3, 14), "{name}");
    }
    verbs.change(&Context::OWN, node, &Change { permissions: Some(0o600), ..Change::default() }).unwrap();
    file.write_at(b"B", 0).unwrap();
    assert_eq!(mount.bytes_at("dir/third").unwrap(), b"Bytes and more");
    assert_eq!(mount.lookup(root, "other").unwrap().permissions, 0o600);
    // One name replaces another one of the same node: nothing changes.
    verbs.rename(&Context::OWN, root, b"file", root, b"other", Rename::Replace).unwrap();
    assert_eq!(mount.attributes(node).nlink, 3);
    verbs.remove(&Context::OWN, root, b"file").unwrap();
    verbs.rename(&Context::OWN, root, b"other", dir, b"moved", Rename::Replace).unwrap();
    assert_eq!((mount.attributes(node).nlink, mount.lookup(root, "other")), (2, None));
    assert_eq!(mount.bytes_at("dir/moved").unwrap(), b"Bytes and more");
    // Another file replaces one of the names.
    let new = mount.write("new", b"new");
    verbs.rename(&Context::OWN, root, b"new", dir, b"third", Rename::Replace).unwrap();
    assert_eq!((mount.lookup(dir, "third").unwrap().node, mount.attributes(node).nlink), (new, 1));
    file.append(b"!").unwrap();
    verbs.remove(&Context::OWN, dir, b"moved").unwrap();
    assert_eq!((whole(&*file), mount.attributes(node).nlink), (b"Bytes and more!".to_vec(), 0));
    match verbs.link(&Context::OWN, node, root, b"again").map_err(|error| error.errno()) {
        Err(ENOENT | ESTALE) => {}
        other => panic!("a removed file: {other:?}"),
    }
    drop(file);
    refuse(implementation);
    several_mounts(implementation);
}

fn refuse(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    let (node, dir) = (mount.write("file", b""), mount.make_dir("dir"));
    let link = |node, dir, name: &[u8]| verbs.link(&Context::OWN, node, dir, name).map(drop);
    refused(link(node, root, b"file"), EEXIST);
    refused(link(node, root, b"dir"), EEXIST);
    refused(link(dir, root, b"x"), EPERM);
    refused(link(node, node, b"x"), ENOTDIR);
    refused(link(node, root, &[b'n'; 256]), ENAMETOOLONG);
    for bad in [&b""[..], b".", b"..", b"a/b"] {
        refused(link(node, root, bad), EINVAL);
    }
    verbs.remove_dir(&Context::OWN, root, b"dir").unwrap();
    refused(link(node, dir, b"x"), ENOENT);
    assert_eq!(mount.attributes(node).nlink, 1);
    // A symbolic link is linked itself.
    let made = verbs.make_symlink(&Context::OWN, root, b"symlink", b"file", mount.new).unwrap();
    let symlink = made.into_attributes().node;
    mount.link(symlink, root, "second");
    let found = mount.lookup(root, "second").unwrap();
    assert_eq!(
        (found.node, mount.fs.read_link(&Context::OWN, symlink).unwrap()),
        (symlink, b"file".to_vec())
    );
}

fn several_mounts(implementation: &WritableImplementation<'_>) {
    let Some(two) = implementation.two_mounts() else { return };
    let (a, b) = (&two.a, &two.b);
    let (node, file) = a.create("file");
    let on_b = b.lookup(b.root, "file").unwrap().node;
    b.link(on_b, b.root, "other");
    file.write_at(b"bytes", 0).unwrap();
    file.publish().unwrap();
    assert_eq!((b.bytes_at("other").unwrap(), b.attributes(on_b).nlink), (b"bytes".to_vec(), 2));
    b.verbs().remove(&Context::OWN, b.root, b"file").unwrap();
    file.append(b" and more").unwrap();
    file.close().unwrap();
    assert_eq!((b.bytes_at("other").unwrap(), a.attributes(node).nlink), (b"bytes and more".to_vec(), 1));
}
