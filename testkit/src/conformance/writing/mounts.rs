//! Promise: data published by one mount is read by every later open on another mount; names are
//! visible immediately. Writers on several mounts may write to different parts of one file.

use quell_vfs::{Change, Context, OpenMode, Rename};

use super::mount::{WritableImplementation, whole};

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let Some(two) = implementation.two_mounts() else { return };
    let (a, b) = (&two.a, &two.b);
    let node = a.write("file", b"written by a");
    assert_eq!(b.bytes_at("file").unwrap(), b"written by a");
    let on_b = b.lookup(b.root, "file").unwrap().node;
    let file = b.open(on_b);
    file.append(b" and b").unwrap();
    file.publish().unwrap();
    assert_eq!(a.bytes(node), b"written by a and b", "published, and still open");
    drop(file);
    a.verbs().change(&Context::OWN, node, &Change { size_bytes: Some(10), ..Change::default() }).unwrap();
    assert_eq!(b.bytes(on_b), b"written by");
    drop(b.verbs().open_as(&Context::OWN, on_b, OpenMode { truncate: true, ..OpenMode::WRITE }).unwrap());
    assert_eq!(a.bytes(node), b"");
    a.verbs().change(&Context::OWN, node, &Change { permissions: Some(0o600), ..Change::default() }).unwrap();
    assert_eq!(b.attributes(on_b).permissions, 0o600);

    let dir = a.make_dir("dir");
    a.verbs().rename(&Context::OWN, a.root, b"file", dir, b"moved", Rename::Replace).unwrap();
    assert_eq!((b.bytes_at("file"), b.bytes_at("dir/moved")), (None, Some(Vec::new())));
    b.verbs().remove(&Context::OWN, b.lookup(b.root, "dir").unwrap().node, b"moved").unwrap();
    assert_eq!(a.lookup(dir, "moved"), None);
    checkpoint(implementation);
}

/// Checks that processes on two mounts can write to one file at the same time, in alternating
/// blocks without overlaps.
fn checkpoint(implementation: &WritableImplementation<'_>) {
    let Some(two) = implementation.two_mounts() else { return };
    let (a, b) = (&two.a, &two.b);
    let (_, first) = a.create("checkpoint");
    let writers: Vec<_> = (0..4_u32)
        .map(|process| {
            let mount = if process % 2 == 0 { a } else { b };
            let node = mount.lookup(mount.root, "checkpoint").unwrap().node;
            mount.verbs().open_as(&Context::for_process(process), node, OpenMode::WRITE).unwrap()
        })
        .collect();
    for block in 0..200_u64 {
        let bytes = [block as u8; 501];
        writers[block as usize % 4].write_at(&bytes, block * 501).unwrap();
    }
    for writer in writers {
        writer.publish().unwrap();
    }
    drop(first);
    for mount in [a, b] {
        let node = mount.lookup(mount.root, "checkpoint").unwrap().node;
        let file = mount.verbs().open_as(&Context::OWN, node, OpenMode::READ).unwrap();
        let bytes = whole(&*file);
        assert_eq!(bytes.len(), 200 * 501);
        assert!(bytes.chunks(501).enumerate().all(|(i, chunk)| chunk.iter().all(|byte| *byte == i as u8)));
    }
}
