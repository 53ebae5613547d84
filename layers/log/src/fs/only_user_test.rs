//! Reads through handles that were opened while a mount was the only user of its store.

use quell_testkit::MemoryStore;
use quell_vfs::{Context, ErrorKind, FileSystem, OpenMode, ReadAt, Writable, WritableFile};

use crate::fs::LogFs;
use crate::test_stores::{again, make, mount_in_use};

fn open(fs: &LogFs, mode: OpenMode) -> Box<dyn WritableFile> {
    let node = fs.lookup(&Context::OWN, fs.root(), b"file").unwrap().unwrap().into_attributes().node;
    fs.open_as(&Context::OWN, node, mode).unwrap()
}

fn read(file: &dyn ReadAt) -> Vec<u8> {
    let mut content = vec![0; 100];
    let length = file.read_at(&mut content, 0).unwrap();
    content.truncate(length);
    content
}

fn write(fs: &LogFs, content: &[u8]) {
    let file = again(fs, "file", 7);
    file.write_at(content, 0).unwrap();
    file.close().unwrap();
}

/// The kernel requests attributes before each read through such a handle, and fills the difference
/// with zeros if the data is older than the size.
#[test]
fn a_handle_of_the_only_user_follows_others_as_soon_as_they_use_the_store() {
    let stores = [MemoryStore::new()];
    let fs = mount_in_use(&stores, 1, &mut || false);
    let before = open_new(&fs, b"before");
    assert!(fs.be_only_user().unwrap());
    let kept = open(&fs, OpenMode::READ);
    assert_eq!(read(&*kept), b"before");

    let mut share = || {
        assert!(!fs.be_only_user().unwrap(), "the other mount has registered itself");
        fs.share_stores();
        true
    };
    let other = mount_in_use(&stores, 2, &mut share);
    write(&other, b"longer than before");
    assert_eq!(read(&*before), b"before", "it was opened while others could use the store");
    assert_eq!(read(&*kept), b"longer than before");
    write(&other, b"LONGER than before, and again");
    assert_eq!(read(&*kept), b"LONGER than before, and again");

    // The mount becomes the only user again: the handle is of an earlier period.
    write(&other, b"the last change of the other mount");
    drop(other);
    assert!(fs.be_only_user().unwrap());
    assert_eq!(read(&*kept), b"the last change of the other mount");
    write(&fs, b"THE");
    assert_eq!(read(&*kept), b"THE last change of the other mount");
}

#[test]
fn a_handle_of_the_only_user_fails_after_another_mount_has_removed_the_file() {
    let stores = [MemoryStore::new()];
    let fs = mount_in_use(&stores, 1, &mut || false);
    open_new(&fs, b"before").close().unwrap();
    assert!(fs.be_only_user().unwrap());
    let kept = open(&fs, OpenMode::READ);
    let mut share = || {
        assert!(!fs.be_only_user().unwrap());
        fs.share_stores();
        true
    };
    let other = mount_in_use(&stores, 2, &mut share);
    other.remove(&Context::OWN, other.root(), b"file").unwrap();
    make(&other, "file", 7).write_at(b"another file", 0).unwrap();
    let error = kept.read_at(&mut [0; 10], 0).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Stale | ErrorKind::NotFound), "{error}");
}

/// Creates the file, and returns a handle for reading.
fn open_new(fs: &LogFs, content: &[u8]) -> Box<dyn WritableFile> {
    let file = make(fs, "file", 7);
    file.write_at(content, 0).unwrap();
    file.close().unwrap();
    open(fs, OpenMode::READ)
}
