//! Promise: a symbolic link keeps its target unchanged and is never followed.

use quell_vfs::errno::{EINVAL, ENOTDIR};
use quell_vfs::{Context, Kind, OpenMode, Rename};

use super::mount::WritableImplementation;
use crate::conformance::implementation::refused;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    mount.write("file", b"bytes");
    let long = vec![b'x'; 4000];
    for (i, target) in
        [&b"file"[..], b"../../etc/passwd", b"a/b/../c", b"\xff\n", b".", &long].iter().enumerate()
    {
        let name = format!("link {i}");
        let created = verbs.make_symlink(&Context::OWN, root, name.as_bytes(), target, mount.new).unwrap();
        assert_eq!((created.kind, created.size_bytes), (Kind::Symlink, target.len() as u64));
        let found = mount.lookup(root, &name).unwrap();
        assert_eq!((found.kind, found.node), (Kind::Symlink, created.node));
        assert_eq!(mount.fs.read_link(&Context::OWN, found.node).unwrap(), *target);
        refused(verbs.open_as(&Context::OWN, found.node, OpenMode::READ), EINVAL);
        refused(mount.fs.lookup(&Context::OWN, found.node, b"x"), ENOTDIR);
    }
    verbs.rename(&Context::OWN, root, b"link 0", root, b"link 1", Rename::Replace).unwrap();
    assert_eq!(
        mount.fs.read_link(&Context::OWN, mount.lookup(root, "link 1").unwrap().node).unwrap(),
        b"file"
    );
    verbs.remove(&Context::OWN, root, b"link 1").unwrap();
    assert_eq!(mount.bytes_at("file").unwrap(), b"bytes");
    verbs.rename(&Context::OWN, root, b"file", root, b"link 2", Rename::Replace).unwrap();
    assert_eq!(mount.bytes_at("link 2").unwrap(), b"bytes");
    refused(mount.fs.read_link(&Context::OWN, mount.lookup(root, "link 2").unwrap().node), EINVAL);
}
