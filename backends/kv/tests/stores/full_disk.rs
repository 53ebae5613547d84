//! A full disk. The test runs itself again in a mount namespace with a small tmpfs, which an
//! ordinary user can have where user namespaces are permitted.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use quell_kv::{DiskOptions, DiskStore, KeyRange, KeyValue};
use quell_vfs::ErrorKind;

use crate::{batch, entries, get, small};

/// Selects the child's part, and names the directory of the tmpfs.
const DIRECTORY: &str = "QUELL_KV_TEST_SMALL_DISK";

fn key(number: u32) -> Vec<u8> {
    [b"key", &number.to_be_bytes()[..]].concat()
}

/// Commits entries until a commit fails; returns their number and the kind of the error.
fn fill(store: &DiskStore, first: u32) -> (u32, ErrorKind) {
    for number in first.. {
        if let Err(error) = store.commit(batch(&[(&key(number), Some(&[number as u8; 1_000]))])) {
            return (number, error.kind);
        }
    }
    unreachable!("the disk is never full")
}

fn assert_stored(store: &DiskStore, count: u32) {
    let stored = entries(store, &KeyRange::all());
    assert_eq!(stored.len(), count as usize);
    for ((found, value), number) in stored.into_iter().zip(0..) {
        assert_eq!((found, value), (key(number), vec![number as u8; 1_000]));
    }
}

/// With a reserve, the store continues to work: reads, deletes, and puts after space was freed.
fn fill_to_the_reserve(disk: &Path) {
    let path = disk.join("reserve");
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![1; 8 << 20]).unwrap();
    let options = DiskOptions { reserve_bytes: 8 << 20, ..small() };
    let store = DiskStore::open(&path, &options).unwrap();
    let (count, kind) = fill(&store, 0);
    assert_eq!(kind, ErrorKind::NoSpace);
    assert!(count > 1_000, "{count} entries before the reserve");
    assert_stored(&store, count);
    assert_eq!(fill(&store, count), (count, ErrorKind::NoSpace));
    store.commit(batch(&[(&key(count - 1), None)])).unwrap();
    store.sync().unwrap();
    std::fs::remove_file(&ballast).unwrap();
    let (more, kind) = fill(&store, count - 1);
    assert_eq!(kind, ErrorKind::NoSpace);
    assert!(more > count + 500, "{count} entries, and {more} after 8 MiB were freed");
    store.close().unwrap();
    let store = DiskStore::open(&path, &options).unwrap();
    assert_stored(&store, more);
    drop(store);
    std::fs::remove_dir_all(&path).unwrap();
}

/// Another writer uses up the reserve, and a write fails: then the store is read-only until it is
/// opened again.
fn fill_beyond_the_reserve(disk: &Path) {
    let path = disk.join("no-reserve");
    let ballast = disk.join("ballast");
    let store = DiskStore::open(&path, &small()).unwrap();
    for number in 0..10 {
        store.commit(batch(&[(&key(number), Some(&[number as u8; 1_000]))])).unwrap();
    }
    let mut file = std::fs::File::create(&ballast).unwrap();
    while file.write_all(&[1; 4_096]).is_ok() {}
    drop(file);
    let (count, kind) = fill(&store, 10);
    assert_eq!(kind, ErrorKind::NoSpace);
    std::fs::remove_file(&ballast).unwrap();
    let error = store.commit(batch(&[(b"later", Some(b""))])).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoSpace);
    assert_eq!(store.sync().unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(get(&store, &key(count)), None, "the failed commit is not visible");
    assert_stored(&store, count);
    assert_eq!(store.close().unwrap_err().kind, ErrorKind::NoSpace);
    let store = DiskStore::open(&path, &small()).unwrap();
    let found = count + u32::from(get(&store, &key(count)).is_some());
    assert_stored(&store, found);
    store.commit(batch(&[(&key(found), Some(&[found as u8; 1_000]))])).unwrap();
    assert_stored(&store, found + 1);
}

/// Another writer fills the disk to the last byte. With a ballast, entries can be deleted, and the
/// store goes on after space was freed, several times.
fn delete_on_a_disk_without_free_space(disk: &Path) {
    let path = disk.join("ballast-store");
    let data = disk.join("data");
    // The write buffer is large enough for everything: a flush that finds no space fails.
    let options = DiskOptions { reserve_bytes: 16 << 20, ballast_bytes: 8 << 20, ..DiskOptions::default() };
    let store = DiskStore::open(&path, &options).unwrap();
    let stored = || std::fs::metadata(path.join("ballast")).unwrap().len();
    assert_eq!(stored(), 0, "nothing is occupied before a commit");
    (0..300).for_each(|number| {
        store.commit(batch(&[(&key(number), Some(&[number as u8; 1_000]))])).unwrap();
    });
    assert_eq!(stored(), 8 << 20, "the file occupies its space");
    for round in 0..3 {
        let mut file = std::fs::File::create(&data).unwrap();
        while file.write_all(&[1; 4_096]).is_ok() {}
        while file.write_all(&[1]).is_ok() {}
        drop(file);
        let put = store.commit(batch(&[(b"new", Some(b""))])).unwrap_err();
        assert_eq!(put.kind, ErrorKind::NoSpace);
        for number in round * 100..(round + 1) * 100 {
            store.commit(batch(&[(&key(number), None)])).unwrap();
            assert_eq!(get(&store, &key(number)), None);
        }
        store.sync().unwrap();
        std::fs::remove_file(&data).unwrap();
        // Each commit examines the free space while it is small, so this occupies it again.
        store.commit(batch(&[(b"after", Some(&[round as u8; 10]))])).unwrap();
        assert_eq!(stored(), 8 << 20);
    }
    store.close().unwrap();
    let store = DiskStore::open(&path, &options).unwrap();
    assert_eq!(entries(&store, &KeyRange::all()), [(b"after".to_vec(), vec![2; 10])]);
}

/// Not a test of its own: the process in the mount namespace.
#[test]
fn child_fills_a_small_disk() {
    let Some(disk) = std::env::var_os(DIRECTORY) else { return };
    fill_to_the_reserve(disk.as_ref());
    fill_beyond_the_reserve(disk.as_ref());
    delete_on_a_disk_without_free_space(disk.as_ref());
    println!("the disk was full");
}

#[test]
fn a_full_disk_loses_nothing() {
    let disk = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=40m tmpfs \"$0\" || { echo \"no tmpfs\"; exit 0; }; exec \"$@\"";
    let child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", mount])
        .arg(disk.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "full_disk::child_fills_a_small_disk", "--nocapture"])
        .env(DIRECTORY, disk.path())
        .output();
    let child = match child {
        Ok(child) => child,
        Err(cause) => {
            return println!(
                "SKIPPED: no user namespaces for a small tmpfs, because unshare(1) failed: {cause}"
            );
        }
    };
    let (output, errors) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    if errors.contains("unshare failed") || output.contains("no tmpfs") {
        return println!("SKIPPED: no user namespaces for a small tmpfs: {errors}");
    }
    assert!(child.status.success() && output.contains("the disk was full"), "{output}{errors}");
}
