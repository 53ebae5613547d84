//! Random transactions on a store and on a model that is simple enough to be obviously right: a map
//! of byte vectors for each state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_blob_service::{BlobStat, Clock, Extents, MemoryExtents, OpenStore, Options, Snapshot};
use quell_kv::{KeyRange, KeyValue, MemoryStore};
use quell_testkit::Random;
use quell_vfs::ErrorKind;
use quell_wire::blob::{
    CellType, Operation, OperationResult, Overflow, Part, Read, Refusal, Transaction, Transform,
    TransformKind, Version,
};

/// A clock that advances with each call.
struct Counter(AtomicU64);

impl Clock for Counter {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// There are few names, so that transactions conflict.
const NAMES: [&[u8]; 5] = [b"a", b"ab", b"b", b"log", b"\xff\x00"];
/// The largest size of a blob in the model.
const SIZE_MAX: usize = 300_000;

struct TestStore {
    tables: Arc<dyn KeyValue>,
    extents: Arc<MemoryExtents>,
    store: OpenStore,
    /// The states that snapshots may have.
    states: BTreeMap<Version, State>,
    last_commit: Version,
    random: Random,
}

/// A transaction that has begun.
struct Open {
    snapshot: Snapshot,
    /// The state that the transaction sees.
    own: State,
    reads: Vec<Read>,
    operations: Vec<Operation>,
}

fn open(tables: &Arc<dyn KeyValue>, extents: &Arc<MemoryExtents>) -> OpenStore {
    let clock = Arc::new(Counter(AtomicU64::new(1)));
    OpenStore::open(tables.clone(), extents.clone(), clock, Options::default()).expect("opened")
}

/// Applies an operation to a state. `None` if it must fail.
fn apply(state: &mut State, operation: &Operation) -> Option<OperationResult> {
    let name = operation.name().to_vec();
    match operation {
        Operation::Create { may_exist, .. } => {
            if state.contains_key(&name) {
                return may_exist.then_some(OperationResult::Done);
            }
            state.insert(name, Vec::new());
            Some(OperationResult::Done)
        }
        Operation::Delete { .. } => state.remove(&name).map(|_| OperationResult::Done),
        Operation::Rename { to, .. } => {
            if state.contains_key(to) {
                return None;
            }
            let blob = state.remove(&name)?;
            state.insert(to.clone(), blob);
            Some(OperationResult::Done)
        }
        // The attributes of files are not part of the model.
        Operation::SetAttributes { .. } => state.contains_key(&name).then_some(OperationResult::Done),
        Operation::Write { offset, data, .. } => {
            write(state.get_mut(&name)?, *offset as usize, data);
            Some(OperationResult::Done)
        }
        Operation::Append { data, .. } => {
            let blob = state.get_mut(&name)?;
            let offset = blob.len() as u64;
            blob.extend_from_slice(data);
            Some(OperationResult::Appended(offset))
        }
        Operation::Resize { size_bytes, .. } => {
            state.get_mut(&name)?.resize(*size_bytes as usize, 0);
            Some(OperationResult::Done)
        }
        Operation::Transform { offset, transform, .. } => {
            let blob = state.get_mut(&name)?;
            let start = *offset as usize;
            if blob.len() < start + 8 {
                blob.resize(start + 8, 0);
            }
            let before = u64::from_le_bytes(blob[start..start + 8].try_into().expect("8 bytes"));
            let operand = u64::from_le_bytes(transform.operands[..].try_into().expect("8 bytes"));
            blob[start..start + 8].copy_from_slice(&before.wrapping_add(operand).to_le_bytes());
            Some(match transform.returns_before {
                true => OperationResult::Before(before.to_le_bytes().to_vec()),
                false => OperationResult::Done,
            })
        }
    }
}

fn write(blob: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if blob.len() < offset + data.len() {
        blob.resize(offset + data.len(), 0);
    }
    blob[offset..offset + data.len()].copy_from_slice(data);
}

impl TestStore {
    fn new(seed: u64) -> TestStore {
        let tables: Arc<dyn KeyValue> = Arc::new(MemoryStore::new());
        let extents = Arc::new(MemoryExtents::default());
        let store = open(&tables, &extents);
        let states = BTreeMap::from([(store.version(), State::new())]);
        TestStore { tables, extents, store, states, last_commit: Version(0), random: Random::new(seed) }
    }

    fn latest(&self) -> &State {
        self.states.last_key_value().expect("a state").1
    }

    fn random_name(&mut self) -> Vec<u8> {
        self.random.pick(&NAMES).to_vec()
    }

    /// Returns a length that is mostly small, and sometimes large enough for an extent.
    fn random_length(&mut self) -> usize {
        match self.random.below(6) {
            0 => 0,
            1..=3 => 1 + self.random.below(1500),
            4 => 8,
            _ => 32_768 + self.random.below(40_000),
        }
    }

    fn random_operation(&mut self, own: &State) -> Operation {
        let name = self.random_name();
        let size = own.get(&name).map_or(0, Vec::len);
        let offset = self.random.below((size + 2000).min(SIZE_MAX)) as u64;
        match self.random.below(14) {
            0 => Operation::Delete { name },
            12 => Operation::Rename { name, to: self.random_name() },
            13 => Operation::SetAttributes { name, file: None, modified_ns: Some(offset) },
            1 | 2 => Operation::Create { name, may_exist: self.random.one_in(2) },
            3 => {
                let size_bytes = match self.random.below(3) {
                    0 => 0,
                    1 => offset,
                    _ => self.random.below(SIZE_MAX) as u64,
                };
                Operation::Resize { name, size_bytes }
            }
            4 | 5 if size < SIZE_MAX => {
                let length = self.random_length();
                Operation::Append { name, data: self.random.bytes(length) }
            }
            6 | 7 => {
                let operand = (self.random.below(1000) as u64).to_le_bytes();
                let transform = Transform::one(TransformKind::Add, CellType::U64, Overflow::Wrap, &operand);
                let returns_before = self.random.one_in(2);
                Operation::Transform { name, offset, transform: Transform { returns_before, ..transform } }
            }
            _ => {
                let length = self.random_length();
                Operation::Write { name, offset, data: self.random.bytes(length) }
            }
        }
    }

    fn begin(&mut self) -> Open {
        let snapshot = self.store.snapshot();
        // Refused transactions and the removal of truncated content also create versions.
        let own = self.latest().clone();
        assert!(snapshot.version() >= *self.states.last_key_value().expect("a state").0);
        self.states.insert(snapshot.version(), own.clone());
        Open { snapshot, own, reads: Vec::new(), operations: Vec::new() }
    }

    /// Reads through the transaction, and compares with the model.
    fn read(&mut self, open: &mut Open) {
        let mut draft = open.snapshot.draft();
        for operation in &open.operations {
            draft.apply(operation.clone()).expect("it was applied before");
        }
        let name = self.random_name();
        let blob = open.own.get(&name);
        let found = draft.stat(&name).expect("read").map(|stat: BlobStat| stat.size_bytes);
        assert_eq!(found, blob.map(|blob| blob.len() as u64));
        let Some(blob) = blob else {
            open.reads.push(Read { name, part: Part::Existence });
            return;
        };
        let start = self.random.below(blob.len() + 600);
        let mut into = vec![1; self.random_length()];
        let length = draft.read(&name, start as u64, &mut into).expect("read");
        let end = (start + into.len()).min(blob.len());
        assert_eq!(
            &into[..length],
            blob.get(start..end).unwrap_or(&[]),
            "{} from {start}",
            name.escape_ascii()
        );
        let part = Part::Range { start: start as u64, end: (start + into.len()) as u64 };
        open.reads.push(Read { name: name.clone(), part });
        if !open.operations.is_empty() {
            open.reads.push(Read { name, part: Part::Size });
        }
    }

    /// Commits, and compares the result and the new state with the model.
    fn commit(&mut self, open: Open) {
        let base = self.states.get(&open.snapshot.version()).expect("a known state").clone();
        let transaction = Transaction {
            snapshot: Some(open.snapshot.version()),
            reads: open.reads.clone(),
            operations: open.operations.clone(),
            ..Transaction::default()
        };
        let latest = self.latest().clone();
        let reads_are_equal = open.reads.iter().all(|read| has_same(&base, &latest, read));
        let mut expected = latest.clone();
        let results: Option<Vec<_>> =
            open.operations.iter().map(|operation| apply(&mut expected, operation)).collect();
        match self.store.commit(transaction) {
            Ok(committed) => {
                assert!(reads_are_equal, "a transaction was committed whose reads have changed");
                assert_eq!(Some(committed.results), results);
                assert!(committed.version > *self.states.last_key_value().expect("a state").0);
                self.last_commit = committed.version;
                self.states.insert(committed.version, expected);
            }
            Err(Refusal::Conflict(conflicts)) => {
                assert!(self.last_commit > open.snapshot.version(), "a conflict without another commit");
                assert!(conflicts.iter().all(|conflict| open.reads.contains(&conflict.read)));
            }
            Err(Refusal::Failed { operation: Some(position), .. }) => {
                assert_eq!(results, None);
                let mut state = latest;
                let operation = |index: usize| &open.operations[index];
                assert!((0..position as usize).all(|index| apply(&mut state, operation(index)).is_some()));
                assert!(apply(&mut state, operation(position as usize)).is_none());
            }
            Err(refusal) => panic!("{refusal:?}"),
        }
    }

    fn check_everything(&mut self) {
        let snapshot = self.store.snapshot();
        let mut names = Vec::new();
        snapshot
            .list(b"", b"", &mut |name, stat| {
                names.push((name.to_vec(), stat.size_bytes));
                true
            })
            .expect("listed");
        let expected: Vec<_> =
            self.latest().iter().map(|(name, blob)| (name.clone(), blob.len() as u64)).collect();
        assert_eq!(names, expected);
        for (name, blob) in self.latest() {
            let mut into = vec![1; blob.len() + 10];
            assert_eq!(snapshot.read(name, 0, &mut into).expect("read"), blob.len());
            assert!(into[..blob.len()] == blob[..], "{} differs", name.escape_ascii());
        }
    }

    fn restart(&mut self) {
        self.store = open(&self.tables, &self.extents);
        let latest = self.latest().clone();
        self.states = BTreeMap::from([(self.store.version(), latest)]);
    }
}

/// Returns whether a part has the same content in two states.
fn has_same(a: &State, b: &State, read: &Read) -> bool {
    let (a, b) = (a.get(&read.name), b.get(&read.name));
    match read.part {
        Part::Existence | Part::NamesWithPrefix => a.is_some() == b.is_some(),
        Part::Size => a.map(Vec::len) == b.map(Vec::len),
        Part::Range { start, end } => {
            let part = |blob: &Vec<u8>| {
                let end = (end as usize).min(blob.len());
                blob.get(start as usize..end).map(<[u8]>::to_vec).unwrap_or_default()
            };
            a.map(part) == b.map(part)
        }
    }
}

fn run(seed: u64, steps: usize) {
    let mut test_store = TestStore::new(seed);
    let mut open: Vec<Open> = Vec::new();
    for _ in 0..steps {
        match test_store.random.below(20) {
            0..=4 if open.len() < 6 => {
                let begun = test_store.begin();
                open.push(begun);
            }
            5..=9 if !open.is_empty() => {
                let index = test_store.random.below(open.len());
                test_store.read(&mut open[index]);
            }
            10..=14 if !open.is_empty() => {
                let index = test_store.random.below(open.len());
                let operation = test_store.random_operation(&open[index].own);
                let mut own = open[index].own.clone();
                if apply(&mut own, &operation).is_some() {
                    open[index].own = own;
                    open[index].operations.push(operation);
                }
            }
            15 | 16 if !open.is_empty() => {
                let index = test_store.random.below(open.len());
                let transaction = open.swap_remove(index);
                test_store.commit(transaction);
            }
            17 => test_store.store.collect().expect("collected"),
            18 if test_store.random.one_in(8) => {
                open.clear();
                test_store.restart();
            }
            19 => test_store.check_everything(),
            _ => {
                // This transaction has read nothing.
                let own = test_store.latest().clone();
                let operation = test_store.random_operation(&own);
                let mut begun = test_store.begin();
                begun.operations.push(operation);
                test_store.commit(begun);
            }
        }
    }
    open.clear();
    test_store.check_everything();
    let names: Vec<Vec<u8>> = test_store.latest().keys().cloned().collect();
    let operations = names.into_iter().map(|name| Operation::Delete { name }).collect();
    test_store.store.commit(Transaction { operations, ..Transaction::default() }).expect("committed");
    test_store.store.collect().expect("collected");
    test_store.store.collect().expect("collected");
    let mut left = Vec::new();
    let visit = &mut |key: &[u8], _: &[u8]| {
        left.push(key.escape_ascii().to_string());
        true
    };
    test_store.tables.scan(&KeyRange::all(), visit).expect("scanned");
    assert_eq!(left, ["Mepoch"], "seed {seed}: entries remain of a store without blobs");
    test_store
        .extents
        .list(quell_blob_service::ExtentId(0), &mut |id| panic!("{id:?} remains"))
        .expect("listed");
    assert_eq!(test_store.store.history_bytes(), 0);
}

#[test]
fn random_transactions_agree_with_the_model() {
    for seed in 0..seeds() {
        run(seed, 400);
    }
}

#[test]
fn a_read_of_a_missing_blob_fails() {
    let test_store = TestStore::new(1);
    let snapshot = test_store.store.snapshot();
    assert_eq!(snapshot.read(b"a", 0, &mut [0]).expect_err("missing").kind, ErrorKind::NotFound);
    assert_eq!(snapshot.stat(b"").expect_err("empty").kind, ErrorKind::InvalidInput);
    assert_eq!(snapshot.stat(&[b'x'; 1025]).expect_err("long").kind, ErrorKind::NameTooLong);
}

/// Returns the number of histories: the value of `QUELL_HISTORIES`, or 60.
fn seeds() -> u64 {
    std::env::var("QUELL_HISTORIES").map_or(60, |number| number.parse().expect("QUELL_HISTORIES is a number"))
}
