//! Promise: a truncated file ends at its new size immediately, for all open files. Growing it
//! afterwards adds zeros, even where it had data before.

use quell_vfs::errno::EINVAL;
use quell_vfs::{Change, Context, OpenMode};

use super::mount::{Mount, WritableImplementation, read, whole};
use crate::conformance::implementation::refused;

fn cut(mount: &Mount, node: quell_vfs::NodeId, size_bytes: u64) {
    let change = Change { size_bytes: Some(size_bytes), ..Change::default() };
    let after = mount.verbs().change(&Context::OWN, node, &change).unwrap();
    assert_eq!(after.size_bytes, size_bytes);
    assert_eq!(mount.attributes(node).size_bytes, size_bytes);
}

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, file) = mount.create("file");
    file.write_at(&[7; 10_000], 0).unwrap();
    cut(&mount, node, 5000);
    assert!(whole(&*file) == [7; 5000]);
    cut(&mount, node, 9000);
    assert!(whole(&*file) == [&[7; 5000][..], &[0; 4000]].concat(), "the old bytes are gone");
    file.write_at(&[8; 10], 5100).unwrap();
    assert_eq!(read(&*file, 4999, 112), [&[7][..], &[0; 100], &[8; 10], &[0]].concat());
    cut(&mount, node, 5105);
    file.write_at(b"end", 6000).unwrap();
    let expected = [&[7; 5000][..], &[0; 100], &[8; 5], &[0; 895], b"end"].concat();
    assert!(whole(&*file) == expected);
    let other = mount.verbs().open_as(&Context::for_process(9), node, OpenMode::READ_WRITE).unwrap();
    assert!(whole(&*other) == expected);
    cut(&mount, node, 0);
    assert!(whole(&*file).is_empty() && whole(&*other).is_empty());
    other.write_at(b"x", 3).unwrap();
    assert_eq!(whole(&*file), b"\0\0\0x");
    drop((file, other));
    assert_eq!(mount.bytes(node), b"\0\0\0x");

    // While no process has the file open.
    cut(&mount, node, 2);
    cut(&mount, node, 1 << 40);
    cut(&mount, node, 5);
    assert_eq!(mount.bytes(node), [0; 5]);
    let file = mount
        .verbs()
        .open_as(&Context::OWN, node, OpenMode { truncate: true, ..OpenMode::READ_WRITE })
        .unwrap();
    assert_eq!(mount.attributes(node).size_bytes, 0);
    cut(&mount, node, 3);
    assert_eq!(whole(&*file), [0; 3]);
    // An open that truncates is visible through files that are already open.
    drop(
        mount
            .verbs()
            .open_as(&Context::for_process(4), node, OpenMode { truncate: true, ..OpenMode::WRITE })
            .unwrap(),
    );
    assert_eq!(whole(&*file), b"");
    let dir = mount.make_dir("dir");
    let link = mount
        .verbs()
        .make_symlink(&Context::OWN, mount.root, b"link", b"file", mount.new)
        .unwrap()
        .into_attributes()
        .node;
    for node in [dir, link, mount.root] {
        let change = Change { size_bytes: Some(0), ..Change::default() };
        refused(mount.verbs().change(&Context::OWN, node, &change), EINVAL);
    }
}
