//! Tests of a store in a directory, through the interface for programs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use quell_blob::{Error, FileAttributes, Operation, Refusal, Retries, Store, Transaction, Transform};
use quell_vfs::ErrorKind;

fn open(directory: &Path) -> Store {
    Store::open(&format!("dir:{}", directory.join("store").display())).expect("opened")
}

fn counter(store: &Store, name: &str) -> i64 {
    let mut number = [0; 8];
    store.read(name, 0, &mut number).expect("read");
    i64::from_le_bytes(number)
}

#[test]
fn committed_data_is_there_after_the_store_is_opened_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let large: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
    {
        let store = open(directory.path());
        store.create("small").expect("created");
        store.write("small", 700, b"text").expect("written");
        store.create("large").expect("created");
        assert_eq!(store.append("large", &large).expect("appended"), 0);
        store.write("large", 1000, b"over").expect("written");
        store.create("deleted").expect("created");
        store.delete("deleted").expect("deleted");
    }
    let store = open(directory.path());
    let mut small = vec![1; 800];
    assert_eq!(store.read("small", 0, &mut small).expect("read"), 704);
    assert!(small[..700].iter().all(|byte| *byte == 0));
    assert_eq!(&small[700..704], b"text");
    let mut expected = large;
    expected[1000..1004].copy_from_slice(b"over");
    let mut found = vec![0; expected.len()];
    assert_eq!(store.read("large", 0, &mut found).expect("read"), expected.len());
    assert!(found == expected);
    let names: Vec<Vec<u8>> = store
        .snapshot()
        .expect("begun")
        .list("", "", 9)
        .expect("listed")
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    assert_eq!(names, [b"large".to_vec(), b"small".to_vec()]);
}

#[test]
fn threads_that_read_and_write_lose_no_update() {
    const THREADS: usize = 8;
    const ADDITIONS: usize = 40;
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    store.create("counter").expect("created");
    store.create("transformed").expect("created");
    store.create("log").expect("created");
    let retries = Retries { attempts_max: 10_000, ..Retries::default() };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, retries) = (store.clone(), &retries);
            scope.spawn(move || {
                for _ in 0..ADDITIONS {
                    let add = |transaction: &mut quell_blob::Transaction| {
                        let mut number = [0; 8];
                        transaction.read("counter", 0, &mut number)?;
                        let sum = i64::from_le_bytes(number) + 1;
                        transaction.write("counter", 0, &sum.to_le_bytes())?;
                        transaction.append("log", &[thread as u8])?;
                        transaction.transform("transformed", 0, Transform::add_i64(1))
                    };
                    store.transact(retries, add).expect("committed");
                }
            });
        }
    });
    let total = (THREADS * ADDITIONS) as i64;
    assert_eq!((counter(&store, "counter"), counter(&store, "transformed")), (total, total));
    let mut log = vec![0; total as usize + 1];
    assert_eq!(store.read("log", 0, &mut log).expect("read"), total as usize);
    for thread in 0..THREADS {
        assert_eq!(log[..total as usize].iter().filter(|byte| **byte == thread as u8).count(), ADDITIONS);
    }
}

#[test]
fn transactions_that_do_not_conflict_are_committed_at_the_first_attempt() {
    const THREADS: usize = 4;
    const TRANSACTIONS: usize = 200;
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, name) = (store.clone(), format!("of thread {thread}"));
            scope.spawn(move || {
                store.create(&name).expect("created");
                for number in 0..TRANSACTIONS {
                    let mut transaction = store.begin().expect("begun");
                    assert_eq!(transaction.size(&name).expect("the size"), number as u64);
                    transaction.append(&name, b"x").expect("appended");
                    match number % 2 {
                        0 => drop(transaction.commit().expect("committed")),
                        _ => {
                            let (sender, receiver) = std::sync::mpsc::channel();
                            transaction.submit(move |result| sender.send(result).expect("it waits"));
                            receiver.recv().expect("a result").expect("committed");
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn a_conflict_names_the_blob_and_the_range() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    store.create("a").expect("created");
    store.write("a", 0, &[1; 100]).expect("written");
    let mut transaction = store.begin().expect("begun");
    let mut bytes = [0; 50];
    transaction.read("a", 10, &mut bytes).expect("read");
    transaction.write("a", 0, b"x").expect("added");
    store.write("a", 30, &[2; 8]).expect("written");
    let refused = transaction.commit().expect_err("conflict");
    assert!(refused.is_repeatable());
    assert_eq!(refused.to_string(), "another transaction changed bytes 30 to 38 of a");
    // A change next to the range that was read is not a conflict.
    let mut transaction = store.begin().expect("begun");
    transaction.read("a", 10, &mut bytes).expect("read");
    transaction.write("a", 0, b"x").expect("added");
    store.write("a", 60, &[3; 8]).expect("written");
    transaction.commit().expect("committed");
}

#[test]
fn a_transaction_reads_its_own_changes_and_a_snapshot_does_not_change() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    store.create("a").expect("created");
    let snapshot = store.snapshot().expect("begun");
    let mut transaction = store.begin().expect("begun");
    transaction.create_new("b").expect("added");
    transaction.append("b", b"one").expect("added");
    assert_eq!(transaction.size("b").expect("read"), 3);
    assert_eq!(store.stat("b").expect("read"), None);
    transaction.commit().expect("committed");
    assert_eq!(store.stat("b").expect("read").expect("it exists").size_bytes, 3);
    assert_eq!(snapshot.stat("b").expect("read"), None);
    // The next read returns the error of an operation that cannot be applied.
    let mut transaction = store.begin().expect("begun");
    transaction.create_new("b").expect("added");
    assert_eq!(transaction.size("a").expect_err("b exists").kind(), ErrorKind::Exists);
}

#[test]
fn submitted_operations_are_committed_on_another_thread() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    store.create("counter").expect("created");
    let (sender, receiver) = channel();
    const COUNT: usize = 500;
    let succeeded = std::sync::Arc::new(AtomicUsize::new(0));
    for _ in 0..COUNT {
        let (sender, succeeded) = (sender.clone(), succeeded.clone());
        let add =
            Operation::Transform { name: b"counter".to_vec(), offset: 0, transform: Transform::add_i64(2) };
        store.submit(vec![add], move |result| {
            succeeded.fetch_add(usize::from(result.is_ok()), Ordering::Relaxed);
            sender.send(()).expect("received");
        });
    }
    (0..COUNT).for_each(|_| receiver.recv().expect("a result"));
    assert_eq!(succeeded.load(Ordering::Relaxed), COUNT);
    assert_eq!(counter(&store, "counter"), 2 * COUNT as i64);
}

#[test]
fn one_process_at_a_time_has_a_store_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let _store = open(directory.path());
    let location = directory.path().join("store").display().to_string();
    let error = Store::open(&location).expect_err("it is open");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains(&location), "{error}");
}

#[test]
fn directories_that_others_can_change_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let shared = directory.path().join("shared");
    std::fs::create_dir(&shared).expect("created");
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o770)).expect("changed");
    let location = shared.display().to_string();
    assert_eq!(Store::open(&location).expect_err("shared").kind(), ErrorKind::PermissionDenied);
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o700)).expect("changed");
    std::fs::write(shared.join("thesis.tex"), "text").expect("written");
    assert_eq!(Store::open(&location).expect_err("other files").kind(), ErrorKind::Exists);
    std::fs::remove_file(shared.join("thesis.tex")).expect("removed");
    drop(Store::open(&location).expect("an empty directory"));
    std::fs::write(shared.join("format"), "QUELLBLOB9\n").expect("written");
    assert_eq!(Store::open(&location).expect_err("another version").kind(), ErrorKind::Damaged);
}

#[test]
fn a_damaged_extent_is_an_error_of_the_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    store.create("large").expect("created");
    store.append("large", &vec![7; 100_000]).expect("appended");
    drop(store);
    let extents = directory.path().join("store/extents");
    let epoch =
        std::fs::read_dir(&extents).expect("listed").next().expect("an epoch").expect("listed").path();
    let extent = std::fs::read_dir(epoch).expect("listed").next().expect("an extent").expect("listed").path();
    let mut bytes = std::fs::read(&extent).expect("read");
    bytes[50_000] ^= 1;
    std::fs::write(&extent, bytes).expect("written");
    let store = open(directory.path());
    let mut into = vec![0; 1000];
    assert_eq!(store.read("large", 0, &mut into).expect("another block"), 1000);
    let error = store.read("large", 49_500, &mut into).expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::Damaged);
    std::fs::remove_file(&extent).expect("removed");
    drop(store);
    let store = open(directory.path());
    assert_eq!(store.read("large", 0, &mut into).expect_err("missing").kind(), ErrorKind::Damaged);
}

#[test]
fn a_refused_transaction_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    store.create("a").expect("created");
    let mut transaction = store.begin().expect("begun");
    transaction.append("a", &vec![1; 100_000]).expect("added");
    transaction.transform("a", 0, Transform::compare_and_set_u64(5, 6)).expect("added");
    match transaction.commit() {
        Err(Error::Refused(Refusal::Different { operation: 1, cell: 0, found })) => assert_eq!(found, [1; 8]),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.stat("a").expect("read").expect("it exists").size_bytes, 0);
    let extents = directory.path().join("store/extents");
    for epoch in std::fs::read_dir(extents).expect("listed") {
        let left = std::fs::read_dir(epoch.expect("listed").path()).expect("listed").count();
        assert_eq!(left, 0, "the extent of a refused transaction");
    }
}

#[test]
fn a_renamed_blob_keeps_its_content_and_attributes() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    let large = vec![7; 100_000];
    store.create("a").expect("created");
    store.append("a", &large).expect("appended");
    let file = Some(FileAttributes { mode: 0o100_640, uid: 1, gid: 2 });
    let set = Operation::SetAttributes { name: b"a".to_vec(), file, modified_ns: Some(9) };
    store.commit(vec![set]).expect("set");
    store.rename("a", "b").expect("renamed");
    assert_eq!(store.stat("a").expect("read"), None);
    let stat = store.stat("b").expect("read").expect("a blob");
    assert_eq!((stat.size_bytes, stat.modified_ns, stat.file), (100_000, 9, file));
    let mut found = vec![0; large.len()];
    assert_eq!(store.read("b", 0, &mut found).expect("read"), large.len());
    assert!(found == large);
    store.resize("b", 0).expect("resized");
    assert_eq!(store.stat("b").expect("read").expect("a blob").file, file, "a change of the data keeps them");
    store.create("a").expect("created");
    assert_eq!(store.rename("a", "b").expect_err("in use").kind(), ErrorKind::Exists);
    assert_eq!(store.rename("none", "c").expect_err("missing").kind(), ErrorKind::NotFound);
}

#[test]
fn a_transaction_that_has_seen_an_operation_fail_conflicts_with_a_change_of_its_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    store.create("number").expect("created");
    store.create("other").expect("created");
    let is_refused = |begin: &dyn Fn(&mut Transaction), change: &dyn Fn()| {
        let mut transaction = store.begin().expect("begun");
        begin(&mut transaction);
        transaction.stat("other").expect_err("the operation before cannot be applied");
        change();
        transaction.commit().is_err()
    };
    // The changes of others make the operations possible.
    let delete = |transaction: &mut Transaction| transaction.delete("missing").expect("added");
    assert!(is_refused(&delete, &|| store.create("missing").expect("created")));
    let set = |transaction: &mut Transaction| {
        transaction.transform("number", 0, Transform::compare_and_set_u64(1, 2)).expect("added");
    };
    let one = 1_u64.to_le_bytes();
    assert!(is_refused(&set, &|| store.write("number", 0, &one).expect("written")));
}

#[test]
fn a_transaction_that_reads_a_blob_by_its_new_name_conflicts_with_changes_under_the_old_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    store.create("a").expect("created");
    store.write("a", 0, b"old").expect("written");
    let mut transaction = store.begin().expect("begun");
    transaction.rename("a", "b").expect("added");
    let mut found = [0; 3];
    assert_eq!(transaction.read("b", 0, &mut found).expect("read"), 3);
    assert_eq!(&found, b"old");
    transaction.write("b", 3, &found).expect("added");
    store.write("a", 0, b"new").expect("written");
    assert_eq!(transaction.commit().expect_err("changed").kind(), ErrorKind::Conflict);
}

#[test]
fn threads_read_what_they_have_appended() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    for round in 0..20 {
        let name = format!("log {round}");
        store.create(&name).expect("created");
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let (store, name) = (&store, &name);
                scope.spawn(move || {
                    for number in 0..60_u8 {
                        let record = [thread, number, 7, 8, 9];
                        let at = store.append(name, &record).expect("appended");
                        let mut found = [0; 5];
                        assert_eq!(store.read(name, at, &mut found).expect("read"), 5);
                        assert_eq!(found, record, "at {at}, round {round}");
                    }
                });
            }
        });
    }
}
