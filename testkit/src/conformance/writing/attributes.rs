//! Promise: mode, owner and time are as they were set, and nothing else changes with them. A time
//! that was set remains until the next write, even while earlier writes are being published.

use quell_vfs::{Change, Context, Kind, NodeId, Time};

use super::mount::{Mount, WritableImplementation, whole};

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let file = mount.write("file", b"bytes");
    let dir = mount.make_dir("dir");
    for node in [file, dir] {
        for permissions in [0o600, 0o755, 0o444, 0o700] {
            let before = mount.attributes(node);
            let after = change(&mount, node, Change { permissions: Some(permissions), ..Change::default() });
            assert_eq!(after.permissions, permissions);
            assert_eq!(
                (after.modified, after.size_bytes, after.uid),
                (before.modified, before.size_bytes, before.uid)
            );
            assert!(after.changed >= before.changed);
        }
    }
    assert_eq!(mount.bytes(file), b"bytes");
    if implementation.owners {
        for node in [file, dir] {
            let after = change(&mount, node, Change { uid: Some(1234), ..Change::default() });
            assert_eq!((after.uid, after.gid), (1234, implementation.gid));
            let after = change(&mount, node, Change { gid: Some(4321), ..Change::default() });
            assert_eq!((after.uid, after.gid), (1234, 4321));
        }
        let (node, written) = mount.create("given away while open");
        written.write_at(b"before", 0).unwrap();
        change(&mount, node, Change { uid: Some(1234), gid: Some(4321), ..Change::default() });
        written.append(b" and after").unwrap();
        written.publish().unwrap();
        drop(written);
        assert_eq!(mount.bytes(node), b"before and after");
    }
    times(implementation);
}

fn change(mount: &Mount, node: NodeId, what: Change) -> quell_vfs::Attributes {
    let after = mount.verbs().change(&Context::OWN, node, &what).unwrap();
    assert_eq!(mount.attributes(node), after);
    after
}

fn times(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let time = |seconds| Time { seconds, nanoseconds: 123_456_789 };
    let set =
        |node, seconds| change(&mount, node, Change { modified: Some(time(seconds)), ..Change::default() });
    let (node, file) = mount.create("file");
    for (kind, node) in [(Kind::Dir, mount.make_dir("dir")), (Kind::File, node)] {
        for seconds in [1_000_000_000, 0, 2_000_000_000, 1_500_000_000] {
            assert_eq!(set(node, seconds).modified, time(seconds), "{kind:?}");
        }
    }
    // The order of `cp -p`: write, set attributes, close.
    file.write_at(b"bytes", 0).unwrap();
    set(node, 1_000_000_000);
    file.publish().unwrap();
    assert_eq!(mount.attributes(node).modified, time(1_000_000_000), "after publish");
    file.sync().unwrap();
    drop(file);
    assert_eq!(mount.attributes(node).modified, time(1_000_000_000), "after close");
    assert_eq!(mount.lookup(mount.root, "file").unwrap().modified, time(1_000_000_000));
    // A later write changes the time.
    let file = mount.open(node);
    assert_eq!(whole(&*file), b"bytes");
    assert_eq!(mount.attributes(node).modified, time(1_000_000_000), "opening and reading change nothing");
    file.write_at(b"B", 0).unwrap();
    assert_ne!(mount.attributes(node).modified, time(1_000_000_000));
    file.publish().unwrap();
    drop(file);
    assert_ne!(mount.attributes(node).modified, time(1_000_000_000));
    // A new size and an open that truncates also change it.
    set(node, 1_000_000_000);
    assert_ne!(
        change(&mount, node, Change { size_bytes: Some(2), ..Change::default() }).modified,
        time(1_000_000_000)
    );
    set(node, 1_000_000_000);
    let both = Change { size_bytes: Some(1), modified: Some(time(7)), ..Change::default() };
    assert_eq!(change(&mount, node, both).modified, time(7));
    assert_eq!(mount.bytes(node), b"B");
}
