//! Promise: a file that is removed while it is open, or has references, keeps its data and can be
//! written to; its name is free immediately.

use quell_vfs::errno::ENOENT;
use quell_vfs::{Change, Context};

use super::mount::{WritableImplementation, whole};
use crate::conformance::implementation::refused;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    let (old, file) = mount.create("file");
    file.write_at(b"old", 0).unwrap();
    let second = mount.open(old);
    verbs.remove(&Context::OWN, root, b"file").unwrap();
    refused(verbs.remove(&Context::OWN, root, b"file"), ENOENT);
    assert_eq!(mount.lookup(root, "file"), None);
    let new = mount.write("file", b"new");
    assert_ne!(old, new);
    file.append(b", but alive").unwrap();
    file.publish().unwrap();
    file.sync().unwrap();
    assert_eq!(whole(&*second), b"old, but alive");
    assert_eq!(mount.attributes(old).nlink, 0);
    verbs
        .change(
            &Context::OWN,
            old,
            &Change { size_bytes: Some(3), permissions: Some(0o600), ..Change::default() },
        )
        .unwrap();
    assert_eq!((mount.attributes(old).permissions, mount.attributes(old).size_bytes), (0o600, 3));
    drop((file, second));
    // The file has a reference, so it can be opened again.
    let file = mount.open(old);
    file.append(b"!").unwrap();
    assert_eq!(whole(&*file), b"old!");
    verbs.forget(old, 1);
    assert_eq!(whole(&*file), b"old!", "an open file needs no reference");
    file.write_at(b"O", 0).unwrap();
    file.publish().unwrap();
    drop(file);
    assert_eq!(mount.bytes_at("file").unwrap(), b"new");

    // Removed together with its directory.
    let dir = mount.make_dir("dir");
    let (_, file) = mount.create_in(dir, "file");
    file.write_at(b"bytes", 0).unwrap();
    verbs.remove(&Context::OWN, dir, b"file").unwrap();
    verbs.remove_dir(&Context::OWN, root, b"dir").unwrap();
    file.append(b" that stay").unwrap();
    file.publish().unwrap();
    assert_eq!(whole(&*file), b"bytes that stay");
}
