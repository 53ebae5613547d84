//! Reads through handles that were opened while a mount was the only user of its store.

use std::time::{Duration, Instant};

use quell_testkit::MemoryStore;
use quell_vfs::{Context, ErrorKind, FileSystem, OpenMode, ReadAt, Rename, Writable, WritableFile};

use crate::fs::LogFs;
use crate::session::Choices;
use crate::test_stores::{again, host, make, mount_in_use, opened_by};

/// Makes the mount the only user for longer than a test lasts.
fn be_only_user(fs: &LogFs) -> bool {
    fs.be_only_user(Instant::now() + Duration::from_secs(100_000)).unwrap()
}

/// Shares the store as the process of a mount does after another process has registered itself.
fn share(fs: &LogFs) {
    assert!(!be_only_user(fs), "the other mount has registered itself");
    fs.end_only_user_period();
    assert!(fs.share_stores());
}

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
    assert!(be_only_user(&fs));
    let kept = open(&fs, OpenMode::READ);
    assert_eq!(read(&*kept), b"before");

    let mut share = || {
        share(&fs);
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
    assert!(be_only_user(&fs));
    assert_eq!(read(&*kept), b"the last change of the other mount");
    write(&fs, b"THE");
    assert_eq!(read(&*kept), b"THE last change of the other mount");
}

#[test]
fn a_handle_of_the_only_user_fails_after_another_mount_has_removed_the_file() {
    let stores = [MemoryStore::new()];
    let fs = mount_in_use(&stores, 1, &mut || false);
    open_new(&fs, b"before").close().unwrap();
    assert!(be_only_user(&fs));
    let kept = open(&fs, OpenMode::READ);
    let mut share = || {
        share(&fs);
        true
    };
    let other = mount_in_use(&stores, 2, &mut share);
    other.remove(&Context::OWN, other.root(), b"file").unwrap();
    make(&other, "file", 7).write_at(b"another file", 0).unwrap();
    let error = kept.read_at(&mut [0; 10], 0).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Stale | ErrorKind::NotFound), "{error}");
}

#[test]
fn a_handle_of_the_only_user_keeps_an_object_that_another_mount_has_replaced() {
    let stores = [MemoryStore::new()];
    let objects = |pid: u32, pause: &mut dyn FnMut() -> bool| {
        let opened = opened_by(&stores, host(pid.into(), pid)).begin_use(pause).unwrap();
        let choices = Choices { begins_as_object: true, index_threads: 1, ..Choices::default() };
        LogFs::new(opened, choices)
    };
    let fs = objects(1, &mut || false);
    open_new(&fs, b"before").close().unwrap();
    assert!(be_only_user(&fs));
    let (kept, unread) = (open(&fs, OpenMode::READ), open(&fs, OpenMode::READ));
    assert_eq!(read(&*kept), b"before");
    let mut share = || {
        share(&fs);
        true
    };
    let other = objects(2, &mut share);
    for content in [&b"second"[..], b"third"] {
        let file = make(&other, "new", 7);
        file.write_at(content, 0).unwrap();
        file.close().unwrap();
        let root = other.root();
        other.rename(&Context::OWN, root, b"new", root, b"file", Rename::Replace).unwrap();
        assert_eq!((read(&*kept), read(&*unread)), (b"before".to_vec(), b"before".to_vec()));
        assert_eq!(read(&*open(&fs, OpenMode::READ)), content);
    }
}

/// The kernel may keep the data of a file until the frontend is told that it must not.
#[test]
fn a_handle_that_is_opened_between_the_failed_check_and_the_end_of_the_period_follows_others() {
    let stores = [MemoryStore::new()];
    let fs = mount_in_use(&stores, 1, &mut || false);
    open_new(&fs, b"before").close().unwrap();
    assert!(be_only_user(&fs));
    let mut kept = None;
    let mut pause = || {
        assert!(!be_only_user(&fs), "the other mount has registered itself");
        kept = Some(open(&fs, OpenMode::READ));
        share(&fs);
        true
    };
    let other = mount_in_use(&stores, 2, &mut pause);
    let kept = kept.expect("the other mount has waited");
    let after = open(&fs, OpenMode::READ);
    assert_eq!((read(&*kept), read(&*after)), (b"before".to_vec(), b"before".to_vec()));
    write(&other, b"longer than before");
    assert_eq!(read(&*after), b"before", "it was opened after the period");
    assert_eq!(read(&*kept), b"longer than before");
}

/// Creates the file, and returns a handle for reading.
fn open_new(fs: &LogFs, content: &[u8]) -> Box<dyn WritableFile> {
    let file = make(fs, "file", 7);
    file.write_at(content, 0).unwrap();
    file.close().unwrap();
    open(fs, OpenMode::READ)
}
