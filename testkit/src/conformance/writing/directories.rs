//! Promise: a new directory is empty, contains the entries created in it, and can be removed only
//! when it is empty.

use quell_vfs::errno::{EINVAL, EISDIR, ENAMETOOLONG, ENOENT, ENOTDIR, ENOTEMPTY};
use quell_vfs::{Context, Kind, NewEntry};

use super::mount::WritableImplementation;
use crate::compare::listing;
use crate::conformance::implementation::refused;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    let created =
        verbs.make_dir(&Context::OWN, root, b"dir", NewEntry { permissions: 0o710, ..mount.new }).unwrap();
    assert_eq!((created.kind, created.permissions), (Kind::Dir, 0o710));
    assert_eq!((created.uid, created.gid), (implementation.uid, implementation.gid));
    assert_eq!(mount.lookup(root, "dir").unwrap().node, created.node);
    assert_eq!(listing(&*mount.fs, created.node, 10).unwrap(), []);
    let (_, file) = mount.create_in(created.node, "file");
    file.write_at(b"below", 0).unwrap();
    file.publish().unwrap();
    assert_eq!(mount.bytes_at("dir/file").unwrap(), b"below");
    assert_eq!(mount.fs.parent(created.node).unwrap(), root);
    let node = mount.lookup(created.node, "file").unwrap().node;
    assert_eq!(
        (mount.fs.parent(node).unwrap(), mount.fs.path(node).unwrap()),
        (created.node, b"dir/file".to_vec())
    );
    refused(verbs.remove_dir(&Context::OWN, root, b"dir"), ENOTEMPTY);
    refused(verbs.remove(&Context::OWN, root, b"dir"), EISDIR);
    refused(verbs.remove_dir(&Context::OWN, created.node, b"file"), ENOTDIR);
    refused(verbs.remove_dir(&Context::OWN, root, b"none"), ENOENT);
    refused(verbs.remove(&Context::OWN, root, b"none"), ENOENT);
    refused(verbs.remove(&Context::OWN, node, b"x"), ENOTDIR);
    refused(mount.fs.lookup(&Context::OWN, node, b"x"), ENOTDIR);
    refused(mount.fs.read_link(&Context::OWN, created.node), EINVAL);
    drop(file);
    verbs.remove(&Context::OWN, created.node, b"file").unwrap();
    verbs.remove_dir(&Context::OWN, root, b"dir").unwrap();
    assert_eq!(mount.lookup(root, "dir"), None);
    assert_eq!(listing(&*mount.fs, root, 10).unwrap(), []);
    // A directory created again under the same name is a different one, and empty.
    let again = mount.make_dir("dir");
    assert_ne!(again, created.node);
    deep(implementation);
}

/// Checks that a path may be longer than PATH_MAX: here it has 6,064 bytes. If the implementation
/// has a limit, only a longer path is refused.
fn deep(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let name = [b'd'; 100];
    let depth = 60.min(implementation.path_bytes_max / 101);
    let mut at = mount.root;
    for _ in 0..depth {
        at = mount.verbs().make_dir(&Context::OWN, at, &name, mount.new_dir).unwrap().into_attributes().node;
    }
    if depth < 60 {
        refused(mount.verbs().make_dir(&Context::OWN, at, &name, mount.new_dir), ENAMETOOLONG);
    }
    let (node, file) = mount.create_in(at, "file");
    file.write_at(b"deep", 0).unwrap();
    drop(file);
    assert_eq!(mount.bytes(node), b"deep");
    assert_eq!(mount.fs.path(node).unwrap().len(), depth * 101 + 4);
}
