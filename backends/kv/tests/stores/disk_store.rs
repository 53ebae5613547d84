//! The directory of a disk store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use quell_kv::{Batch, DiskOptions, DiskStore, Durability, KeyRange, KeyValue};
use quell_vfs::ErrorKind;

use crate::{entries, get, open, put, small};

/// Selects the child's part, and names the directory of its store.
const DIRECTORY: &str = "QUELL_KV_TEST_BUSY_DIRECTORY";

#[test]
fn a_new_directory_is_accessible_to_its_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = open(&path);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
    drop(store);
}

/// Not a test of its own: the second process of the next test.
#[test]
fn child_opens_a_store_that_is_open() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    assert_eq!(DiskStore::open(directory.as_ref(), &small()).unwrap_err().kind, ErrorKind::Busy);
    println!("the store is busy");
}

#[test]
fn a_store_that_is_open_is_busy() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(DiskStore::open(directory.path(), &small()).unwrap_err().kind, ErrorKind::Busy);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "disk_store::child_opens_a_store_that_is_open", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("the store is busy"), "{output}");
    put(&store, b"a", b"1");
    store.close().unwrap();
    assert_eq!(get(&open(directory.path()), b"a").as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_directory_with_other_files_is_refused_and_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("thesis.tex"), "text").unwrap();
    let error = DiskStore::open(directory.path(), &small()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Exists);
    assert!(error.to_string().contains("thesis.tex"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn an_interrupted_creation_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    // As if the process had been killed before the creation was complete.
    fs::remove_file(directory.path().join("format")).unwrap();
    fs::remove_file(directory.path().join("engine/version")).unwrap();
    let store = open(directory.path());
    put(&store, b"a", b"1");
    drop(store);
    assert_eq!(get(&open(directory.path()), b"a").as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_store_of_an_unknown_format_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    fs::write(directory.path().join("format"), "QUELLKV9\n").unwrap();
    assert_eq!(DiskStore::open(directory.path(), &small()).unwrap_err().kind, ErrorKind::Damaged);
    fs::write(directory.path().join("format"), "QUELLKV1\n").unwrap();
    fs::remove_file(directory.path().join("engine/keyspaces/1/current")).unwrap();
    assert_eq!(DiskStore::open(directory.path(), &small()).unwrap_err().kind, ErrorKind::Damaged);
    fs::remove_file(directory.path().join("engine/version")).unwrap();
    assert_eq!(DiskStore::open(directory.path(), &small()).unwrap_err().kind, ErrorKind::Damaged);
    fs::remove_dir_all(directory.path().join("engine")).unwrap();
    assert_eq!(DiskStore::open(directory.path(), &small()).unwrap_err().kind, ErrorKind::Damaged);
}

#[test]
fn a_changed_byte_of_a_value_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, b"a", &[b'x'; 100]);
    drop(store);
    let journal = directory.path().join("engine/0.jnl");
    let mut bytes = fs::read(&journal).unwrap();
    let value = bytes.windows(100).position(|window| window == [b'x'; 100]).unwrap();
    bytes[value + 50] = b'y';
    fs::write(&journal, bytes).unwrap();
    assert_eq!(DiskStore::open(directory.path(), &small()).unwrap_err().kind, ErrorKind::Damaged);
}

#[test]
fn a_commit_can_wait_for_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let options = DiskOptions { durability: Durability::Power, ..small() };
    let store = DiskStore::open(directory.path(), &options).unwrap();
    put(&store, b"a", b"1");
    assert_eq!(get(&store, b"a").as_deref(), Some(&b"1"[..]));
}

/// More data than the write buffers hold, from several threads: the commits wait for the engine,
/// and the engine's queue does not stop its thread.
#[test]
fn commits_are_not_faster_than_the_engine_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..10_000_u32 {
                    let mut batch = Batch::new();
                    batch.put(&[&[thread][..], &number.to_be_bytes()].concat(), &[thread; 500]);
                    batch.delete(&[&[thread][..], &number.saturating_sub(100).to_be_bytes()].concat());
                    store.commit(batch).unwrap();
                }
            });
        }
    });
    assert_eq!(entries(&store, &KeyRange::all()).len(), 4 * 100);
    // 25 MB were written. Without flushes and compactions, the tables would not exist, and with
    // flushes alone there would be hundreds of them.
    let tables = fs::read_dir(directory.path().join("engine/keyspaces/1/tables")).unwrap().count();
    assert!((1..60).contains(&tables), "{tables} tables");
}
