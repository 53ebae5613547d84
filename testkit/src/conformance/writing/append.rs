//! Promise: an append goes to the end of the file, including data of all other writers, and returns
//! its offset.

use quell_vfs::{Change, Context, OpenMode};

use super::mount::{WritableImplementation, whole};

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, first) = mount.create("log");
    assert_eq!(first.append(b"one\n").unwrap(), 0);
    let second = mount.verbs().open_as(&Context::for_process(2), node, OpenMode::WRITE).unwrap();
    assert_eq!(second.append(b"two\n").unwrap(), 4);
    assert_eq!(first.append(b"three\n").unwrap(), 8);
    first.write_at(b"far", 20).unwrap();
    assert_eq!(second.append(b"!").unwrap(), 23);
    assert_eq!(second.append(b"").unwrap(), 24);
    assert_eq!(whole(&*first), b"one\ntwo\nthree\n\0\0\0\0\0\0far!");
    mount.verbs().change(&Context::OWN, node, &Change { size_bytes: Some(4), ..Change::default() }).unwrap();
    assert_eq!(second.append(b"2\n").unwrap(), 4);
    mount.verbs().change(&Context::OWN, node, &Change { size_bytes: Some(8), ..Change::default() }).unwrap();
    assert_eq!(first.append(b"3\n").unwrap(), 8);
    first.publish().unwrap();
    second.publish().unwrap();
    drop((first, second));
    assert_eq!(mount.bytes(node), b"one\n2\n\0\x003\n");
    let file = mount.open(node);
    assert_eq!(file.append(b"4\n").unwrap(), 10);
    drop(file);
    assert_eq!(mount.bytes(node).len(), 12);
}
