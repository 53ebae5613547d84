//! Tests data files, failures, the operations that a mount sends, and several mounts of one name
//! space that change one file at the same time.

mod mounts;

use std::sync::{Arc, RwLock};

use quell_batch_service::{BatchCaller, INLINE_BYTES_MAX, MemoryEntries, NameSpace, ReadAccess, UserNames};
use quell_testkit::{MemoryStore, Random};
use quell_vfs::{Change, Context, ErrorKind, FileSystem, OpenMode, Rename, Time, Writable, errno};

use mounts::{Counting, NEW, bytes, create, data_files, mount, open, private, shared};

const LIMIT: usize = INLINE_BYTES_MAX;

#[test]
fn a_small_file_is_one_create_and_one_change() {
    for (names, changes) in [(private(), 10), (shared(), 1)] {
        let counting = Counting::new(names);
        let names: Arc<dyn NameSpace> = counting.clone();
        let fs = mount(&names, &MemoryStore::new(), 0);
        create(&fs, "empty").1.close().unwrap();
        assert_eq!(counting.taken(), ["create"]);
        let (_, file) = create(&fs, "small");
        for part in 0..10 {
            file.write_at(b"part", part * 4).unwrap();
        }
        file.publish().unwrap();
        file.close().unwrap();
        assert_eq!(counting.taken(), [&["create"][..], &vec!["change"; changes]].concat());
        assert_eq!(fs.lookup(&Context::OWN, fs.root(), b"small").unwrap().unwrap().size_bytes, 40);
        assert_eq!(counting.taken(), ["lookup"]);
    }
    // A single mount knows the end of a file. A change of a private name space is no request.
    let counting = Counting::new(private());
    let names: Arc<dyn NameSpace> = counting.clone();
    let (_, file) = create(&mount(&names, &MemoryStore::new(), 0), "appended");
    for part in 0..10 {
        assert_eq!(file.append(b"part").unwrap(), part * 4);
    }
    assert_eq!(bytes(&*file), b"part".repeat(10));
    file.close().unwrap();
    assert_eq!(counting.taken(), [&["create"][..], &["change"; 10]].concat());
}

#[test]
fn a_large_file_has_a_data_file_until_its_last_use() {
    let (names, store) = (private(), MemoryStore::new());
    let fs = mount(&names, &store, 7);
    let (node, file) = create(&fs, "file");
    file.write_at(&vec![1; LIMIT], 0).unwrap();
    file.publish().unwrap();
    assert_eq!(data_files(&store), [""; 0]);
    file.append(b"x").unwrap();
    let path = format!("7/{:02x}/{:x}", node.0 % 256, node.0);
    assert_eq!(data_files(&store), [path.as_str()]);
    // The content stays in its data file when the file becomes small.
    let truncate = Change { size_bytes: Some(3), ..Change::default() };
    fs.change(&Context::OWN, node, &truncate).unwrap();
    file.append(b"more").unwrap();
    assert_eq!(bytes(&*file), b"\x01\x01\x01more");
    file.sync().unwrap();
    fs.remove(&Context::OWN, fs.root(), b"file").unwrap();
    assert_eq!((bytes(&*file).len(), data_files(&store)), (7, vec![path.clone()]));
    fs.forget(node, 1);
    file.close().unwrap();
    assert_eq!(data_files(&store), [""; 0]);
    // A file that is not in use loses its data file at once, also if another file replaces it.
    for name in ["a", "b"] {
        let (node, file) = create(&fs, name);
        file.write_at(b"far", 1 << 30).unwrap();
        file.close().unwrap();
        fs.forget(node, 1);
    }
    assert_eq!(data_files(&store).len(), 2);
    fs.rename(&Context::OWN, fs.root(), b"a", fs.root(), b"b", Rename::Replace).unwrap();
    assert_eq!(data_files(&store).len(), 1);
    fs.remove(&Context::OWN, fs.root(), b"b").unwrap();
    assert_eq!(data_files(&store), [""; 0]);
    drop((fs, file));
    assert_eq!(store.open_handles(), 0);
}

#[test]
fn a_data_file_of_another_batch_is_copied_before_it_is_changed() {
    let (names, store) = (shared(), MemoryStore::new());
    let content: Vec<u8> = (0..200_000).map(|i| (i % 251) as u8).collect();
    let (first, second) = (mount(&names, &store, 1), mount(&names, &store, 2));
    for name in ["written", "truncated", "emptied", "grown"] {
        let (_, file) = create(&first, name);
        file.write_at(&content, 0).unwrap();
        file.close().unwrap();
    }
    let before = data_files(&store);
    assert_eq!(before.len(), 4);
    assert_eq!(bytes(&*open(&second, "written")), content);
    assert_eq!(data_files(&store), before, "a read copies nothing");
    let snapshot = store.kill();
    let file = open(&second, "written");
    file.write_at(b"new", 100_000).unwrap();
    file.close().unwrap();
    let changed = [&content[..100_000], b"new", &content[100_003..]].concat();
    let node = |name: &str| {
        second.lookup(&Context::OWN, second.root(), name.as_bytes()).unwrap().unwrap().into_attributes().node
    };
    let resize = |name, size_bytes| {
        let change = Change { size_bytes: Some(size_bytes), ..Change::default() };
        assert_eq!(second.change(&Context::OWN, node(name), &change).unwrap().size_bytes, size_bytes);
    };
    resize("truncated", 150_000);
    resize("grown", 200_002);
    drop(second.open_as(&Context::OWN, node("emptied"), OpenMode { truncate: true, ..OpenMode::WRITE }));
    for fs in [&first, &second] {
        assert!(bytes(&*open(fs, "written")) == changed);
        assert!(bytes(&*open(fs, "truncated")) == content[..150_000]);
        assert!(bytes(&*open(fs, "grown")) == [&content[..], &[0; 2]].concat());
        assert_eq!(bytes(&*open(fs, "emptied")), b"");
    }
    // The data files of the first batch are unchanged, and are not removed.
    second.remove(&Context::OWN, second.root(), b"grown").unwrap();
    for path in &before {
        let parts: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
        for store in [&snapshot, &store] {
            let dir = store.root().open_dir(parts[0]).unwrap().open_dir(parts[1]).unwrap();
            let mut found = vec![0; content.len() + 1];
            let count = dir.open_file(parts[2]).unwrap().read_at(&mut found, 0).unwrap();
            assert!(found[..count] == content);
        }
    }
}

#[test]
fn writes_of_two_mounts_to_different_ranges_are_all_kept() {
    // The file of the last case begins in the inode and ends in a data file, on either mount.
    for (blocks, block_bytes) in [(40, 100), (64, 1000), (200, 1001)] {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (names, store) = (shared(), MemoryStore::new());
            let fs = [mount(&names, &store, 0), mount(&names, &store, 0)];
            let (_, first) = create(&fs[0], "file");
            let files = [first, open(&fs[1], "file")];
            let mut order: Vec<usize> = (0..blocks).collect();
            for at in 0..blocks {
                order.swap(at, random.below(blocks));
            }
            for block in order {
                let file = &files[random.below(2)];
                file.write_at(&vec![1 + block as u8; block_bytes], (block * block_bytes) as u64).unwrap();
                if random.one_in(5) {
                    file.publish().unwrap();
                }
            }
            files.iter().for_each(|file| file.close().unwrap());
            for fs in &fs {
                let found = bytes(&*open(fs, "file"));
                assert_eq!(found.len(), blocks * block_bytes, "seed {seed}");
                for (block, bytes) in found.chunks(block_bytes).enumerate() {
                    assert!(bytes.iter().all(|byte| *byte == 1 + block as u8), "block {block}, seed {seed}");
                }
            }
        }
    }
}

#[test]
fn threads_of_two_mounts_append_and_write_at_the_same_time() {
    for round in 0..10 {
        let (names, store) = (shared(), MemoryStore::new());
        let fs = [mount(&names, &store, 0), mount(&names, &store, 0)];
        drop(create(&fs[0], "appended"));
        drop(create(&fs[0], "written"));
        const RECORD: usize = 500;
        const RECORDS: usize = 60;
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let fs = &fs[usize::from(thread) % 2];
                scope.spawn(move || {
                    let (appended, written) = (open(fs, "appended"), open(fs, "written"));
                    for i in 0..RECORDS {
                        let at = appended.append(&[thread + 1; RECORD]).unwrap();
                        assert_eq!(at % RECORD as u64, 0);
                        let block = i * 4 + usize::from(thread);
                        written.write_at(&[thread + 1; RECORD], (block * RECORD) as u64).unwrap();
                        if i % 7 == round % 7 {
                            written.publish().unwrap();
                        }
                    }
                    appended.close().unwrap();
                    written.close().unwrap();
                });
            }
        });
        for name in ["appended", "written"] {
            let found = bytes(&*open(&fs[0], name));
            assert_eq!(found.len(), 4 * RECORDS * RECORD);
            for thread in 0..4 {
                let records = found.chunks(RECORD).filter(|record| **record == [thread + 1; RECORD]);
                assert_eq!(records.count(), RECORDS, "{name}");
            }
        }
        assert_eq!(data_files(&store).len(), 2, "the data files that were not chosen are removed");
    }
}

#[test]
fn a_file_that_another_mount_has_renamed_or_removed_is_found_or_stale() {
    let (names, store) = (shared(), MemoryStore::new());
    let (a, b) = (mount(&names, &store, 0), mount(&names, &store, 0));
    let (node, file) = create(&a, "file");
    file.write_at(b"bytes", 0).unwrap();
    b.rename(&Context::OWN, b.root(), b"file", b.root(), b"moved", Rename::Replace).unwrap();
    // Another file has the name of the first file.
    let (other, _) = create(&b, "file");
    file.close().unwrap();
    assert_eq!(a.attributes(&Context::OWN, node).unwrap().size_bytes, 5);
    assert_eq!(b.attributes(&Context::OWN, other).unwrap().size_bytes, 0);
    assert_eq!(bytes(&*open(&b, "moved")), b"bytes");
    let file = open(&a, "moved");
    file.write_at(b"B", 0).unwrap();
    b.remove(&Context::OWN, b.root(), b"moved").unwrap();
    assert_eq!(file.attributes().unwrap_err().errno(), errno::ESTALE);
    assert_eq!(file.publish().unwrap_err().errno(), errno::ESTALE);
    assert_eq!(file.close().unwrap_err().errno(), errno::ESTALE);
}

#[test]
fn a_failed_change_is_returned_by_each_descriptor_until_it_succeeds() {
    let counting = Counting::new(shared());
    let names: Arc<dyn NameSpace> = counting.clone();
    let fs = mount(&names, &MemoryStore::new(), 0);
    let (_, first) = create(&fs, "file");
    let second = open(&fs, "file");
    first.write_at(b"bytes", 0).unwrap();
    counting.refuse_changes(Some(ErrorKind::NoSpace));
    assert_eq!(first.publish().unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(second.sync().unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(bytes(&*second), b"bytes");
    assert_eq!(first.close().unwrap_err().kind, ErrorKind::NoSpace);
    counting.refuse_changes(None);
    second.publish().unwrap();
    second.close().unwrap();
    assert_eq!(bytes(&*open(&fs, "file")), b"bytes");
    // After the last close, the data is lost.
    let file = open(&fs, "file");
    file.write_at(b"B", 0).unwrap();
    counting.refuse_changes(Some(ErrorKind::NoSpace));
    assert_eq!(file.close().unwrap_err().kind, ErrorKind::NoSpace);
    counting.refuse_changes(None);
    assert_eq!(bytes(&*open(&fs, "file")), b"bytes");
}

/// In a private name space, each write is sent before it returns, and returns its error.
#[test]
fn a_write_to_a_file_of_a_batch_returns_its_error() {
    let counting = Counting::new(private());
    let names: Arc<dyn NameSpace> = counting.clone();
    let store = MemoryStore::new();
    let fs = mount(&names, &store, 0);
    let ((_, small), (_, large)) = (create(&fs, "small"), create(&fs, "large"));
    large.write_at(&vec![1; LIMIT + 1], 0).unwrap();
    counting.refuse_changes(Some(ErrorKind::NoSpace));
    assert_eq!(small.write_at(b"bytes", 0).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(small.append(b"more").unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(large.write_at(b"end", LIMIT as u64 + 1).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(bytes(&*small), b"");
    assert_eq!(large.publish().unwrap_err().kind, ErrorKind::NoSpace);
    counting.refuse_changes(None);
    assert_eq!(small.append(b"bytes").unwrap(), 0);
    large.write_at(b"End", LIMIT as u64 + 1).unwrap();
    // Another mount sees the writes of files that are open.
    let other = mount(&names, &store, 0);
    assert_eq!(bytes(&*open(&other, "small")), b"bytes");
    assert_eq!(bytes(&*open(&other, "large")).len(), LIMIT + 4);
}

#[test]
fn a_write_that_is_refused_leaves_no_data_file() {
    for (names, refusal) in [
        (shared(), ErrorKind::Quota),
        (private(), ErrorKind::Quota),
        (private(), ErrorKind::PermissionDenied),
    ] {
        let counting = Counting::new(names);
        let (names, store): (Arc<dyn NameSpace>, _) = (counting.clone(), MemoryStore::new());
        let fs = mount(&names, &store, 0);
        let (_, file) = create(&fs, "file");
        counting.refuse_changes(Some(refusal));
        assert_eq!(file.write_at(&vec![1; LIMIT + 1], 0).unwrap_err().kind, refusal);
        assert_eq!(data_files(&store), [""; 0], "{refusal:?}");
        counting.refuse_changes(None);
        file.write_at(&vec![1; LIMIT + 1], 0).unwrap();
        file.close().unwrap();
        assert_eq!(data_files(&store).len(), 1);
    }
}

#[test]
fn a_file_of_another_user_is_not_opened_for_writing() {
    let names = Arc::new(RwLock::new(MemoryEntries::new(NEW, Time::default())));
    let (owner, store): (Arc<dyn NameSpace>, _) = (names.clone(), MemoryStore::new());
    create(&mount(&owner, &store, 0), "file");
    let caller = BatchCaller { uid: NEW.uid + 1, gid: NEW.gid + 1, groups: Vec::new() };
    let user: Arc<dyn NameSpace> = Arc::new(UserNames::new(names, caller, ReadAccess::All, None));
    let fs = mount(&user, &store, 0);
    let found = fs.lookup(&Context::OWN, fs.root(), b"file").unwrap().expect("it exists");
    let open = |mode| fs.open_as(&Context::OWN, found.node(), mode).map(drop).map_err(|error| error.kind);
    assert_eq!(open(OpenMode::READ), Ok(()));
    let write = OpenMode { read: false, write: true, truncate: false };
    for mode in [OpenMode::READ_WRITE, write, OpenMode { truncate: true, ..write }] {
        assert_eq!(open(mode), Err(ErrorKind::PermissionDenied), "{mode:?}");
    }
}

#[test]
fn a_failed_sync_of_a_data_file_is_returned_once_by_each_descriptor() {
    let (names, store) = (private(), MemoryStore::new());
    let fs = mount(&names, &store, 0);
    let (_, first) = create(&fs, "file");
    first.write_at(&vec![1; LIMIT + 1], 0).unwrap();
    let (second, third) = (open(&fs, "file"), open(&fs, "file"));
    store.fail(|operation| (operation.verb == "sync").then_some(errno::EIO));
    assert_eq!(first.sync().unwrap_err().errno(), errno::EIO);
    store.fail_nothing();
    let later = open(&fs, "file");
    assert_eq!(second.sync().unwrap_err().errno(), errno::EIO);
    assert_eq!(third.close().unwrap_err().errno(), errno::EIO);
    for file in [&first, &second, &later] {
        file.sync().unwrap();
        file.close().unwrap();
    }
}

#[test]
fn a_synced_file_survives_a_power_failure() {
    for seed in 0..40 {
        let (names, store) = (private(), MemoryStore::new());
        let fs = mount(&names, &store, 0);
        let (_, file) = create(&fs, "file");
        file.write_at(&vec![1; LIMIT + 1], 0).unwrap();
        file.close().unwrap();
        // The file is synced through another descriptor than the writes.
        open(&fs, "file").sync().unwrap();
        let after = mount(&names, &store.crash(seed), 0);
        assert!(bytes(&*open(&after, "file")) == vec![1; LIMIT + 1], "seed {seed}");
    }
}

#[test]
fn a_file_that_does_not_fit_on_the_disk_keeps_its_content() {
    let (names, store) = (private(), MemoryStore::new());
    let fs = mount(&names, &store, 0);
    let (_, file) = create(&fs, "file");
    file.write_at(&vec![1; LIMIT], 0).unwrap();
    file.publish().unwrap();
    store.set_free_bytes(Some(20_000));
    assert_eq!(file.append(b"x").unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(data_files(&store), [""; 0]);
    assert!(bytes(&*file) == vec![1; LIMIT]);
    store.set_free_bytes(None);
    assert_eq!(file.append(b"x").unwrap(), LIMIT as u64);
    file.close().unwrap();
    assert_eq!(bytes(&*open(&fs, "file")).len(), LIMIT + 1);
}
