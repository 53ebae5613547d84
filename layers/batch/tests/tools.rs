//! The check of a store, and the removal of files that nothing refers to.

mod mounts;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use quell_batch::BatchFs;
use quell_batch_service::BatchState;
use quell_testkit::Random;
use quell_vfs::{Context, FileSystem, NodeId, OpenMode, Writable};

use mounts::on_disk::{LARGE, Store, WAIT, put};
use mounts::{NEW, bytes, open};

/// Returns the paths of all files below a directory.
fn files_below(top: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![top.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => {
                    found.insert(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
    }
    found.retain(|path| !path.starts_with("keys"));
    found
}

#[test]
fn only_files_that_nothing_refers_to_are_removed() {
    let store = Store::new();
    store.with_mount(|fs| put(fs, "kept", &[1; LARGE]));
    let committed = store.begin();
    let fs = committed.file_system();
    put(&fs, "of-batch", &[2; LARGE]);
    put(&fs, "replaced", &[3; LARGE]);
    drop(fs);
    committed.commit(WAIT).unwrap();
    drop(committed);
    let aborted = store.begin();
    put(&aborted.file_system(), "aborted", &[4; LARGE]);
    aborted.abort(WAIT).unwrap();
    drop(aborted);
    assert_eq!(store.collect(true).len(), 1, "the data file of the aborted batch");
    // A batch that is running, on a snapshot with files that others remove and replace meanwhile.
    let running = store.begin();
    let fs = running.file_system();
    put(&fs, "running", &[5; LARGE]);
    store.with_mount(|fs| {
        fs.remove(&Context::OWN, fs.root(), b"of-batch").unwrap();
        fs.remove(&Context::OWN, fs.root(), b"replaced").unwrap();
        put(fs, "replaced", &[6; LARGE]);
    });
    assert_eq!(store.collect(false), BTreeSet::new());
    // Files that killed processes have left, and files that do not belong to the store.
    let path = store.path();
    for name in ["data/0/07/4007", "data/0/07/4007.3", "data/1/08/308", "tables/0000000000abcdef.table"] {
        fs::create_dir_all(path.join(name).parent().unwrap()).unwrap();
        fs::write(path.join(name), "remains").unwrap();
    }
    let foreign = [
        "notes",
        "data/README",
        "data/0/07/4007.txt",
        "data/0/07/4007.0",
        "data/0/07/04007",
        "data/0/08/4007",
        "data/77/08/308",
        "data/01/08/308",
        "data/3/08/308",
        "tables/notes.txt",
        "batches/notes/file",
        "batches/77/certificate",
    ];
    for name in foreign {
        fs::create_dir_all(path.join(name).parent().unwrap()).unwrap();
        fs::write(path.join(name), "foreign").unwrap();
    }
    fs::create_dir(path.join("batches/1")).unwrap();
    fs::write(path.join("batches/1/certificate"), "").unwrap();
    let before = files_below(&path);
    let expected =
        ["batches/1", "data/0/07/4007", "data/0/07/4007.3", "data/1/08/308", "tables/0000000000abcdef.table"];
    let expected: BTreeSet<String> = expected.map(str::to_owned).into();
    assert_eq!(store.collect(false), expected);
    assert_eq!(files_below(&path), before, "--dry-run has changed the store");
    assert_eq!(store.collect(true), expected);
    let after = files_below(&path);
    let removed: Vec<&String> = before.difference(&after).collect();
    assert_eq!(removed.len(), 5, "{removed:?}");
    assert!(foreign.iter().all(|name| after.contains(*name)), "{after:?}");
    assert_eq!(store.collect(true), BTreeSet::new());
    // The running batch has its snapshot, and is committed.
    assert_eq!(bytes(&*open(&fs, "replaced")), [3; LARGE]);
    assert_eq!(bytes(&*open(&fs, "kept")), [1; LARGE]);
    drop(fs);
    running.commit(WAIT).unwrap();
    store.with_mount(|fs| {
        for (name, byte) in [("kept", 1), ("replaced", 6), ("running", 5)] {
            assert_eq!(bytes(&*open(fs, name)), [byte; LARGE], "{name}");
        }
    });
    // The files of the snapshot are not needed any more.
    let collected = store.collect(true);
    assert!(collected.iter().filter(|path| path.starts_with("data/1/")).count() == 2, "{collected:?}");
}

#[test]
fn garbage_collection_beside_batches_loses_nothing() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let store = Store::new();
        let mut expected: Vec<(String, Vec<u8>)> = Vec::new();
        for round in 0..6 {
            let batch = store.begin();
            let fs = batch.file_system();
            for number in 0..random.below(5) {
                let name = format!("{round}-{number}");
                let length = if random.one_in(2) { 70_000 } else { 100 };
                let content = random.bytes(length);
                put(&fs, &name, &content);
                expected.push((name, content));
            }
            if random.one_in(2) {
                store.collect(true);
            }
            for _ in 0..random.below(3) {
                if expected.is_empty() {
                    break;
                }
                let (name, content) = random.pick(&expected).clone();
                let file = open(&fs, &name);
                assert!(bytes(&*file) == content, "seed {seed}, {name} in round {round}");
                let new = random.bytes(80_000);
                file.write_at(&new, 0).unwrap();
                file.close().unwrap();
                expected.retain(|(other, _)| *other != name);
                expected.push((name, new));
            }
            drop(fs);
            match random.one_in(5) {
                true => {
                    // The process ends after it has written its certificate.
                    batch.prepare().unwrap();
                    drop(batch);
                    store.collect(true);
                    store.open().commit(round + 1).unwrap();
                }
                false => drop(batch.commit(WAIT).unwrap()),
            }
            store.collect(true);
            assert_eq!(store.problems(false), [], "seed {seed}, round {round}");
            store.with_mount(|fs| {
                for (name, content) in &expected {
                    assert!(bytes(&*open(fs, name)) == *content, "seed {seed}, {name} after round {round}");
                }
            });
        }
    }
}

#[test]
fn problems_outside_of_the_image_are_found() {
    let store = Store::new();
    let batch = store.begin();
    put(&batch.file_system(), "large", &[1; LARGE]);
    batch.commit(WAIT).unwrap();
    drop(batch);
    assert_eq!(store.problems(false), []);
    let path = store.path();
    let data = files_below(&path.join("data"));
    fs::remove_file(path.join("data").join(data.first().unwrap())).unwrap();
    fs::write(path.join("data/notes"), "").unwrap();
    fs::create_dir(path.join("batches/77")).unwrap();
    let next = store.begin();
    next.prepare().unwrap();
    drop(next);
    fs::write(path.join("batches/2/certificate"), "no certificate").unwrap();
    let expected = [
        ("unknown-file", None),
        ("missing-data", Some("/large".to_owned())),
        ("unknown-file", None),
        ("bad-certificate", None),
    ];
    assert_eq!(store.problems(false), expected);
    assert_eq!(store.problems(true), expected, "none of them can be repaired");
    assert_eq!(store.open().abort(2).unwrap().state, BatchState::Aborted);
}

#[test]
fn an_image_whose_key_value_store_is_lost_is_rebuilt() {
    for how in ["removed", "empty", "damaged"] {
        let store = Store::new();
        let dirs = |fs: &BatchFs, name: &str| -> NodeId {
            fs.make_dir(&Context::OWN, fs.root(), name.as_bytes(), NEW).unwrap().into_attributes().node
        };
        store.with_mount(|fs| {
            let d = dirs(fs, "d");
            let (_, file) = fs
                .create(&Context::OWN, d, b"early", NEW, OpenMode::READ_WRITE)
                .map(|(n, f)| (n.into_attributes(), f))
                .unwrap();
            file.write_at(b"early", 0).unwrap();
            file.close().unwrap();
        });
        let batch = store.begin();
        put(&batch.file_system(), "large", &[7; LARGE]);
        put(&batch.file_system(), "small", b"small");
        batch.commit(WAIT).unwrap();
        drop(batch);
        // This batch is submitted, and not committed.
        let open_batch = store.begin();
        put(&open_batch.file_system(), "late", b"late");
        open_batch.prepare().unwrap();
        drop(open_batch);
        let keys = store.path().join("keys");
        match how {
            "removed" => fs::remove_dir_all(&keys).unwrap(),
            "empty" => {
                fs::remove_dir_all(&keys).unwrap();
                fs::create_dir(&keys).unwrap();
            }
            _ => damage_all(&keys),
        }
        assert_eq!(store.problems(false), [("lost-keys", None)], "{how}");
        assert_eq!(store.problems(true), [("lost-keys", None)], "{how}");
        assert_eq!(store.problems(false), [], "{how}");
        store.open().commit(2).unwrap();
        store.with_mount(|fs| {
            assert_eq!(bytes(&*open(fs, "large")), [7; LARGE], "{how}");
            assert_eq!(bytes(&*open(fs, "small")), b"small");
            assert_eq!(bytes(&*open(fs, "late")), b"late");
            assert!(fs.attributes_of_path(&Context::OWN, b"d/early").unwrap().is_some());
            put(fs, "new", &[8; LARGE]);
        });
        assert_eq!(store.problems(false), [], "{how}");
    }
}

/// Overwrites the files of a key-value store with zeros.
fn damage_all(dir: &Path) {
    for name in files_of(dir) {
        let length = fs::metadata(&name).unwrap().len() as usize;
        fs::write(name, vec![0; length]).unwrap();
    }
}

fn files_of(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_of(&path)),
            false => found.push(path),
        }
    }
    found
}

#[test]
fn the_documentation_lists_all_kinds_of_problems() {
    let document = include_str!("../../../docs/techniques/batch.md");
    let section = document.split("## Checks and repairs").nth(1).unwrap().split("\n## ").next().unwrap();
    let listed = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(listed.collect::<Vec<_>>(), quell_batch::problem_kinds());
}

/// Returns the inode number and the first byte of each lock of an open file description on this
/// machine.
fn range_locks() -> BTreeSet<(u64, String)> {
    let listed = fs::read_to_string("/proc/locks").unwrap();
    let of_line = |line: &str| -> Option<(u64, String)> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let at = words.iter().position(|word| *word == "OFDLCK")?;
        let inode = words[at + 4].rsplit(':').next()?.parse().ok()?;
        Some((inode, words[at + 5].to_owned()))
    };
    listed.lines().filter_map(of_line).collect()
}

#[test]
fn locks_are_range_locks_of_a_regular_file_which_hold_between_nodes() {
    use std::os::unix::fs::MetadataExt;
    let store = Store::new();
    let lock = fs::symlink_metadata(store.path().join("lock")).unwrap();
    assert!(lock.is_file());
    let is_locked = |byte: &str| range_locks().contains(&(lock.ino(), byte.to_owned()));
    assert!(!is_locked("1"));
    let open = store.open();
    assert!(is_locked("1"), "the key-value store");
    drop(open);
    let batch = store.begin();
    assert!(is_locked("2") && !is_locked("1"), "the first batch");
    batch.abort(WAIT).unwrap();
    drop(batch);
    assert!(!is_locked("2"));
    // A store without the file `lock`, as an earlier version has created it.
    fs::remove_file(store.path().join("lock")).unwrap();
    let batch = store.begin();
    batch.commit(WAIT).unwrap();
}
