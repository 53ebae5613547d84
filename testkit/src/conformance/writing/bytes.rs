//! Promise: written data is read back at any offset and in any order of writing, and a later write
//! overwrites an earlier one.

use quell_vfs::{Context, OpenMode};

use super::mount::{WritableImplementation, read, whole};
use crate::Random;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, file) = mount.create("file");
    file.write_at(b"", 0).unwrap();
    file.write_at(b"", 1 << 40).unwrap();
    assert_eq!(whole(&*file), b"", "nothing was written");
    file.write_at(b"one two three", 0).unwrap();
    file.write_at(b"TWO", 4).unwrap();
    assert_eq!(whole(&*file), b"one TWO three");
    file.write_at(b"THREE and four", 8).unwrap();
    assert_eq!(whole(&*file), b"one TWO THREE and four");
    file.write_at(b"zero", 0).unwrap();
    file.write_at(b"1", 0).unwrap();
    assert_eq!(read(&*file, 3, 6), b"oTWO T");
    assert_eq!(read(&*file, 20, 100), b"ur");
    assert_eq!(read(&*file, 22, 100), b"");
    assert_eq!(read(&*file, 1 << 62, 100), b"");
    assert_eq!(mount.attributes(node).size_bytes, 22);
    drop(file);
    assert_eq!(mount.bytes(node), b"1eroTWO THREE and four");
    any_order(implementation);

    let file = mount
        .verbs()
        .open_as(&Context::OWN, node, OpenMode { truncate: true, ..OpenMode::READ_WRITE })
        .unwrap();
    assert_eq!(whole(&*file), b"");
    file.write_at(b"new", 0).unwrap();
    drop(file);
    assert_eq!(mount.bytes(node), b"new");
}

/// Checks overlapping writes of all sizes in all orders, read in different pieces than they were
/// written.
fn any_order(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, file) = mount.create("file");
    let mut random = Random::new(1);
    let mut expected = Vec::new();
    for i in 0..150 {
        let count = *random.pick(&[1, 10, 4095, 4096, 4097, 20_000, 70_000]);
        let offset = random.below(300_000 / count + 1) * count + random.below(2);
        let bytes = random.bytes(count);
        file.write_at(&bytes, offset as u64).unwrap();
        expected.resize(expected.len().max(offset + count), 0);
        expected[offset..offset + count].copy_from_slice(&bytes);
        if i % 10 == 0 {
            let begin = random.below(expected.len());
            let count = random.below(100_000);
            let end = (begin + count).min(expected.len());
            assert!(read(&*file, begin as u64, count) == expected[begin..end], "{count} bytes at {begin}");
        }
    }
    assert!(whole(&*file) == expected);
    file.publish().unwrap();
    drop(file);
    assert!(mount.bytes(node) == expected, "after closing");
}
