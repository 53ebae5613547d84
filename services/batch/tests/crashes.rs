//! Client, verification and primary server end at any call of the storage, with or without a power
//! failure, in cases that a seed determines. After a power failure, files and names that were not
//! synchronized are lost, cut off or damaged, each by itself, and so are the last changes of the
//! key-value store. Then the store is whole, nothing that was acknowledged is lost, and each batch
//! is committed or not.

mod stores;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use quell_batch_service::{
    BatchCaller, BatchRecord, BatchState, Certificate, Image, MemoryEntries, Names, NewBatch, NewNode,
    NewPart, Primary, ROOT, TableFiles, check_tables,
};
use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore, Value};
use quell_testkit::Random;
use quell_vfs::{Error, ErrorKind, Result};

use stores::operations::{Operation, operation};
use stores::{FILE, NEW, NOW, UnsyncedFiles, proof_form, tables, tree};

/// The number of cases, or that of the variable `QUELL_HISTORIES`.
fn cases() -> u64 {
    std::env::var("QUELL_HISTORIES").map_or(300, |text| text.parse().expect("a number"))
}

/// The calls of the storage until the crash, which all parts of a case share.
#[derive(Debug, Clone)]
struct Crash(Arc<Mutex<u64>>);

impl Crash {
    fn after(calls: u64) -> Crash {
        Crash(Arc::new(Mutex::new(calls)))
    }

    /// Counts a call. From the crash on, all calls fail.
    fn count(&self) -> Result<()> {
        let mut left = self.0.lock().unwrap();
        match left.checked_sub(1) {
            Some(rest) => {
                *left = rest;
                Ok(())
            }
            None => Err(Error::new(ErrorKind::Os(5), "crash", "")),
        }
    }
}

/// The tables in a directory, and which of them would survive a power failure.
struct Files {
    path: PathBuf,
    dir: UnsyncedFiles,
    crash: Crash,
    unsynced_names: Mutex<BTreeSet<u64>>,
    unsynced_contents: Mutex<BTreeSet<u64>>,
}

impl Files {
    fn new(path: &Path, crash: &Crash) -> Arc<Files> {
        Arc::new(Files {
            path: path.to_owned(),
            dir: tables(path),
            crash: crash.clone(),
            unsynced_names: Mutex::default(),
            unsynced_contents: Mutex::default(),
        })
    }

    fn fail_power(&self, random: &mut Random) {
        let names = self.unsynced_names.lock().unwrap();
        let contents = self.unsynced_contents.lock().unwrap();
        for number in names.union(&contents) {
            let path = self.path.join(format!("{number:016x}.table"));
            let Ok(mut bytes) = std::fs::read(&path) else { continue };
            if names.contains(number) && random.one_in(2) {
                std::fs::remove_file(&path).unwrap();
                continue;
            }
            if contents.contains(number) && !bytes.is_empty() {
                match random.below(3) {
                    0 => bytes.truncate(random.below(bytes.len())),
                    1 => {
                        // A block that was not written before a later one.
                        let start = random.below(bytes.len());
                        let end = bytes.len().min(start + 512);
                        bytes[start..end].fill(0);
                    }
                    _ => {}
                }
                std::fs::write(&path, bytes).unwrap();
            }
        }
    }
}

impl TableFiles for Files {
    fn create(&self, number: u64) -> Result<File> {
        self.crash.count()?;
        self.unsynced_names.lock().unwrap().insert(number);
        self.unsynced_contents.lock().unwrap().insert(number);
        self.dir.create(number)
    }

    fn sync_content(&self, number: u64, file: &File) -> Result<()> {
        self.crash.count()?;
        assert!(file.metadata().is_ok());
        self.unsynced_contents.lock().unwrap().remove(&number);
        Ok(())
    }

    fn open(&self, number: u64) -> Result<File> {
        self.dir.open(number)
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.crash.count()?;
        self.unsynced_names.lock().unwrap().remove(&number);
        self.unsynced_contents.lock().unwrap().remove(&number);
        self.dir.remove(number)
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.dir.list()
    }

    fn sync(&self) -> Result<()> {
        self.crash.count()?;
        self.unsynced_names.lock().unwrap().clear();
        Ok(())
    }

    fn put_copy(&self, bytes: &[u8]) -> Result<()> {
        self.crash.count()?;
        self.dir.put_copy(bytes)
    }

    fn copy(&self) -> Result<Option<Vec<u8>>> {
        self.dir.copy()
    }
}

/// A key-value store, and its states since it was synchronized.
struct Keys {
    current: MemoryStore,
    crash: Crash,
    states: Mutex<Vec<MemoryStore>>,
}

impl Keys {
    fn new(state: MemoryStore, crash: &Crash) -> Arc<Keys> {
        let states = Mutex::new(vec![state.clone()]);
        Arc::new(Keys { current: state, crash: crash.clone(), states })
    }

    /// Returns the state after the crash: after a power failure, any since the last
    /// synchronization.
    fn after(&self, random: Option<&mut Random>) -> MemoryStore {
        let states = self.states.lock().unwrap();
        match random {
            Some(random) => random.pick(&states).clone(),
            None => self.current.clone(),
        }
    }
}

impl KeyValue for Keys {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.current.get(key)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.crash.count()?;
        self.current.commit(batch)?;
        self.states.lock().unwrap().push(self.current.clone());
        Ok(())
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.current.scan(range, visit)
    }

    fn sync(&self) -> Result<()> {
        self.crash.count()?;
        let mut states = self.states.lock().unwrap();
        let last = states.pop().expect("there is a state");
        *states = vec![last];
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64> {
        self.current.size_bytes()
    }
}

type Model = MemoryEntries;

/// Returns the result of operations in the model.
fn after(model: &Model, operations: &[Operation]) -> Model {
    let names = RwLock::new(Names(model.clone()));
    for operation in operations {
        let _ = operation.run(&names);
    }
    names.into_inner().unwrap().0
}

fn tree_of(model: &Model) -> Vec<String> {
    tree(&RwLock::new(Names(model.clone())))
}

/// A batch that was not acknowledged before the crash.
struct Pending {
    number: u64,
    /// The name space with its changes.
    model: Model,
    /// The number, the certificate and the tables of the batch, or of each part. `None` before all
    /// of them are complete.
    certified: Option<Certified>,
    /// The primary server has acknowledged that it is submitted.
    is_submitted: bool,
    files: Vec<Arc<Files>>,
}

type Certified = Vec<(u64, Certificate, Arc<Files>)>;

/// Commits a batch with its certificate or those of its parts.
fn commit(primary: &Primary, batch: u64, certified: &Certified) -> Result<BatchRecord> {
    primary.commit_with(&primary.lock_commit(batch), &|number, visit| {
        let found = certified.iter().find(|(of, ..)| *of == number);
        let (_, certificate, files) = found.expect("a certificate of this number");
        visit(certificate, &**files)
    })
}

/// A store in a temporary directory, which one process after the other uses.
struct Case {
    name: String,
    directory: tempfile::TempDir,
    state: MemoryStore,
    model: Model,
    random: Random,
    /// The number of batches that were submitted before a crash and committed after it.
    submitted: u64,
    /// The number of batches of several parts that were ended after a crash.
    in_parts: u64,
}

/// The end of a process.
struct End {
    /// The states that the name space may have: that after the last durable change, and all later
    /// ones.
    permitted: Vec<Model>,
    pending: Option<Pending>,
}

impl Case {
    fn new(seed: u64) -> Case {
        let state = MemoryStore::new();
        Image::create(&state, 7, NEW, NOW).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let model = MemoryEntries::new(NEW, NOW).0;
        let (name, random) = (format!("seed {seed}"), Random::new(seed));
        Case { name, directory, state, model, random, submitted: 0, in_parts: 0 }
    }

    fn files(&self, name: &str, crash: &Crash) -> Arc<Files> {
        Files::new(&self.directory.path().join(name), crash)
    }

    /// Runs a process until it crashes or ends, and leaves the storage as it is afterwards.
    fn run(&mut self) -> End {
        let crash = Crash::after(self.random.below(120) as u64);
        let keys = Keys::new(self.state.clone(), &crash);
        let image = self.files("image", &crash);
        let mut end = End { permitted: vec![self.model.clone()], pending: None };
        let primary = Primary::open(keys.clone(), image.clone()).unwrap();
        for _ in 0..12 {
            let is_alive = match self.random.below(8) {
                0..=3 => self.synchronous(&primary, &mut end),
                4 => primary.name_space().sync().map(|()| end.permitted = vec![self.model.clone()]),
                5 => self.parts(&primary, &crash, &mut end),
                _ => self.batch(&primary, &crash, &mut end),
            };
            if let Err(error) = is_alive {
                assert_eq!(error.kind, ErrorKind::Os(5), "{}: {error}", self.name);
                break;
            }
        }
        drop(primary);
        let is_power_failure = self.random.one_in(2);
        if is_power_failure {
            image.fail_power(&mut self.random);
            if let Some(pending) = &end.pending {
                pending.files.iter().for_each(|files| files.fail_power(&mut self.random));
            }
        }
        self.state = keys.after(is_power_failure.then_some(&mut self.random));
        end
    }

    fn synchronous(&mut self, primary: &Primary, end: &mut End) -> Result<()> {
        let operation = operation(&mut self.random);
        let next = after(&self.model, std::slice::from_ref(&operation));
        let result = operation.run(&*primary.name_space());
        end.permitted.push(next.clone());
        match result {
            Err(error) if error.kind == ErrorKind::Os(5) => return Err(error),
            // An operation may be refused.
            _ => self.model = next,
        }
        Ok(())
    }

    fn batch(&mut self, primary: &Primary, crash: &Crash, end: &mut End) -> Result<()> {
        let caller = BatchCaller { uid: FILE.uid, gid: FILE.gid, groups: Vec::new() };
        let new = NewBatch { name: "job".into(), caller, subtree: ROOT, is_atomic: false };
        let record = primary.begin(new)?;
        end.permitted = vec![self.model.clone()];
        let files = self.files(&format!("batch-{}", record.number), crash);
        let operations: Vec<Operation> =
            (0..self.random.below(40)).map(|_| operation(&mut self.random)).collect();
        let model = after(&self.model, &operations);
        let pending = end.pending.insert(Pending {
            number: record.number,
            model: model.clone(),
            certified: None,
            is_submitted: false,
            files: vec![files.clone()],
        });
        let memory_bytes = if self.random.one_in(2) { 2000 } else { 1 << 20 };
        let names = RwLock::new(primary.private(&record, files.clone(), memory_bytes)?);
        for operation in &operations {
            match operation.run(&names) {
                Err(error) if error.kind == ErrorKind::Os(5) => return Err(error),
                _ => {}
            }
        }
        let submitted =
            names.read().unwrap().0.submit(primary.store_number(), &record, &*files, proof_form(), 0);
        pending.certified = Some(vec![(record.number, submitted?, files)]);
        self.end_batch(primary, end)
    }

    /// Begins a batch of several parts, each of which has names of its own and a directory that the
    /// others create as well.
    fn parts(&mut self, primary: &Primary, crash: &Crash, end: &mut End) -> Result<()> {
        let caller = BatchCaller { uid: FILE.uid, gid: FILE.gid, groups: Vec::new() };
        let new = NewBatch { name: "job".into(), caller: caller.clone(), subtree: ROOT, is_atomic: true };
        let batch = primary.begin_for_parts(new)?.number;
        end.permitted = vec![self.model.clone()];
        let model = self.model.clone();
        let empty = Pending { number: batch, model, certified: None, is_submitted: false, files: Vec::new() };
        let pending = end.pending.insert(empty);
        let mut certified = Vec::new();
        for part in 0..1 + self.random.below(3) {
            let new = NewPart { batch, name: "part".into(), caller: caller.clone() };
            let record = primary.join(new)?;
            let files = self.files(&format!("batch-{}", record.number), crash);
            pending.files.push(files.clone());
            let mut operations = vec![
                Operation::Create(format!("part-{part}"), NewNode::Dir),
                Operation::Create("shared".into(), NewNode::Dir),
                Operation::Create(format!("shared/{batch}-{part}"), NewNode::File),
            ];
            let count = self.random.below(20);
            operations.extend((0..count).map(|_| operation(&mut self.random).below(&format!("part-{part}"))));
            pending.model = after(&pending.model, &operations);
            let names = RwLock::new(primary.private(&record, files.clone(), 2000)?);
            for operation in &operations {
                match operation.run(&names) {
                    Err(error) if error.kind == ErrorKind::Os(5) => return Err(error),
                    _ => {}
                }
            }
            let submitted =
                names.read().unwrap().0.submit(primary.store_number(), &record, &*files, proof_form(), 0);
            certified.push((record.number, submitted?, files));
        }
        pending.certified = Some(certified);
        self.end_batch(primary, end)
    }

    /// Submits the pending batch in some cases, and commits it.
    fn end_batch(&mut self, primary: &Primary, end: &mut End) -> Result<()> {
        let pending = end.pending.as_mut().expect("a batch is pending");
        let (number, model) = (pending.number, pending.model.clone());
        if self.random.one_in(2) {
            let submitted = primary.submit(number).inspect_err(|_| end.permitted.push(model.clone()))?;
            assert!(matches!(submitted.state, BatchState::Submitted { order: 1 }));
            pending.is_submitted = true;
        }
        let committed = commit(primary, number, pending.certified.as_ref().expect("it is complete"));
        if committed.is_err() {
            end.permitted.push(model);
            return committed.map(drop);
        }
        end.pending = None;
        end.permitted = vec![model.clone()];
        self.model = model;
        Ok(())
    }

    /// Opens the store after a crash, checks it, and ends the batch that was being committed.
    /// Returns whether it was committed before or after the crash, if there was one.
    fn recover(&mut self, end: End) -> Option<bool> {
        let crash = Crash::after(u64::MAX);
        let keys = Keys::new(self.state.clone(), &crash);
        let image = self.files("image", &crash);
        let name = &self.name;
        self.check_whole(&keys, &image);
        let primary = Primary::open(keys.clone(), image.clone()).unwrap();
        let master = primary.name_space();
        let found = tree(&*master);
        let known = end.permitted.iter().rev().find(|model| tree_of(model) == found);
        self.model =
            known.unwrap_or_else(|| panic!("{name}: something is lost or in part: {found:#?}")).clone();
        let (mut committed, mut submitted, mut in_parts) = (None, 0, 0);
        for record in primary.batches().unwrap() {
            let pending = end.pending.as_ref().filter(|pending| pending.number == record.number);
            in_parts += u64::from(record.has_parts() && pending.is_some());
            match (record.state, pending) {
                (BatchState::Committed { .. }, Some(pending)) => {
                    assert_eq!(found, tree_of(&pending.model), "{name}");
                    committed = Some(true);
                }
                (
                    state @ (BatchState::Open | BatchState::Submitted { .. }),
                    Some(Pending { certified: Some(certified), model, is_submitted, .. }),
                ) => {
                    let is_open = state == BatchState::Open;
                    assert!(!is_open || !is_submitted, "{name}: a submitted batch is open again");
                    submitted += u64::from(!is_open);
                    // Its tables were durable before the certificate was returned.
                    let durable = |(number, certificate, files): &(u64, Certificate, Arc<Files>)| {
                        (*number, certificate.clone(), Files::new(&files.path, &crash))
                    };
                    commit(&primary, record.number, &certified.iter().map(durable).collect()).unwrap();
                    assert_eq!(tree(&*master), tree_of(model), "{name}");
                    self.model = model.clone();
                    committed = Some(false);
                }
                (BatchState::Open, _) => drop(primary.abort(record.number).unwrap()),
                _ => {}
            }
        }
        assert_eq!(tree(&*master), tree_of(&self.model), "{name}");
        for number in primary.unused_tables().unwrap() {
            image.remove(number).unwrap();
        }
        drop((master, primary));
        self.check_whole(&keys, &image);
        // Without the key-value store, the copy of the description gives a whole image.
        if Image::can_be_rebuilt(&*image).unwrap() {
            let lost = Keys::new(MemoryStore::new(), &crash);
            Image::rebuild(&*lost, &*image).unwrap();
            self.check_whole(&lost, &image);
        }
        self.state = keys.after(None);
        self.submitted += submitted;
        self.in_parts += in_parts;
        committed
    }

    fn check_whole(&self, keys: &Arc<Keys>, image: &Arc<Files>) {
        let mut problems = Vec::new();
        check_tables(&**keys, &**image, &mut |problem| problems.push(problem.clone())).unwrap();
        assert_eq!(problems, [], "{}", self.name);
        let primary = Primary::open(keys.clone(), image.clone()).unwrap();
        primary.check(false, &mut |problem| problems.push(problem.clone())).unwrap();
        assert_eq!(problems, [], "{}", self.name);
    }
}

#[test]
fn after_a_crash_the_store_is_whole_and_nothing_acknowledged_is_lost() {
    let (mut before, mut resumed, mut submitted, mut in_parts) = (0, 0, 0, 0);
    for seed in 0..cases() {
        let mut case = Case::new(seed);
        for _ in 0..3 {
            let end = case.run();
            match case.recover(end) {
                Some(true) => before += 1,
                Some(false) => resumed += 1,
                None => {}
            }
        }
        submitted += case.submitted;
        in_parts += case.in_parts;
    }
    // The crashes are in all parts of a commit.
    assert!(before > 0 && resumed > 10, "{before} committed before the crash, {resumed} resumed");
    assert!(submitted > 5, "{submitted} submitted before the crash");
    assert!(in_parts > 20, "{in_parts} of several parts");
}
