//! Promise: a rename moves an entry with its content and its open files. An existing entry of the
//! new name is replaced, kept or exchanged as requested. A refused rename changes nothing.

use quell_vfs::Context;
use quell_vfs::Rename::{Exchange, Keep, Replace};
use quell_vfs::errno::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EOPNOTSUPP};

use super::mount::{Mount, WritableImplementation, whole};
use crate::compare::listing;
use crate::conformance::implementation::refused;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    files(&implementation.mount());
    directories(&implementation.mount());
    open_files(&implementation.mount());
    if implementation.rename_kinds {
        keep_and_exchange(&implementation.mount());
    } else {
        let mount = implementation.mount();
        mount.write("a", b"a");
        mount.write("b", b"b");
        refused(
            mount.verbs().rename(&Context::OWN, mount.root, b"a", mount.root, b"b", Exchange),
            EOPNOTSUPP,
        );
    }
}

fn files(mount: &Mount) {
    let (verbs, root) = (mount.verbs(), mount.root);
    let a = mount.write("a", b"a");
    let b = mount.write("b", b"b");
    let dir = mount.make_dir("dir");
    refused(verbs.rename(&Context::OWN, root, b"none", root, b"a", Replace), ENOENT);
    refused(verbs.rename(&Context::OWN, root, b"a", a, b"x", Replace), ENOTDIR);
    verbs.rename(&Context::OWN, root, b"a", root, b"a", Replace).unwrap();
    assert_eq!(mount.bytes_at("a").unwrap(), b"a");
    verbs.rename(&Context::OWN, root, b"a", dir, b"c", Replace).unwrap();
    assert_eq!(mount.lookup(root, "a"), None);
    let moved = mount.lookup(dir, "c").unwrap();
    assert_eq!((moved.node, moved.nlink), (a, 1), "a node keeps its number");
    assert_eq!((mount.fs.parent(a).unwrap(), mount.fs.path(a).unwrap()), (dir, b"dir/c".to_vec()));
    verbs.rename(&Context::OWN, dir, b"c", root, b"b", Replace).unwrap();
    assert_eq!(mount.bytes_at("b").unwrap(), b"a");
    assert_eq!(mount.bytes(b), b"b", "a replaced file stays readable by its node");
    assert_eq!(listing(&*mount.fs, root, 10).unwrap().len(), 2);
    refused(verbs.rename(&Context::OWN, root, b"b", root, b"dir", Replace), EISDIR);
    refused(verbs.rename(&Context::OWN, root, b"dir", root, b"b", Replace), ENOTDIR);
    assert_eq!(mount.bytes_at("b").unwrap(), b"a");
}

fn directories(mount: &Mount) {
    let (verbs, root) = (mount.verbs(), mount.root);
    let (a, b, empty) = (mount.make_dir("a"), mount.make_dir("b"), mount.make_dir("empty"));
    let (node, file) = mount.create_in(a, "file");
    file.write_at(b"moved along", 0).unwrap();
    let below = verbs.make_dir(&Context::OWN, a, b"below", mount.new_dir).unwrap().into_attributes().node;
    refused(verbs.rename(&Context::OWN, root, b"a", a, b"x", Replace), EINVAL);
    refused(verbs.rename(&Context::OWN, root, b"a", below, b"x", Replace), EINVAL);
    refused(verbs.rename(&Context::OWN, a, b"below", root, b"a", Replace), ENOTEMPTY);
    refused(verbs.rename(&Context::OWN, root, b"b", root, b"a", Replace), ENOTEMPTY);
    verbs.rename(&Context::OWN, root, b"a", b, b"moved", Replace).unwrap();
    assert_eq!(mount.bytes_at("b/moved/file").unwrap(), b"moved along");
    assert_eq!(mount.fs.path(node).unwrap(), b"b/moved/file");
    file.write_at(b"M", 0).unwrap();
    // References to the directory remain valid.
    assert_eq!(mount.lookup(a, "file").unwrap().node, node);
    let (_, another) = mount.create_in(a, "another");
    another.append(b"x").unwrap();
    assert_eq!(mount.bytes_at("b/moved/another").unwrap(), b"x");
    verbs.rename(&Context::OWN, b, b"moved", root, b"empty", Replace).unwrap();
    assert_eq!(mount.bytes_at("empty/file").unwrap(), b"Moved along");
    assert_eq!(mount.lookup(root, "empty").unwrap().node, a);
    assert!(listing(&*mount.fs, empty, 10).map_or(true, |entries| entries.is_empty()));
    verbs.remove_dir(&Context::OWN, root, b"b").unwrap();
}

fn open_files(mount: &Mount) {
    let (verbs, root) = (mount.verbs(), mount.root);
    let (moving, first) = mount.create("moving");
    let (replaced, second) = mount.create("replaced");
    first.write_at(b"moving", 0).unwrap();
    second.write_at(b"replaced", 0).unwrap();
    verbs.rename(&Context::OWN, root, b"moving", root, b"replaced", Replace).unwrap();
    first.append(b" on").unwrap();
    second.append(b", and written to").unwrap();
    first.publish().unwrap();
    second.publish().unwrap();
    assert_eq!(mount.bytes_at("replaced").unwrap(), b"moving on");
    assert_eq!(whole(&*second), b"replaced, and written to");
    assert_eq!(mount.attributes(replaced).nlink, 0);
    drop((first, second));
    assert_eq!(mount.bytes(moving), b"moving on");
    // Editors replace a file in this way: the file under the name is always complete.
    for round in 0..20_u8 {
        let (_, file) = mount.create("new");
        file.write_at(&vec![round; 1000 + usize::from(round)], 0).unwrap();
        file.sync().unwrap();
        drop(file);
        verbs.rename(&Context::OWN, root, b"new", root, b"replaced", Replace).unwrap();
        assert!(mount.bytes_at("replaced").unwrap() == vec![round; 1000 + usize::from(round)]);
    }
}

fn keep_and_exchange(mount: &Mount) {
    let (verbs, root) = (mount.verbs(), mount.root);
    let a = mount.write("a", b"a");
    let b = mount.write("b", b"b");
    let (dir, below) = (mount.make_dir("dir"), mount.make_dir("other"));
    for name in [&b"b"[..], b"dir", b"a"] {
        refused(verbs.rename(&Context::OWN, root, b"a", root, name, Keep), EEXIST);
    }
    verbs.rename(&Context::OWN, root, b"a", dir, b"a", Keep).unwrap();
    refused(verbs.rename(&Context::OWN, root, b"a", root, b"c", Keep), ENOENT);
    refused(verbs.rename(&Context::OWN, dir, b"a", root, b"none", Exchange), ENOENT);
    verbs.rename(&Context::OWN, dir, b"a", root, b"b", Exchange).unwrap();
    assert_eq!((mount.lookup(root, "b").unwrap().node, mount.lookup(dir, "a").unwrap().node), (a, b));
    assert_eq!((mount.bytes(a), mount.bytes(b)), (b"a".to_vec(), b"b".to_vec()));
    // A file and a directory.
    verbs.rename(&Context::OWN, root, b"b", root, b"dir", Exchange).unwrap();
    assert_eq!((mount.lookup(root, "b").unwrap().node, mount.lookup(root, "dir").unwrap().node), (dir, a));
    assert_eq!(mount.bytes_at("b/a").unwrap(), b"b");
    verbs.rename(&Context::OWN, root, b"other", dir, b"other", Keep).unwrap();
    for answer in [
        verbs.rename(&Context::OWN, root, b"b", below, b"x", Keep),
        verbs.rename(&Context::OWN, root, b"b", dir, b"other", Exchange),
        verbs.rename(&Context::OWN, dir, b"other", root, b"b", Exchange),
    ] {
        refused(answer, EINVAL);
    }
}
