//! Batches that are submitted, and verified when the store is used the next time: changes that were
//! not verified are never visible.

mod mounts;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use quell_batch::{BatchFs, BatchStore, OpenBatch, Requester, ServedStore, StoreAccess};
use quell_batch_service::{
    BatchSummary, Bytes, LimitChange, NameSpace, NumberChange, QuotaSubject, Reply, Request, SummaryState,
};
use quell_vfs::{Context, ErrorKind, FileSystem};
use quell_wire::{decode, encode};

use mounts::on_disk::{LARGE, Store, WAIT, put};
use mounts::{bytes, open};

fn summary(store: &Store, number: u64) -> BatchSummary {
    let access = StoreAccess::open_for_batches(&store.path(), WAIT).unwrap();
    access.batches().unwrap().into_iter().find(|batch| batch.number == number).unwrap()
}

fn has(fs: &BatchFs, name: &str) -> bool {
    fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().is_some()
}

/// Submits a batch with the file `name`, and returns its number.
fn submit(store: &Store, name: &str, is_atomic: bool) -> u64 {
    let access = StoreAccess::open(&store.path(), WAIT).unwrap();
    let batch = OpenBatch::begin(access, b"", "job", is_atomic).unwrap();
    put(&batch.file_system(), name, &[7; LARGE]);
    assert_eq!(batch.commit_later(WAIT).unwrap().state, SummaryState::Submitted);
    batch.record().number
}

/// Returns the tables that a batch has submitted.
fn tables(store: &Store, number: u64) -> Vec<PathBuf> {
    let dir = store.path().join("batches").join(number.to_string());
    let found = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    found.filter(|path| path.extension().is_some_and(|suffix| suffix == "table")).collect()
}

#[test]
fn a_submitted_batch_is_committed_before_the_store_is_used() {
    let store = Store::new();
    let number = submit(&store, "file", false);
    assert_eq!(summary(&store, number).state, SummaryState::Submitted);
    // Each use of the image first commits the batch.
    store.with_mount(|fs| assert_eq!(bytes(&*open(fs, "file")), [7; LARGE]));
    let committed = SummaryState::Committed { entries: 1, conflicts: 0 };
    assert_eq!(summary(&store, number).state, committed);
    assert!(!store.path().join("batches").join(number.to_string()).exists());
    let second = submit(&store, "second", false);
    let next = store.begin();
    assert!(has(&next.file_system(), "second"), "the snapshot of a later batch");
    assert_eq!(summary(&store, second).state, committed);
    next.abort(WAIT).unwrap();
    // A batch is submitted twice, and then committed.
    let third = submit(&store, "third", false);
    let access = StoreAccess::open_for_batches(&store.path(), WAIT).unwrap();
    assert_eq!(access.submit(third).unwrap().state, SummaryState::Submitted);
    assert_eq!(access.commit(third).unwrap().state, committed);
    assert_eq!(access.submit(third).unwrap().state, committed);
    drop(access);
    // A submitted batch can be discarded, and keeps its data until then.
    let fourth = submit(&store, "fourth", false);
    assert!(store.problems(false).is_empty());
    StoreAccess::open_for_batches(&store.path(), WAIT).unwrap().abort(fourth).unwrap();
    store.with_mount(|fs| assert!(has(fs, "third") && !has(fs, "fourth")));
}

#[test]
fn a_submitted_batch_beyond_a_limit_is_refused_and_committed_after_the_limit_is_raised() {
    let store = Store::new();
    let number = submit(&store, "file", false);
    let limit = |inodes| {
        let access = StoreAccess::open_for_batches(&store.path(), WAIT).unwrap();
        let inodes = NumberChange::Set(inodes);
        access.set_limit(QuotaSubject::Store, LimitChange { inodes, ..LimitChange::default() }).unwrap();
    };
    limit(1);
    store.with_mount(|fs| assert!(!has(fs, "file")));
    let SummaryState::Refused { reason } = summary(&store, number).state else { panic!() };
    assert!(reason.contains("the store would have 2 inodes; the limit is 1"), "{reason}");
    limit(2);
    StoreAccess::open_for_batches(&store.path(), WAIT).unwrap().commit(number).unwrap();
    store.with_mount(|fs| assert!(has(fs, "file")));
}

#[test]
fn a_batch_that_is_not_accepted_is_never_shown() {
    let store = Store::new();
    let damaged = submit(&store, "damaged", false);
    for table in tables(&store, damaged) {
        let file = fs::File::options().write(true).open(table).unwrap();
        file.write_at(&[0xFF; 40], 20).unwrap();
    }
    store.with_mount(|fs| {
        assert!(!has(fs, "damaged"));
        put(fs, "others", b"others");
    });
    let SummaryState::Refused { reason } = summary(&store, damaged).state else { panic!("not refused") };
    assert!(!reason.is_empty());
    // The commit is not repeated automatically, and the batch can be discarded.
    store.with_mount(|fs| assert!(has(fs, "others")));
    // Until then, its directory has no other batch.
    let access = StoreAccess::open(&store.path(), WAIT).unwrap();
    let error = OpenBatch::begin(access, b"", "later", false).map(drop).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.to_string().contains("refused"), "{error}");
    let access = StoreAccess::open(&store.path(), WAIT).unwrap();
    assert_eq!(access.commit(damaged).unwrap_err().kind, ErrorKind::Damaged);
    assert_eq!(access.abort(damaged).unwrap().state, SummaryState::Aborted);
    drop(access);
    // The tables of the batch are missing.
    let missing = submit(&store, "missing", false);
    tables(&store, missing).iter().for_each(|table| fs::remove_file(table).unwrap());
    store.with_mount(|fs| assert!(!has(fs, "missing")));
    assert!(matches!(summary(&store, missing).state, SummaryState::Refused { .. }));
}

/// An error of the files of one batch, of any kind, does not prevent others from using the store.
#[test]
fn a_batch_whose_files_cannot_be_read_is_refused() {
    let store = Store::new();
    let number = submit(&store, "unreadable", false);
    for table in tables(&store, number) {
        // Even root cannot read these files.
        fs::remove_file(&table).unwrap();
        std::os::unix::fs::symlink(&table, &table).unwrap();
    }
    store.with_mount(|fs| assert!(!has(fs, "unreadable")));
    assert!(matches!(summary(&store, number).state, SummaryState::Refused { .. }));
    StoreAccess::open(&store.path(), WAIT).unwrap().abort(number).unwrap();
    let number = submit(&store, "unreadable", false);
    for table in tables(&store, number) {
        fs::remove_file(&table).unwrap();
        fs::create_dir(&table).unwrap();
    }
    store.with_mount(|fs| assert!(!has(fs, "unreadable")));
    assert!(matches!(summary(&store, number).state, SummaryState::Refused { .. }));
}

#[test]
fn an_atomic_batch_with_conflicts_is_refused_and_can_be_committed_later() {
    let store = Store::new();
    let access = StoreAccess::open(&store.path(), WAIT).unwrap();
    let batch = OpenBatch::begin(access, b"", "job", true).unwrap();
    put(&batch.file_system(), "name", b"of the batch");
    store.with_mount(|fs| put(fs, "name", b"of others"));
    batch.commit_later(WAIT).unwrap();
    let number = batch.record().number;
    drop(batch);
    store.with_mount(|fs| assert_eq!(bytes(&*open(fs, "name")), b"of others"));
    let SummaryState::Refused { reason } = summary(&store, number).state else { panic!("not refused") };
    assert!(reason.contains("1 conflicts"), "{reason}");
    store.with_mount(|fs| {
        quell_vfs::Writable::remove(fs, &Context::OWN, fs.root(), b"name").unwrap();
    });
    StoreAccess::open(&store.path(), WAIT).unwrap().commit(number).unwrap();
    store.with_mount(|fs| assert_eq!(bytes(&*open(fs, "name")), b"of the batch"));
}

#[test]
fn a_batch_whose_process_has_not_written_its_changes_is_not_submitted() {
    let store = Store::new();
    let batch = store.begin();
    put(&batch.file_system(), "file", b"bytes");
    let number = batch.record().number;
    let access = StoreAccess::open(&store.path(), WAIT).unwrap();
    assert_eq!(access.submit(number).unwrap_err().kind, ErrorKind::Busy, "a process uses it");
    drop(batch);
    assert_eq!(access.submit(number).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(access.batches().unwrap()[0].state, SummaryState::Open);
}

#[test]
fn a_server_commits_submitted_batches_before_it_answers_requests_about_names() {
    let store = Store::new();
    let batch = store.begin();
    put(&batch.file_system(), "file", b"bytes");
    let number = batch.record().number;
    batch.prepare().unwrap();
    let served = ServedStore::new(BatchStore::open(&store.path(), WAIT).unwrap());
    let call = |request: &Request| -> Reply {
        decode(&served.execute(&Requester::Owner, &encode(request), 1 << 20)).unwrap()
    };
    let lookup = Request::Lookup { dir: quell_batch_service::ROOT, name: Bytes(b"file".to_vec()) };
    assert!(matches!(call(&lookup), Reply::Found(None)));
    let Reply::Batch(submitted) = call(&Request::Submit { batch: number }) else { panic!("not submitted") };
    assert_eq!(submitted.state, SummaryState::Submitted);
    let Reply::Batches { batches, .. } = call(&Request::Batches { after: 0 }) else { panic!("a list") };
    assert_eq!(batches[0].state, SummaryState::Submitted, "a list of batches verifies nothing");
    assert!(matches!(call(&lookup), Reply::Found(Some(_))));
    let Reply::Batches { batches, .. } = call(&Request::Batches { after: 0 }) else { panic!("a list") };
    assert_eq!(batches[0].state, SummaryState::Committed { entries: 1, conflicts: 0 });
    let names: std::sync::Arc<dyn NameSpace> = served.store().primary().name_space();
    assert!(names.lookup(quell_batch_service::ROOT, b"file").unwrap().is_some());
}
