//! Promise: a new file is empty, has the mode and owner that were given, is visible immediately and
//! once, and can be written to regardless of its mode.

use quell_vfs::errno::{EEXIST, EISDIR, ENOTDIR};
use quell_vfs::{Change, Context, Kind, NewEntry, OpenMode};

use super::mount::WritableImplementation;
use crate::conformance::implementation::refused;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    for permissions in [0o644, 0o600, 0o755, 0o640, 0o444, 0o400] {
        let name = format!("mode {permissions:o}");
        let new = NewEntry { permissions, ..mount.new };
        let (created, file) =
            verbs.create(&Context::OWN, root, name.as_bytes(), new, OpenMode::READ_WRITE).unwrap();
        assert_eq!((created.kind, created.size_bytes, created.nlink), (Kind::File, 0, 1), "{name}");
        assert_eq!(
            (created.permissions, created.uid, created.gid),
            (permissions, implementation.uid, implementation.gid),
            "{name}"
        );
        let found = mount.lookup(root, &name).expect("it was created");
        assert_eq!((found.node, found.permissions, found.size_bytes), (created.node, permissions, 0));
        file.write_at(b"whatever its mode", 0).unwrap();
        file.publish().unwrap();
        assert_eq!(super::mount::whole(&*file), b"whatever its mode");
    }
    for name in ["file", "dir", "link"] {
        match name {
            "file" => drop(mount.write("file", b"bytes")),
            "dir" => drop(mount.make_dir("dir")),
            _ => drop(verbs.make_symlink(&Context::OWN, root, b"link", b"nowhere", mount.new).unwrap()),
        }
        refused(verbs.create(&Context::OWN, root, name.as_bytes(), mount.new, OpenMode::READ_WRITE), EEXIST);
        refused(verbs.make_dir(&Context::OWN, root, name.as_bytes(), mount.new_dir), EEXIST);
        refused(verbs.make_symlink(&Context::OWN, root, name.as_bytes(), b"x", mount.new), EEXIST);
    }
    assert_eq!(mount.bytes_at("file").unwrap(), b"bytes");
    let file = mount.lookup(root, "file").unwrap().node;
    refused(verbs.create(&Context::OWN, file, b"below a file", mount.new, OpenMode::READ_WRITE), ENOTDIR);
    refused(verbs.open_as(&Context::OWN, root, OpenMode::READ_WRITE), EISDIR);
    passed_on_group(implementation);
    one_winner(implementation);
}

fn passed_on_group(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let verbs = mount.verbs();
    let dir = mount.make_dir("group");
    verbs.change(&Context::OWN, dir, &Change { permissions: Some(0o2775), ..Change::default() }).unwrap();
    let below =
        verbs.make_dir(&Context::OWN, dir, b"dir", NewEntry { permissions: 0o750, ..mount.new }).unwrap();
    assert_eq!((below.permissions, below.gid), (0o2750, implementation.gid));
    let (file, _) = mount.create_in(dir, "file");
    assert_eq!((mount.attributes(file).permissions, mount.attributes(file).gid), (0o644, implementation.gid));
}

/// Checks that exactly one of several threads that create the same name succeeds.
fn one_winner(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    for round in 0..10 {
        let name = format!("lock {round}");
        let name = name.as_bytes();
        let won = std::thread::scope(|scope| {
            let try_it = || {
                mount.fs.writable().unwrap().create(
                    &Context::OWN,
                    mount.root,
                    name,
                    mount.new,
                    OpenMode::WRITE,
                )
            };
            let tries: Vec<_> =
                (0..4).map(|_| scope.spawn(move || try_it().map_err(|e| e.errno()))).collect();
            let answers = tries.into_iter().map(|t| t.join().unwrap());
            answers
                .map(|answer| answer.map(drop))
                .inspect(|a| assert!(matches!(a, Ok(()) | Err(EEXIST))))
                .filter(Result::is_ok)
                .count()
        });
        assert_eq!(won, 1);
    }
}
