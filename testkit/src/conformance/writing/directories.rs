//! Promise: a new directory is empty, contains the entries created in it, and can be removed only
//! when it is empty.

use quell_vfs::errno::{EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY};
use quell_vfs::{Kind, New};

use super::{WritingWorld, refused};
use crate::operations::listing;

pub(super) fn check(world: &WritingWorld<'_>) {
    let mount = world.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    let made = verbs.make_dir(root, b"dir", New { permissions: 0o710, ..mount.new }).unwrap();
    assert_eq!((made.kind, made.permissions), (Kind::Dir, 0o710));
    assert_eq!((made.uid, made.gid), (world.uid, world.gid));
    assert_eq!(mount.lookup(root, "dir").unwrap().node, made.node);
    assert_eq!(listing(&*mount.fs, made.node, 10).unwrap(), []);
    let (_, file) = mount.create_in(made.node, "file");
    file.write_at(b"below", 0).unwrap();
    file.publish().unwrap();
    assert_eq!(mount.bytes_at("dir/file").unwrap(), b"below");
    assert_eq!(mount.fs.parent(made.node).unwrap(), root);
    let node = mount.lookup(made.node, "file").unwrap().node;
    assert_eq!(
        (mount.fs.parent(node).unwrap(), mount.fs.path(node).unwrap()),
        (made.node, b"dir/file".to_vec())
    );
    refused(verbs.remove_dir(root, b"dir"), ENOTEMPTY);
    refused(verbs.remove(root, b"dir"), EISDIR);
    refused(verbs.remove_dir(made.node, b"file"), ENOTDIR);
    refused(verbs.remove_dir(root, b"none"), ENOENT);
    refused(verbs.remove(root, b"none"), ENOENT);
    refused(verbs.remove(node, b"x"), ENOTDIR);
    refused(mount.fs.lookup(node, b"x"), ENOTDIR);
    refused(mount.fs.read_link(made.node), EINVAL);
    drop(file);
    verbs.remove(made.node, b"file").unwrap();
    verbs.remove_dir(root, b"dir").unwrap();
    assert_eq!(mount.lookup(root, "dir"), None);
    assert_eq!(listing(&*mount.fs, root, 10).unwrap(), []);
    // A directory created again under the same name is a different one, and empty.
    let again = mount.make_dir("dir");
    assert_ne!(again, made.node);
    deep(world);
}

/// No path is too long.
fn deep(world: &WritingWorld<'_>) {
    let mount = world.mount();
    let name = [b'd'; 100];
    let mut at = mount.root;
    for _ in 0..60 {
        at = mount.verbs().make_dir(at, &name, mount.new_dir).unwrap().node;
    }
    let (node, file) = mount.create_in(at, "file");
    file.write_at(b"deep", 0).unwrap();
    drop(file);
    assert_eq!(mount.bytes(node), b"deep");
    assert_eq!(mount.fs.path(node).unwrap().len(), 60 * 101 + 4);
}
