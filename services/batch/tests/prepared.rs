//! Batches that are prepared for a commit together with a transaction of blobs.

mod stores;

use std::fs::File;
use std::sync::Arc;

use quell_batch_service::{BatchState, Image, NameSpace, NewNode, Primary, ROOT, TableDir, TableFiles};
use quell_kv::MemoryStore;
use quell_vfs::{Error, ErrorKind, Rename, Result};

use stores::{FILE, Fixture, LATER, NEW, NOW, make_dir, make_file, marker, tables, tree};

fn assert_busy<T: std::fmt::Debug>(result: Result<T, Error>, reason: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn a_prepared_batch_is_invisible_and_reserves_its_directories_until_it_is_published() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let [run, other] = ["run", "other"].map(|name| make_dir(&*master, ROOT, name));
    let old = make_file(&*master, run, "old");
    let batch = fixture.begin_as(stores::USER, run, false).unwrap();
    make_file(&batch.names, run, "new");
    batch.names.remove(run, b"old", LATER).unwrap();
    let before = tree(&*master);
    let prepared = fixture.prepare(&batch, "one").unwrap();
    assert!(matches!(&prepared.state, BatchState::Prepared(prepared) if prepared.marker == marker("one")));
    assert_eq!(tree(&*master), before);
    // Its tables are not garbage, and it can be ended by its transaction only.
    assert_eq!(fixture.primary.unused_tables().unwrap(), []);
    let number = batch.record.number;
    assert_busy(fixture.commit(&batch), "it is prepared");
    assert_busy(fixture.primary.abort(number), "it is prepared");
    assert_busy(fixture.primary.submit(number), "it is prepared");
    assert_busy(fixture.prepare(&batch, "two"), "it is prepared");
    assert_busy(fixture.begin_as(stores::USER, ROOT, false).map(drop), "is prepared, and changes");
    // Others read its directories, and change other directories only.
    for (result, name) in [
        (master.create(run, b"mine", NewNode::File, FILE, NOW).map(drop), "create"),
        (master.remove(run, b"old", LATER).map(drop), "remove"),
        (master.rename((run, b"old"), (other, b"old"), Rename::Keep, LATER).map(drop), "rename"),
        (master.change((old.inode.number, &old.place), &stores::content(b"bytes"), LATER).map(drop), "write"),
    ] {
        assert_busy(result, &format!("batch {number} is prepared"));
        assert_eq!(tree(&*master), before, "{name}");
    }
    make_file(&*master, other, "free");
    assert_busy(fixture.publish(&batch, "two"), "prepared by another commit");
    fixture.publish(&batch, "one").unwrap();
    assert_eq!(
        tree(&*master),
        ["/ 755 4", "/other/ 755 2", "/other/free 644 1 ", "/run/ 755 2", "/run/new 644 1 "]
    );
    make_file(&*master, run, "later");
    // A repeated request has the same result.
    assert!(matches!(fixture.publish(&batch, "one").unwrap().state, BatchState::Committed { .. }));
    assert_eq!(fixture.roll_back(&batch, "one").unwrap_err().kind, ErrorKind::InvalidInput);
    fixture.check("after the commit");
}

#[test]
fn a_batch_that_was_rolled_back_is_open_and_can_be_prepared_again() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let batch = fixture.begin();
    make_file(&batch.names, ROOT, "new");
    assert_eq!(fixture.publish(&batch, "one").unwrap_err().kind, ErrorKind::InvalidInput);
    let first = fixture.prepare(&batch, "one").unwrap();
    assert_eq!(fixture.prepare(&batch, "one").unwrap(), first, "a repeated request has the same result");
    for _ in 0..2 {
        assert_eq!(fixture.roll_back(&batch, "one").unwrap().state, BatchState::Open);
    }
    // The directory is free again, also for a name that is then in conflict.
    make_file(&*master, ROOT, "new");
    assert_busy(fixture.prepare(&batch, "two"), "1 conflicts");
    master.remove(ROOT, b"new", LATER).unwrap();
    fixture.prepare(&batch, "three").unwrap();
    // A request of an earlier attempt that arrives late changes nothing.
    assert_busy(fixture.roll_back(&batch, "one"), "prepared by another commit");
    fixture.publish(&batch, "three").unwrap();
    assert_eq!(tree(&*master), ["/ 755 2", "/new 644 1 "]);
    fixture.check("after the commit");
}

#[test]
fn a_submitted_batch_is_not_prepared() {
    let fixture = Fixture::new();
    let batch = fixture.begin();
    make_file(&batch.names, ROOT, "new");
    fixture.primary.submit(batch.record.number).unwrap();
    let refused = fixture.prepare(&batch, "one").unwrap_err();
    assert!(refused.to_string().contains("it is submitted"), "{refused}");
    fixture.commit(&batch).unwrap();
}

#[test]
fn prepared_batches_are_published_in_any_order() {
    for is_reversed in [false, true] {
        let fixture = Fixture::new();
        let master = fixture.master();
        let dirs = ["a", "b", "c"].map(|name| make_dir(&*master, ROOT, name));
        let batches = dirs.map(|dir| fixture.begin_as(stores::USER, dir, true).unwrap());
        for (dir, batch) in dirs.iter().zip(&batches) {
            make_file(&batch.names, *dir, "file");
        }
        fixture.prepare(&batches[0], "a").unwrap();
        fixture.prepare(&batches[1], "b").unwrap();
        // A batch without blobs is committed meanwhile.
        fixture.commit(&batches[2]).unwrap();
        let order = if is_reversed { [1, 0] } else { [0, 1] };
        for at in order {
            fixture.publish(&batches[at], ["a", "b"][at]).unwrap();
        }
        assert_eq!(tree(&*master).iter().filter(|line| line.contains("/file")).count(), 3);
        fixture.check("after the commits");
    }
}

#[test]
fn the_reservation_and_the_tables_are_there_after_the_store_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new());
    Image::create(&*store, 7, NEW, NOW).unwrap();
    let image = directory.path().join("image");
    let open = |store: &Arc<MemoryStore>| Primary::open(store.clone(), Arc::new(tables(&image))).unwrap();
    let fixture =
        Fixture { primary: open(&store), directory: tempfile::tempdir().unwrap(), ..Fixture::new() };
    let batch = fixture.begin();
    make_file(&batch.names, ROOT, "new");
    fixture.prepare(&batch, "one").unwrap();
    let number = batch.record.number;
    drop(fixture);
    let lost = Arc::new(MemoryStore::new());
    let files = TableDir::new(File::open(&image).unwrap().into());
    Image::rebuild(&*lost, &files).unwrap();
    // The key-value store, and one that was rebuilt from the copy of the description.
    for store in [store, lost] {
        let primary = open(&store);
        let master = primary.name_space();
        assert_busy(master.create(ROOT, b"mine", NewNode::File, FILE, NOW), "is prepared");
        for number in primary.unused_tables().unwrap() {
            files.remove(number).unwrap();
        }
        let published = primary.publish(&primary.lock_commit(number), "one").unwrap();
        assert!(matches!(published.state, BatchState::Committed { entries: 1, .. }), "{published:?}");
        assert_eq!(tree(&*master), ["/ 755 2", "/new 644 1 "]);
        make_file(&*master, ROOT, "mine");
    }
}

#[test]
fn a_batch_that_could_not_be_prepared_reserves_nothing() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let run = make_dir(&*master, ROOT, "run");
    let batch = fixture.begin_as(stores::USER, run, false).unwrap();
    make_file(&batch.names, run, "new");
    // The copy of the description cannot be written to a directory.
    let copy = fixture.directory.path().join("image/image");
    std::fs::remove_file(&copy).unwrap();
    std::fs::create_dir(&copy).unwrap();
    fixture.prepare(&batch, "one").unwrap_err();
    std::fs::remove_dir(&copy).unwrap();
    assert_eq!(fixture.roll_back(&batch, "one").unwrap().state, BatchState::Open);
    make_file(&*master, run, "meanwhile");
    fixture.primary.abort(batch.record.number).unwrap();
    make_file(&*master, run, "later");
}
