//! Promise: an operation whose deadline has passed returns `TimedOut` and changes nothing, if the
//! implementation claims deadlines; otherwise deadlines have no effect.

use std::time::{Duration, Instant};

use quell_vfs::errno::ETIMEDOUT;
use quell_vfs::{Change, Context, OpenMode, Rename};

use super::mount::WritableImplementation;
use crate::conformance::implementation::refused;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (fs, verbs, root) = (&*mount.fs, mount.verbs(), mount.root);
    let node = mount.write("file", b"bytes");
    let now = Instant::now();
    let early = Context { deadline: Some(now + Duration::from_secs(3600)), ..Context::OWN };
    let late = Context { deadline: Some(now), ..Context::OWN };
    let change = Change { permissions: Some(0o600), ..Change::default() };
    if fs.capabilities().deadlines {
        refused(fs.lookup(&late, root, b"file"), ETIMEDOUT);
        refused(fs.attributes(&late, node), ETIMEDOUT);
        refused(fs.attributes_of_path(&late, b"file"), ETIMEDOUT);
        refused(fs.open(&late, node), ETIMEDOUT);
        refused(verbs.open_as(&late, node, OpenMode { truncate: true, ..OpenMode::WRITE }), ETIMEDOUT);
        refused(verbs.create(&late, root, b"new", mount.new, OpenMode::WRITE), ETIMEDOUT);
        refused(verbs.make_dir(&late, root, b"new", mount.new_dir), ETIMEDOUT);
        refused(verbs.make_symlink(&late, root, b"new", b"x", mount.new), ETIMEDOUT);
        refused(verbs.change(&late, node, &change), ETIMEDOUT);
        refused(verbs.rename(&late, root, b"file", root, b"new", Rename::Replace), ETIMEDOUT);
        refused(verbs.remove(&late, root, b"file"), ETIMEDOUT);
        assert_eq!(mount.lookup(root, "new"), None);
        assert_eq!(mount.bytes_at("file").unwrap(), b"bytes");
        assert_eq!(mount.attributes(node).permissions, mount.new.permissions);
    } else {
        assert!(fs.lookup(&late, root, b"file").unwrap().is_some());
        verbs.change(&late, node, &change).unwrap();
    }
    assert_eq!(verbs.change(&early, node, &change).unwrap().permissions, 0o600);
}
