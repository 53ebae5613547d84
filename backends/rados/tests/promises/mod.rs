//! The promises of every implementation of `Objects`, and of logs and stores on it. Each function
//! uses names of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore};
use quell_rados::{LogOptions, ObjectExtents, Objects, RadosStore, Replaced, Takeover, Write};
use quell_testkit::Random;
use quell_vfs::{ErrorKind, Result};

type Shared = Arc<dyn Objects>;

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("an error").kind
}

pub fn put(key: &str, value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.put(key.as_bytes(), value);
    batch
}

pub fn open(objects: &Shared, name: &str) -> Result<RadosStore<MemoryStore>> {
    RadosStore::open(Arc::clone(objects), name, MemoryStore::new(), &LogOptions::default())
}

pub fn content(store: &RadosStore<MemoryStore>) -> BTreeMap<String, Vec<u8>> {
    let mut content = BTreeMap::new();
    store
        .scan(&KeyRange::all(), &mut |key, value| {
            content.insert(String::from_utf8_lossy(key).into_owned(), value.to_vec());
            true
        })
        .expect("a scan of memory");
    content
}

pub fn names(objects: &Shared, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    objects
        .list(prefix, &mut |name| {
            names.push(name.to_owned());
            true
        })
        .expect("a list");
    names.sort();
    names
}

/// Checks all promises.
pub fn all(objects: &Shared) {
    compound_writes_are_performed_entirely_or_not_at_all(objects);
    writes_of_one_thread_are_in_order(objects);
    a_replaced_owner_appends_nothing(objects);
    a_replaced_owner_changes_no_object(objects);
    a_store_is_as_before_after_checkpoints_and_openings(objects);
    commits_of_several_threads_are_all_there(objects);
    extents_are_read_as_they_were_written(objects);
}

fn extents_are_read_as_they_were_written(objects: &Shared) {
    let extents = ObjectExtents::new(Arc::clone(objects), "data", 0).expect("a name");
    let mut random = Random::new(3);
    let lengths = [1, 4096, 40_000, (4 << 20) + 1, 13 << 20];
    let data: Vec<Vec<u8>> = lengths.iter().map(|length| random.bytes(*length)).collect();
    for (number, data) in (1..).zip(&data) {
        if number % 2 == 0 {
            extents.write(number, data).expect("a write");
            continue;
        }
        let (mut writer, mut rest) = (extents.begin(number), &data[..]);
        while !rest.is_empty() {
            let (part, after) = rest.split_at(1 + random.below(rest.len().min(1 << 20)));
            writer.append(part).expect("a write");
            rest = after;
        }
        writer.finish().expect("a write");
    }
    for (number, data) in (1..).zip(&data) {
        for round in 0..20 {
            let offset = random.below(data.len());
            // Half of the reads are so small that they are kept in memory.
            let length_max = (data.len() - offset).min(if round % 2 == 0 { 300_000 } else { usize::MAX });
            let mut found = vec![0; 1 + random.below(length_max)];
            extents.read(number, offset as u64, &mut found).expect("a read");
            assert!(found == data[offset..offset + found.len()], "extent {number}, offset {offset}");
        }
        let mut beyond = [0; 2];
        let end = data.len() as u64;
        assert_eq!(kind(extents.read(number, end - 1, &mut beyond)), ErrorKind::Damaged);
        assert_eq!(kind(extents.read(number, u64::MAX, &mut beyond)), ErrorKind::Damaged);
        extents.read(number, end, &mut []).expect("no bytes");
    }
    // The objects of an unfinished write are listed and removed, too.
    objects.write("data.extent.0000000000000009.02", &Write::new().write_full(b"")).expect("a write");
    let list = |first| {
        let mut found = Vec::new();
        extents.list(first, &mut |number| found.push(number)).expect("a list");
        found.sort();
        found
    };
    assert_eq!(list(0), [1, 2, 3, 4, 5, 9]);
    assert_eq!(list(5), [5, 9]);
    let lengths = (1..).zip(&data).map(|(number, data)| (number, data.len() as u64));
    extents.remove(&lengths.collect::<Vec<_>>()).expect("a removal");
    assert_eq!(list(0), [9]);
    // The length of an unfinished write is not known.
    extents.remove(&[(9, 64 << 20)]).expect("a removal");
    extents.remove(&[(9, 64 << 20)]).expect("nothing is left");
    assert!(list(0).is_empty() && names(objects, "data.").is_empty());
    assert_eq!(kind(extents.read(1, 0, &mut [0])), ErrorKind::Damaged);
}

fn compound_writes_are_performed_entirely_or_not_at_all(objects: &Shared) {
    let name = "compound";
    let compare = |value| Write::new().compare_attribute("a", value);
    assert_eq!(kind(objects.write(name, &compare(b"").write_full(b"x"))), ErrorKind::NotFound);
    assert_eq!(kind(objects.read(name, 0, 10)), ErrorKind::NotFound);
    assert_eq!(kind(objects.size(name)), ErrorKind::NotFound);
    assert_eq!(kind(objects.attribute(name, "a")), ErrorKind::NotFound);
    assert_eq!(kind(objects.remove(name)), ErrorKind::NotFound);

    objects.write(name, &Write::new().create_exclusive().write_at(2, b"34")).expect("a new object");
    assert_eq!(kind(objects.write(name, &Write::new().create_exclusive().append(b"x"))), ErrorKind::Exists);
    assert_eq!(objects.attribute(name, "a").expect("an object"), None);
    assert_eq!(kind(objects.write(name, &compare(b"1").append(b"x"))), ErrorKind::Conflict);
    objects
        .write(name, &compare(b"").set_attribute("a", b"1\0\xff").append(b"56"))
        .expect("no attribute yet");
    assert_eq!(kind(objects.write(name, &compare(b"1").append(b"x"))), ErrorKind::Conflict);
    assert_eq!(kind(objects.write(name, &compare(b"1\0\xfe").append(b"x"))), ErrorKind::Conflict);
    objects.write(name, &compare(b"1\0\xff").append(b"78")).expect("the attribute is equal");

    assert_eq!(objects.read(name, 0, 100).expect("an object"), b"\0\x00345678");
    assert_eq!(objects.read(name, 3, 2).expect("an object"), b"45");
    assert_eq!(objects.read(name, 8, 5).expect("the end"), b"");
    assert_eq!(objects.size(name).expect("an object"), 8);
    assert_eq!(objects.attribute(name, "a").expect("an object").as_deref(), Some(&b"1\0\xff"[..]));
    assert_eq!(names(objects, "comp"), ["compound"]);
    objects.remove(name).expect("an object");
    assert!(names(objects, "comp").is_empty());

    let large = vec![1; quell_rados::TRANSFER_BYTES_MAX + 1];
    assert_eq!(kind(objects.write(name, &Write::new().write_full(&large))), ErrorKind::InvalidInput);
}

fn writes_of_one_thread_are_in_order(objects: &Shared) {
    let writes: Vec<_> =
        (0..50_u8).map(|byte| objects.start_write("order", &Write::new().append(&[byte]))).collect();
    writes.into_iter().for_each(|write| write.wait().expect("an append"));
    assert_eq!(objects.read("order", 0, 100).expect("an object"), (0..50).collect::<Vec<u8>>());
    let reads: Vec<_> = (0..50).map(|offset| objects.start_read("order", offset, 1)).collect();
    for (byte, read) in (0..50_u8).zip(reads) {
        assert_eq!(read.wait().expect("a byte"), [byte]);
    }
    drop(objects.start_read("order", 0, 50));
    objects.remove("order").expect("an object");
}

fn a_replaced_owner_appends_nothing(objects: &Shared) {
    let take_over = || Takeover::new(Arc::clone(objects), "replaced", &LogOptions::default()).expect("a log");
    let mut found = Vec::new();
    let mut first = take_over().replay(&mut |_| panic!("no records yet")).expect("a new log");
    assert_eq!(first.append(b"one").expect("the owner"), 1);
    // The takeover has its effect before the log is read.
    let second = take_over();
    let refused = first.append(b"two").expect_err("replaced");
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert_eq!(Replaced::of(&refused), Some(Replaced { epoch: 2 }));
    first.append(b"three").expect_err("still replaced");
    let mut second = second
        .replay(&mut |record| {
            found.push((record.sequence, record.epoch, record.payload.to_vec()));
            Ok(())
        })
        .expect("a log");
    assert_eq!(found, [(1, 1, b"one".to_vec())]);
    assert_eq!(second.append(b"four").expect("the owner"), 2);
    first.append(b"five").expect_err("still replaced");
}

fn a_replaced_owner_changes_no_object(objects: &Shared) {
    let options = LogOptions { object_bytes: 200, ..LogOptions::default() };
    let take_over = || {
        let takeover = Takeover::new(Arc::clone(objects), "change", &options).expect("a log");
        takeover.replay(&mut |_| Ok(())).expect("a log")
    };
    let mut first = take_over();
    first.append(&[1; 150]).expect("the owner");
    let mut second = take_over();
    // The record does not fit into the object, so the owner begins another one.
    let refused = first.append(&[2; 150]).expect_err("replaced");
    assert_eq!(Replaced::of(&refused), Some(Replaced { epoch: 2 }));
    assert_eq!(second.append(&[3; 150]).expect("the owner"), 2);
    assert_eq!(take_over().append(&[4; 150]).expect("the owner"), 3);
}

fn a_store_is_as_before_after_checkpoints_and_openings(objects: &Shared) {
    let store = open(objects, "kept").expect("a new store");
    assert_eq!(store.checkpoint().expect("nothing to do"), None);
    for number in 0..20 {
        store.commit(put(&format!("k{}", number % 7), &[number; 100])).expect("a commit");
    }
    let mut delete = Batch::new();
    delete.delete(b"k3");
    store.commit(delete).expect("a commit");
    let before = content(&store);
    assert_eq!(before.len(), 6);
    assert_eq!(content(&open(objects, "kept").expect("a store")), before);

    let store = open(objects, "kept").expect("a store");
    assert_eq!(store.checkpoint().expect("a checkpoint").map(|summary| summary.entries), Some(6));
    assert_eq!(store.checkpoint().expect("nothing to do"), None);
    let checkpointed = names(objects, "kept.");
    assert_eq!(checkpointed.len(), 3, "a head, a log object and a piece: {checkpointed:?}");
    store.commit(put("k0", b"later")).expect("a commit");
    let before = content(&store);
    let store = open(objects, "kept").expect("a store");
    assert_eq!(content(&store), before);
    // Pieces of 4 MiB, so that there are several.
    for number in 0..9 {
        store.commit(put(&format!("large {number}"), &vec![number; 1 << 20])).expect("a commit");
    }
    let before = content(&store);
    let summary = store.checkpoint().expect("a checkpoint").expect("commits since the last one");
    assert_eq!(summary.entries, 15);
    assert_eq!(names(objects, "kept.checkpoint.").len(), 3);
    assert_eq!(store.remove_orphans().expect("a list"), 0);
    assert_eq!(content(&open(objects, "kept").expect("a store")), before);
    assert!(store.commit(put("k0", b"replaced")).is_err());
    assert!(store.replaced().is_some());
}

fn commits_of_several_threads_are_all_there(objects: &Shared) {
    let store = open(objects, "threads").expect("a new store");
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..20 {
                    let key = format!("{thread} {number}");
                    store.commit(put(&key, b"")).expect("a commit");
                    assert!(store.get(key.as_bytes()).expect("a read").is_some());
                }
            });
        }
        scope.spawn(|| store.checkpoint().expect("a checkpoint"));
    });
    assert_eq!(content(&store).len(), 160);
    assert_eq!(content(&open(objects, "threads").expect("a store")), content(&store));
}
