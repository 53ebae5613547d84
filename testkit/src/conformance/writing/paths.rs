//! Promise: an operation on a whole path does the same as the operation on the node that the path
//! leads to.

use quell_vfs::errno::{EINVAL, EISDIR, ELOOP, ENOENT, ENOTDIR};
use quell_vfs::{Context, OpenMode, resolve};

use super::mount::{WritableImplementation, whole};
use crate::conformance::implementation::refused;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (fs, verbs, context) = (&*mount.fs, mount.verbs(), Context::OWN);
    let dir = mount.make_dir("dir");
    let below = verbs.make_dir(&context, dir, b"below", mount.new_dir).unwrap().into_attributes().node;
    // Files of one name in each directory, so that a component that is ignored is noticed.
    let top = mount.write("file", b"top");
    for (dir, bytes) in [(dir, &b"middle"[..]), (below, b"bottom")] {
        let (_, file) = mount.create_in(dir, "file");
        file.write_at(bytes, 0).unwrap();
        file.close().unwrap();
    }
    drop(verbs.make_symlink(&context, dir, b"link", b"below", mount.new).unwrap());

    for (path, bytes) in [
        ("file", &b"top"[..]),
        ("/file", b"top"),
        ("dir/file", b"middle"),
        ("dir//./file", b"middle"),
        ("dir/below/file", b"bottom"),
        ("dir/below/../file", b"middle"),
        ("../dir/../file", b"top"),
    ] {
        let path = path.as_bytes();
        let shown = path.escape_ascii();
        let file = verbs.open_path_as(&context, path, OpenMode::READ_WRITE).unwrap();
        assert_eq!(whole(&*file), bytes, "{shown}");
        let found = *resolve(fs, &context, path).unwrap();
        assert_eq!(file.attributes().unwrap(), found, "{shown}");
        assert_eq!(fs.attributes_of_path(&context, path).unwrap(), Some(found), "{shown}");
        let reader = fs.open_path(&context, path).unwrap();
        let mut read = [0; 100];
        let count = reader.read_at(&mut read, 0).unwrap();
        assert_eq!(&read[..count], bytes, "{shown}");
    }
    for (path, errno) in [
        ("none", ENOENT),
        ("none/file", ENOENT),
        ("dir/none/file", ENOENT),
        ("file/file", ENOTDIR),
        ("dir/file/..", ENOTDIR),
        ("dir/link/file", ELOOP),
        ("", EISDIR),
        ("dir", EISDIR),
        ("dir/link", EINVAL),
    ] {
        let path = path.as_bytes();
        println!("{}", path.escape_ascii());
        refused(verbs.open_path_as(&context, path, OpenMode::READ_WRITE), errno);
        refused(fs.open_path(&context, path), errno);
        match errno {
            ENOENT => assert_eq!(fs.attributes_of_path(&context, path).unwrap(), None),
            ENOTDIR | ELOOP => refused(fs.attributes_of_path(&context, path), errno),
            _ => assert_eq!(
                fs.attributes_of_path(&context, path).unwrap(),
                Some(*resolve(fs, &context, path).unwrap())
            ),
        }
    }

    let writer =
        verbs.open_path_as(&context, b"dir/below/file", OpenMode { truncate: true, ..OpenMode::WRITE });
    let writer = writer.unwrap();
    writer.write_at(b"new", 0).unwrap();
    writer.close().unwrap();
    let bytes = ["file", "dir/file", "dir/below/file"].map(|path| mount.bytes_at(path).unwrap());
    assert_eq!(bytes, [&b"top"[..], b"middle", b"new"]);
    assert_eq!(mount.bytes(top), b"top");
}
