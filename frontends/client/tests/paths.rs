//! Tests that paths resolve correctly and that no references to their nodes remain.

use std::path::Path;
use std::sync::Arc;

use quell_client::{Choices, Client, Create, ErrorKind, Kind, OpenOptions, Store};
use quell_testkit::WritableModel;

const MAKE: OpenOptions = OpenOptions { create: Create::IfMissing, ..OpenOptions::READ_WRITE };

fn open(directory: &Path) -> Store {
    Store::open(&[directory], Choices::default()).unwrap()
}

#[test]
fn paths_are_within_the_store_whatever_they_say() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    store.make_dir(b"a", 0o755).unwrap();
    store.make_dir(b"/a//b/", 0o755).unwrap();
    store.open_file(b"a/./b/../file", MAKE).unwrap().close().unwrap();
    for same in [&b"a/file"[..], b"/a/file", b"../../a/file", b"a/b/.././file"] {
        assert_eq!(store.stat(same).unwrap().kind, Kind::File, "{}", same.escape_ascii());
    }
    for root in [&b""[..], b"/", b".", b"..", b"a/.."] {
        assert_eq!(store.list(root).unwrap().len(), 1, "{}", root.escape_ascii());
        assert_eq!(store.open_file(root, MAKE).unwrap_err().kind, ErrorKind::IsADirectory);
    }
    assert_eq!(store.stat(b"a/file/..").unwrap_err().kind, ErrorKind::NotADirectory);
    assert_eq!(store.stat(b"a/none/..").unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(store.stat(b".quell").unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn symbolic_links_are_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    std::os::unix::fs::symlink("/", temp.path().join("link")).unwrap();
    assert_eq!(store.stat(b"link").unwrap().kind, Kind::Symlink);
    assert_eq!(store.open_file(b"link", OpenOptions::READ).unwrap_err().errno(), 40);
    assert_eq!(store.open_file(b"link/etc/passwd", OpenOptions::READ).unwrap_err().errno(), 40);
    store.remove(b"link").unwrap();
}

#[test]
fn a_file_that_another_one_replaced_is_another_file() {
    let temp = tempfile::tempdir().unwrap();
    let (store, other) = (open(temp.path()), open(temp.path()));
    let write = |store: &Store, bytes: &[u8]| {
        let file = store.open_file(b"file", MAKE).unwrap();
        file.write_at(bytes, 0).unwrap();
        file.close().unwrap();
    };
    write(&store, b"first");
    let open_still = store.open_file(b"file", OpenOptions::READ).unwrap();
    other.remove(b"file").unwrap();
    write(&other, b"second!");
    assert_eq!(store.stat(b"file").unwrap().size_bytes, 7);
    let mut bytes = [0; 16];
    let n = store.open_file(b"file", OpenOptions::READ).unwrap().read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes[..n], b"second!");
    drop(open_still);
}

#[test]
fn repeated_opens_leave_no_descriptors() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let temp = tempfile::tempdir().unwrap();
    let before = descriptors();
    let store = open(temp.path());
    for i in 0..300 {
        let name = format!("file-{i}");
        let file = store.open_file(name.as_bytes(), MAKE).unwrap();
        file.append(b"x").unwrap();
        file.close().unwrap();
        store.stat(name.as_bytes()).unwrap();
    }
    drop(store);
    // Other tests of this program open descriptors at the same time.
    assert!(descriptors() < before + 100);
}

#[test]
fn a_client_works_with_any_writable_file_system() {
    let client = Client::new(Arc::new(WritableModel::new())).unwrap();
    client.make_dir(b"a", 0o755).unwrap();
    let file = client.open_file(b"a/file", MAKE).unwrap();
    file.write_at(b"data", 2).unwrap();
    file.close().unwrap();
    client.rename(b"a/file", b"b").unwrap();
    let mut bytes = [0; 8];
    let read = client.open_file(b"b", OpenOptions::READ).unwrap().read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes[..read], b"\0\0data");
    assert_eq!(client.stat(b"a/file").unwrap_err().kind, ErrorKind::NotFound);
}
