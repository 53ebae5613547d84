//! Tests of commits that fail, full disks, and invalid requests.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use quell_blob_service::{Clock, CommitResult, ExtentId, Extents, MemoryExtents, OpenStore, Options};
use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore, Value};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{CellType, Operation, Overflow, Refusal, Transaction, Transform, TransformKind};

struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        0
    }
}

/// Tables whose next commits fail.
#[derive(Default)]
struct FailingTables {
    entries: MemoryStore,
    /// The number of commits that fail.
    failures: AtomicUsize,
    kind: Mutex<Option<ErrorKind>>,
    /// Whether the failed write of a commit has stopped the tables.
    has_stopped: AtomicBool,
}

impl FailingTables {
    fn fail(&self, commits: usize, kind: ErrorKind) {
        *self.kind.lock().unwrap() = Some(kind);
        self.failures.store(commits, Ordering::SeqCst);
    }
}

impl KeyValue for FailingTables {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.entries.get(key)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        let failures = self.failures.load(Ordering::SeqCst);
        if failures == 0 || batch.is_empty() {
            return self.entries.commit(batch);
        }
        self.failures.store(failures - 1, Ordering::SeqCst);
        assert_ne!(failures, 1_000, "the same commit is repeated again and again");
        Err(Error::new(self.kind.lock().unwrap().expect("a kind"), "commit", "tables"))
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.entries.scan(range, visit)
    }

    fn sync(&self) -> Result<()> {
        match self.has_stopped.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::NoSpace, "sync", "tables")),
            false => Ok(()),
        }
    }

    fn size_bytes(&self) -> Result<u64> {
        self.entries.size_bytes()
    }
}

struct TestStore {
    tables: Arc<FailingTables>,
    extents: Arc<MemoryExtents>,
    store: OpenStore,
}

fn test_store(options: Options) -> TestStore {
    let tables = Arc::new(FailingTables::default());
    let extents = Arc::new(MemoryExtents::default());
    let store = OpenStore::open(tables.clone(), extents.clone(), Arc::new(NoClock), options).expect("opened");
    TestStore { tables, extents, store }
}

fn create(name: &[u8], may_exist: bool) -> Operation {
    Operation::Create { name: name.to_vec(), may_exist }
}

fn write(name: &[u8], offset: u64, data: Vec<u8>) -> Operation {
    Operation::Write { name: name.to_vec(), offset, data }
}

fn transaction(operations: Vec<Operation>) -> Transaction {
    Transaction { operations, ..Transaction::default() }
}

fn kind(result: &CommitResult) -> Option<ErrorKind> {
    match result {
        Err(Refusal::Failed { failure, .. }) => Some(failure.kind()),
        _ => None,
    }
}

impl TestStore {
    fn commit(&self, operations: Vec<Operation>) -> CommitResult {
        self.store.commit(transaction(operations))
    }

    /// Commits transactions in one group, and returns their results.
    fn commit_group(&self, transactions: Vec<Vec<Operation>>) -> Vec<CommitResult> {
        let results: Arc<Mutex<Vec<Option<CommitResult>>>> =
            Arc::new(Mutex::new(vec![None; transactions.len()]));
        for (index, operations) in transactions.into_iter().enumerate() {
            let results = results.clone();
            let done = move |result| results.lock().unwrap()[index] = Some(result);
            self.store.submit(transaction(operations), done);
        }
        self.store.commit_pending();
        let results = std::mem::take(&mut *results.lock().unwrap());
        results.into_iter().map(|result| result.expect("a result")).collect()
    }

    fn extents(&self) -> usize {
        let mut count = 0;
        self.extents.list(ExtentId(0), &mut |_| count += 1).expect("listed");
        count
    }

    /// Truncates the blob `cut` so that content after its end remains, which is removed before the
    /// blob is extended.
    fn cut(&self) {
        let data = |index: u64| write(b"cut", index * 16_384, vec![1; 16_384]);
        let mut operations = vec![create(b"cut", false)];
        operations.extend((0..256).map(data));
        self.commit(operations).expect("written");
        self.commit(vec![Operation::Resize { name: b"cut".to_vec(), size_bytes: 10 }]).expect("cut");
    }
}

#[test]
fn a_transaction_that_is_applied_again_after_a_full_disk_keeps_its_extents() {
    let test_store = test_store(Options::default());
    // Two commits fail: the group, and the first transaction alone. So the second transaction
    // creates the blob.
    test_store.tables.fail(2, ErrorKind::NoSpace);
    let transactions = [1, 2].map(|byte| vec![create(b"a", false), write(b"a", 0, vec![byte; 50_000])]);
    let results = test_store.commit_group(transactions.to_vec());
    assert_eq!(kind(&results[0]), Some(ErrorKind::NoSpace));
    results[1].as_ref().expect("committed");
    let mut bytes = vec![0; 50_000];
    assert_eq!(test_store.store.snapshot().read(b"a", 0, &mut bytes).expect("read"), bytes.len());
    assert_eq!(bytes, vec![2; 50_000]);
    assert_eq!(test_store.extents(), 1, "the extent of the first transaction needs space");
}

#[test]
fn a_commit_that_stops_the_tables_on_a_full_disk_is_not_reported_as_refused() {
    let test_store = test_store(Options::default());
    test_store.tables.has_stopped.store(true, Ordering::SeqCst);
    test_store.tables.fail(100, ErrorKind::NoSpace);
    // The write may have taken effect, so neither transaction of the group is known to have failed.
    let results = test_store.commit_group([1, 2].map(|byte| vec![create(&[byte], false)]).to_vec());
    for result in &results {
        assert_eq!(kind(result), Some(ErrorKind::Os(quell_vfs::errno::EIO)));
    }
    // A later commit writes nothing.
    assert_eq!(kind(&test_store.commit(vec![create(b"later", false)])), Some(ErrorKind::NoSpace));
}

#[test]
fn commits_to_a_full_disk_leave_neither_extents_nor_memory() {
    for kind_of_failure in [ErrorKind::NoSpace, ErrorKind::Os(quell_vfs::errno::EIO)] {
        let test_store = test_store(Options::default());
        test_store.commit(vec![create(b"a", false), write(b"a", 0, vec![1; 20_000])]).expect("written");
        test_store.tables.fail(100, kind_of_failure);
        let result =
            test_store.commit(vec![write(b"a", 0, vec![2; 20_000]), write(b"a", 0, vec![2; 50_000])]);
        assert_eq!(kind(&result), Some(kind_of_failure));
        let after_first = test_store.store.history_bytes();
        for _ in 0..50 {
            test_store.commit(vec![write(b"a", 0, vec![2; 20_000])]).expect_err("refused");
        }
        assert!(test_store.store.history_bytes() <= after_first, "{}", test_store.store.history_bytes());
        if kind_of_failure == ErrorKind::NoSpace {
            assert_eq!((test_store.extents(), after_first), (0, 0));
        }
        let mut bytes = vec![0; 20_000];
        test_store.store.snapshot().read(b"a", 0, &mut bytes).expect("read");
        assert_eq!(bytes, vec![1; 20_000]);
    }
}

#[test]
fn a_transaction_fails_if_the_content_before_it_cannot_be_removed() {
    for kind_of_failure in [ErrorKind::NoSpace, ErrorKind::Os(quell_vfs::errno::EIO)] {
        let test_store = test_store(Options::default());
        test_store.cut();
        test_store.tables.fail(2_000, kind_of_failure);
        let append = |data| Operation::Append { name: b"cut".to_vec(), data };
        let result = test_store.commit(vec![append(vec![2; 50_000])]);
        assert_eq!(kind(&result), Some(kind_of_failure));
        assert_eq!(test_store.extents(), 0);
        test_store.tables.fail(0, kind_of_failure);
        test_store.commit(vec![append(vec![2; 5])]).expect("committed");
        let mut bytes = [9; 20];
        assert_eq!(test_store.store.snapshot().read(b"cut", 0, &mut bytes).expect("read"), 15);
        assert_eq!(bytes[..15], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    }
}

#[test]
fn a_receiver_that_panics_does_not_stop_other_commits() {
    let test_store = test_store(Options::default());
    test_store
        .store
        .submit(transaction(vec![create(b"a", false)]), |_| panic!("expected: a fault of the caller"));
    let received = Arc::new(Mutex::new(None));
    let result = received.clone();
    test_store
        .store
        .submit(transaction(vec![create(b"b", false)]), move |r| *result.lock().unwrap() = Some(r));
    test_store.store.commit_pending();
    received.lock().unwrap().take().expect("received").expect("committed");
    test_store.commit(vec![create(b"c", false)]).expect("committed");
}

#[test]
fn a_short_transaction_cannot_need_much_memory() {
    let test_store = test_store(Options::default());
    test_store.commit(vec![create(b"a", false)]).expect("created");
    let one = Transform::one(TransformKind::Add, CellType::U8, Overflow::Wrap, &[1]);
    for (distance, returns_before) in [(0, true), (1 << 20, false)] {
        let add = |index: u64| {
            let transform = Transform { count: 1 << 20, returns_before, ..one.clone() };
            Operation::Transform { name: b"a".to_vec(), offset: index * distance, transform }
        };
        let operations: Vec<Operation> = (0..40).map(add).collect();
        match test_store.commit(operations.clone()) {
            // The later operations were not applied.
            Err(Refusal::Failed { operation: Some(position), failure }) => {
                assert_eq!(failure.kind(), ErrorKind::InvalidInput);
                assert!(position < 30, "{position}");
            }
            _ => panic!("the transaction is too large"),
        }
        if distance == 0 {
            continue;
        }
        let mut draft = test_store.store.snapshot().draft();
        let applied = operations.into_iter().take_while(|operation| draft.apply(operation.clone()).is_ok());
        assert!(applied.count() < 30);
    }
}

#[test]
fn a_transaction_extends_a_blob_that_was_cut_and_reads_it() {
    let test_store = test_store(Options::default());
    test_store.cut();
    let append = Operation::Append { name: b"cut".to_vec(), data: vec![2; 5] };
    let refused = test_store.store.snapshot().draft().apply(append.clone()).expect_err("content is left");
    assert!(refused.is_repeatable(), "{refused}");
    test_store.store.snapshot().draft().apply(append).expect("applied");
}

#[test]
fn a_snapshot_does_not_end_because_of_extents_that_it_does_not_need() {
    let options = Options { unused_extent_bytes_max: 1 << 20, ..Options::default() };
    let test_store = test_store(options);
    test_store.commit(vec![create(b"a", false)]).expect("created");
    let overwrite = |byte| test_store.commit(vec![write(b"a", 0, vec![byte; 200_000])]).expect("written");
    (0..10).for_each(|byte| _ = overwrite(byte));
    assert!(test_store.extents() < 10, "no snapshot needs them: {}", test_store.extents());
    let first = test_store.store.snapshot();
    let mut bytes = vec![0; 200_000];
    for byte in 10..14 {
        overwrite(byte);
        first.read(b"a", 0, &mut bytes).expect("800,000 bytes are kept for it");
        assert_eq!(bytes, vec![9; 200_000]);
    }
    let second = test_store.store.snapshot();
    (14..17).for_each(|byte| _ = overwrite(byte));
    let expired = first.read(b"a", 0, &mut bytes).expect_err("too much is kept for it");
    assert_eq!(expired.kind, ErrorKind::Stale);
    second.read(b"a", 0, &mut bytes).expect("600,000 bytes are kept for it");
    assert_eq!(bytes, vec![13; 200_000]);
}

/// Extents that disappear when they are read.
struct Disappearing(MemoryExtents, Mutex<Option<OpenStore>>);

impl Extents for Disappearing {
    fn write(&self, id: ExtentId, data: &[u8]) -> Result<()> {
        self.0.write(id, data)
    }

    fn read(&self, id: ExtentId, offset: u64, into: &mut [u8]) -> Result<()> {
        let store = self.1.lock().unwrap().take();
        if let Some(store) = store {
            for _ in 0..3 {
                store.commit(transaction(vec![write(b"a", 0, vec![2; 50_000])])).expect("written");
            }
            store.collect().expect("collected");
        }
        self.0.read(id, offset, into)
    }

    fn remove(&self, id: ExtentId) -> Result<()> {
        self.0.remove(id)
    }

    fn list(&self, first: ExtentId, visit: &mut dyn FnMut(ExtentId)) -> Result<()> {
        self.0.list(first, visit)
    }
}

#[test]
fn a_snapshot_that_expires_during_a_read_is_stale_and_not_damaged() {
    let extents = Arc::new(Disappearing(MemoryExtents::default(), Mutex::new(None)));
    let options = Options { unused_extent_bytes_max: 60_000, ..Options::default() };
    let tables = Arc::new(FailingTables::default());
    let store = OpenStore::open(tables, extents.clone(), Arc::new(NoClock), options).expect("opened");
    let first = vec![create(b"a", false), write(b"a", 0, vec![1; 50_000])];
    store.commit(transaction(first)).expect("written");
    let snapshot = store.snapshot();
    *extents.1.lock().unwrap() = Some(store.clone());
    let error = snapshot.read(b"a", 0, &mut [0; 100]).expect_err("expired");
    assert_eq!(error.kind, ErrorKind::Stale, "{error}");
}

/// A process that was replaced while it opened the store must not remove the extents of the process
/// that has replaced it, although its own tables do not contain them.
#[test]
fn an_opening_that_is_late_removes_no_extents_of_a_later_one() {
    let extents = Arc::new(MemoryExtents::default());
    let open = |tables: MemoryStore| {
        OpenStore::open(Arc::new(tables), extents.clone(), Arc::new(NoClock), Options::default())
            .expect("opened")
    };
    let tables = MemoryStore::new();
    drop(open(tables.clone()));
    let before = tables.clone();
    let later = open(tables);
    let data = vec![7; 100_000];
    let operations = vec![
        Operation::Create { name: b"large".to_vec(), may_exist: false },
        Operation::Append { name: b"large".to_vec(), data: data.clone() },
    ];
    later.commit(Transaction { operations, ..Transaction::default() }).expect("committed");
    let late = open(before);
    let read = || {
        let mut found = vec![0; data.len()];
        later.snapshot().read(b"large", 0, &mut found).expect("read");
        assert!(found == data);
    };
    read();
    late.remove_orphans().expect("listed");
    read();
}

#[test]
fn extents_of_earlier_processes_that_were_never_committed_are_removed() {
    let extents = Arc::new(MemoryExtents::default());
    let epoch = |epoch: u64, number: u64| ExtentId((epoch << 44) + number);
    let count = || {
        let mut count = 0;
        extents.list(ExtentId(0), &mut |_| count += 1).expect("listed");
        count
    };
    let tables = Arc::new(MemoryStore::new());
    let open = || {
        OpenStore::open(tables.clone(), extents.clone(), Arc::new(NoClock), Options::default())
            .expect("opened")
    };
    let operations = vec![
        Operation::Create { name: b"large".to_vec(), may_exist: false },
        Operation::Append { name: b"large".to_vec(), data: vec![7; 100_000] },
    ];
    open().commit(Transaction { operations, ..Transaction::default() }).expect("committed");
    let second = open();
    let used = count();
    // A late write of the first process, and a write of the second process.
    extents.write(epoch(1, 1_000_000), b"late").expect("written");
    extents.write(epoch(2, 1_000_000), b"own").expect("written");
    assert_eq!(second.remove_orphans().expect("listed"), 1);
    assert_eq!(count(), used + 1);
}
