//! Promise: data that was never written reads as zeros, at any offset. A file may end at 2^63 - 1,
//! and not beyond.

use quell_vfs::errno::EINVAL;
use quell_vfs::{Change, Context, OpenMode};

use super::mount::{WritableImplementation, read};
use crate::conformance::implementation::refused;

const END: u64 = i64::MAX as u64;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, file) = mount.create("file");
    for offset in [100, 1 << 20, 1 << 40, END - 4] {
        file.write_at(b"here", offset).unwrap();
        assert_eq!(mount.attributes(node).size_bytes, offset + 4);
        assert_eq!(read(&*file, offset - 3, 100), b"\0\0\0here");
    }
    assert_eq!(read(&*file, 0, 200)[..104], [&[0; 100][..], b"here"].concat());
    assert_eq!(read(&*file, 104, 200), [0; 200]);
    assert_eq!(read(&*file, (1 << 40) - 100_000, 50_000), vec![0; 50_000]);
    assert_eq!(read(&*file, (1 << 40) + 2, 10), b"re\0\0\0\0\0\0\0\0");
    for offset in [END - 3, END, END + 1, u64::MAX - 3, u64::MAX] {
        refused(file.write_at(b"here", offset), EINVAL);
    }
    refused(file.append(b"x"), EINVAL);
    refused(file.write_pieces(&[(END - 1, b"beyond")]), EINVAL);
    let too_long = Change { size_bytes: Some(END + 1), ..Change::default() };
    refused(mount.verbs().change(&Context::OWN, node, &too_long), EINVAL);
    assert_eq!(mount.attributes(node).size_bytes, END);
    file.publish().unwrap();
    drop(file);
    let file = mount.verbs().open_as(&Context::OWN, node, OpenMode::READ).unwrap();
    assert_eq!(read(&*file, 98, 8), b"\0\0here\0\0");
    assert_eq!(read(&*file, END - 4, 100), b"here");
    assert_eq!(read(&*file, END - 5, 3), b"\0he");
    assert_eq!(read(&*file, END, 1), b"");
}
