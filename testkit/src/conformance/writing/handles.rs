//! Promise: all open files of one file on one mount show the same data immediately, regardless of
//! their process and access mode.

use quell_vfs::errno::EBADF;
use quell_vfs::{Context, Kind, NodeId, OpenMode, Rename, WritableFile};

use super::mount::{Mount, WritableImplementation, read, whole};
use crate::Random;
use crate::conformance::implementation::refused;

fn open(mount: &Mount, node: NodeId, process: u32) -> Box<dyn WritableFile> {
    let context = Context::for_process(process);
    mount.verbs().open_as(&context, node, OpenMode::READ_WRITE).unwrap()
}

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, first) = mount.create("file");
    first.write_at(b"first", 0).unwrap();
    let second = open(&mount, node, 17);
    assert_eq!(whole(&*second), b"first");
    second.write_at(b"S", 2).unwrap();
    assert_eq!(whole(&*first), b"fiSst");
    first.write_at(b"F", 2).unwrap();
    assert_eq!(whole(&*second), b"fiFst", "the later one wins");
    assert_eq!(mount.attributes(node).size_bytes, 5);
    second.append(b" and last").unwrap();
    assert_eq!(mount.attributes(node).size_bytes, 14, "before anything is published");
    let reader = mount.fs.open(&Context::OWN, node).unwrap();
    drop(second);
    let mut bytes = [0; 20];
    assert_eq!(reader.read_at(&mut bytes, 0).unwrap(), 14);
    assert_eq!(&bytes[..14], b"fiFst and last");
    first.write_at(b"seen by a later reader", 0).unwrap();
    assert_eq!(reader.read_at(&mut bytes, 15).unwrap(), 7);
    assert_eq!(&bytes[..7], b" reader");
    by_turns(implementation);
    again_and_again(implementation);
    attributes_of_an_open_file(&implementation.mount());
    after_close(&implementation.mount());
}

/// Checks that an open file returns its attributes after its name was changed or removed.
fn attributes_of_an_open_file(mount: &Mount) {
    let (node, file) = mount.create("file");
    assert_eq!(file.attributes().unwrap(), mount.attributes(node));
    file.write_at(b"seven b", 0).unwrap();
    assert_eq!(file.attributes().unwrap().size_bytes, 7, "before anything is published");
    let reader = mount.fs.open(&Context::OWN, node).unwrap();
    let root = mount.root;
    mount.verbs().rename(&Context::OWN, root, b"file", root, b"moved", Rename::Replace).unwrap();
    assert_eq!(reader.attributes().unwrap(), mount.attributes(node));
    mount.verbs().remove(&Context::OWN, root, b"moved").unwrap();
    mount.verbs().forget(node, 1);
    for attributes in [file.attributes().unwrap(), reader.attributes().unwrap()] {
        assert_eq!((attributes.kind, attributes.nlink, attributes.size_bytes), (Kind::File, 0, 7));
    }
}

/// Checks that `close` publishes, and that afterwards the file is closed for this handle alone.
fn after_close(mount: &Mount) {
    let (node, file) = mount.create("file");
    let other = open(mount, node, 7);
    file.write_at(b"published by close", 0).unwrap();
    file.close().unwrap();
    file.close().unwrap();
    refused(file.read_at(&mut [0], 0), EBADF);
    refused(file.write_at(b"x", 0), EBADF);
    refused(file.append(b"x"), EBADF);
    refused(file.attributes(), EBADF);
    assert_eq!(whole(&*other), b"published by close");
    other.append(b", and more").unwrap();
    other.close().unwrap();
    drop((file, other));
    assert_eq!(mount.bytes(node), b"published by close, and more");
}

/// Checks that each process reads all data while the processes take turns to write each other's
/// blocks.
fn by_turns(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, creator) = mount.create("file");
    let mut files: Vec<_> = (0..6).map(|i| open(&mount, node, 100 + i / 2)).collect();
    files.push(creator);
    let mut expected = vec![0; 20_000];
    let mut random = Random::new(3);
    let mut size = 0;
    for _ in 0..300 {
        let (count, offset) = (1 + random.below(700), random.below(19_000));
        let bytes = random.bytes(count);
        let writer = random.pick(&files);
        writer.write_at(&bytes, offset as u64).unwrap();
        expected[offset..offset + count].copy_from_slice(&bytes);
        size = size.max(offset + count);
        if random.one_in(6) {
            writer.publish().unwrap();
        }
        let (begin, count) = (random.below(size), random.below(3000));
        let found = read(&**random.pick(&files), begin as u64, count);
        assert!(found == expected[begin..(begin + count).min(size)], "{count} bytes at {begin}");
    }
    drop(files);
    assert!(mount.bytes(node) == expected[..size]);
}

/// Checks a file that one process after the other opens, appends to and closes.
fn again_and_again(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let node = mount.write("file", b"");
    let mut expected = Vec::new();
    for process in 0..40_u32 {
        let file = open(&mount, node, process % 5);
        file.append(&process.to_le_bytes()).unwrap();
        expected.extend(process.to_le_bytes());
        file.publish().unwrap();
        drop(file);
        assert_eq!(mount.bytes(node), expected);
    }
}
