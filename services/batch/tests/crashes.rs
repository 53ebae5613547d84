//! Client, auxiliary server and primary server end at any call of the storage, with or without a
//! power failure, in cases that a seed determines. After a power failure, files and names that were
//! not synchronized are lost, truncated or damaged, each independently of the others, and the last
//! changes of the key-value store are lost. Then the store is intact, nothing that was acknowledged
//! is lost, and each batch is committed or not. If only the auxiliary server ends, the batch is
//! committed without it. A batch that is committed together with a transaction of blobs is
//! committed if and only if the transaction is.

mod stores;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use quell_batch_service::{
    Auxiliary, BatchCaller, BatchRecord, BatchState, Certificate, Image, Marker, MemoryEntries, Names,
    NewBatch, NewNode, NewPart, Primary, ROOT, TableFiles, Verdict, VerificationTask, check_tables,
    verify_task,
};
use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore, Value};
use quell_testkit::Random;
use quell_vfs::{Error, ErrorKind, Result};

use stores::operations::{Operation, operation};
use stores::{FILE, NEW, NOW, NoAuxiliary, UnsyncedFiles, proof_form, tables, tree};

/// The number of cases: the value of the variable `QUELL_HISTORIES`, or 300.
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

    /// Moves a table to this directory, as the primary server moves the tables of a verdict.
    fn take(&self, from: &Files, number: u64) -> Result<()> {
        self.crash.count()?;
        self.unsynced_names.lock().unwrap().insert(number);
        if from.unsynced_contents.lock().unwrap().contains(&number) {
            self.unsynced_contents.lock().unwrap().insert(number);
        }
        let name = format!("{number:016x}.table");
        std::fs::rename(from.path.join(&name), self.path.join(&name)).unwrap();
        Ok(())
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

    /// Returns the state after the crash: after a power failure, any state since the last
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
    /// Whether the primary server has acknowledged that the batch is submitted.
    is_submitted: bool,
    /// The marker of the transaction of blobs with which the batch is committed.
    marker: Option<Marker>,
    files: Vec<Arc<Files>>,
}

type Certified = Vec<(u64, Certificate, Arc<Files>)>;

/// Commits a batch with its certificate, or with the certificates of its parts. An auxiliary server
/// verifies it if there is one.
fn commit(
    primary: &Primary,
    batch: u64,
    certified: &Certified,
    auxiliary: Option<&AuxiliaryServer>,
) -> Result<BatchRecord> {
    let changes = |number, visit: &mut quell_batch_service::SubmittedVisitor<'_>| {
        let (_, certificate, files) = of_number(certified, number);
        visit(certificate, &**files)
    };
    let guard = primary.lock_commit(batch);
    match auxiliary {
        Some(auxiliary) => primary.commit_by(auxiliary, &guard, &changes),
        None => primary.commit_with(&guard, &changes),
    }
}

fn of_number(certified: &Certified, number: u64) -> &(u64, Certificate, Arc<Files>) {
    certified.iter().find(|(of, ..)| *of == number).expect("a certificate of this number")
}

/// An auxiliary server, which ends at a call of the storage of its own.
struct AuxiliaryServer {
    certified: Certified,
    image: Arc<Files>,
    crash: Crash,
    /// The directories of its verifications.
    outputs: Mutex<Vec<Arc<Files>>>,
    verified: Mutex<u64>,
    /// The path of its directories, and the number of the first one.
    path: PathBuf,
    first: u64,
}

impl Auxiliary for AuxiliaryServer {
    fn verify(&self, task: &VerificationTask) -> Result<Option<Verdict>> {
        let mut outputs = self.outputs.lock().unwrap();
        let number = self.first + outputs.len() as u64;
        let output = Files::new(&self.path.join(format!("verify-{number}")), &self.crash);
        outputs.push(output.clone());
        let (_, certificate, files) = of_number(&self.certified, task.record.number);
        let verdict = match verify_task(task, certificate, &files.dir, &self.image.dir, output.clone()) {
            Err(error) if error.kind == ErrorKind::InvalidInput => return Err(error),
            Err(_) => return Ok(None),
            Ok(verdict) => verdict,
        };
        if self.crash.count().is_err() {
            return Ok(None);
        }
        let verdict = Verdict::decode(&verdict.encode(task.record.number).unwrap(), task).unwrap();
        for number in verdict.tables() {
            self.image.take(&output, number)?;
        }
        *self.verified.lock().unwrap() += 1;
        Ok(Some(verdict))
    }
}

/// A store of blobs: its markers, and the markers of the transactions that took effect. Both are
/// changed by one transaction, which is durable.
#[derive(Debug, Default)]
struct Blobs {
    /// Whether the transaction of each marker is committed.
    markers: BTreeMap<String, bool>,
    effects: BTreeSet<String>,
}

impl Blobs {
    /// Commits a transaction. The crash is before or after it.
    fn commit(&mut self, marker: &Marker, crash: &Crash) -> Result<()> {
        crash.count()?;
        assert!(self.markers.insert(marker.blob.clone(), true).is_none(), "the marker exists");
        self.effects.insert(marker.blob.clone());
        crash.count()
    }

    /// Returns whether a transaction is committed, and makes it impossible otherwise.
    fn resolve(&mut self, marker: &Marker) -> bool {
        *self.markers.entry(marker.blob.clone()).or_insert(false)
    }

    fn has_taken_effect(&self, marker: Option<&Marker>) -> bool {
        marker.is_some_and(|marker| self.effects.contains(&marker.blob))
    }
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
    /// The directory of the image of the process that runs.
    image: Option<Arc<Files>>,
    /// The numbers of verifications by auxiliary servers that were begun and completed, and of
    /// commits by the primary server after an auxiliary server had ended.
    begun: u64,
    verified: u64,
    without: u64,
    blobs: Blobs,
    /// The number of batches that were prepared before a crash, and published or opened again
    /// after it.
    published: u64,
    rolled_back: u64,
}

/// The end of a process.
struct End {
    /// The states that the name space may have: the state after the last durable change, and all
    /// later states.
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
        Case {
            name,
            directory,
            state,
            model,
            random,
            submitted: 0,
            in_parts: 0,
            image: None,
            begun: 0,
            verified: 0,
            without: 0,
            blobs: Blobs::default(),
            published: 0,
            rolled_back: 0,
        }
    }

    fn files(&self, name: &str, crash: &Crash) -> Arc<Files> {
        Files::new(&self.directory.path().join(name), crash)
    }

    /// Runs a process until it crashes or ends, and keeps the resulting storage.
    fn run(&mut self) -> End {
        let crash = Crash::after(self.random.below(120) as u64);
        let keys = Keys::new(self.state.clone(), &crash);
        let image = self.files("image", &crash);
        self.image = Some(image.clone());
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
            marker: None,
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
        self.end_batch(primary, crash, end)
    }

    /// Begins a batch of several parts, each of which has names of its own and a directory that the
    /// others create as well.
    fn parts(&mut self, primary: &Primary, crash: &Crash, end: &mut End) -> Result<()> {
        let caller = BatchCaller { uid: FILE.uid, gid: FILE.gid, groups: Vec::new() };
        let new = NewBatch { name: "job".into(), caller: caller.clone(), subtree: ROOT, is_atomic: true };
        let batch = primary.begin_for_parts(new)?.number;
        end.permitted = vec![self.model.clone()];
        let model = self.model.clone();
        let empty = Pending {
            number: batch,
            model,
            certified: None,
            is_submitted: false,
            marker: None,
            files: Vec::new(),
        };
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
        self.end_batch(primary, crash, end)
    }

    /// Commits the pending batch with or without a transaction of blobs.
    fn end_batch(&mut self, primary: &Primary, crash: &Crash, end: &mut End) -> Result<()> {
        if self.random.one_in(3) {
            let committed = self.commit_with_blobs(primary, crash, end);
            let pending = end.pending.as_mut().expect("a batch is pending");
            let model = pending.model.clone();
            match committed {
                Err(error) => {
                    end.permitted.push(model);
                    return Err(error);
                }
                Ok(true) => {
                    end.pending = None;
                    end.permitted = vec![model.clone()];
                    self.model = model;
                    return Ok(());
                }
                // The batch is open again.
                Ok(false) => pending.marker = None,
            }
        }
        self.end_without_blobs(primary, end)
    }

    /// Prepares the pending batch, commits its transaction of blobs, and publishes the batch. The
    /// transaction is refused in some cases: then the batch is open again, and the call returns
    /// false.
    fn commit_with_blobs(&mut self, primary: &Primary, crash: &Crash, end: &mut End) -> Result<bool> {
        let pending = end.pending.as_mut().expect("a batch is pending");
        let (number, certified) = (pending.number, pending.certified.clone().expect("it is complete"));
        let blob = format!("{number}-{}", self.blobs.markers.len());
        let marker = pending.marker.insert(Marker { location: "dir:/blobs".into(), blob }).clone();
        let guard = primary.lock_commit(number);
        let changes = |number, visit: &mut quell_batch_service::SubmittedVisitor<'_>| {
            let (_, certificate, files) = of_number(&certified, number);
            visit(certificate, &**files)
        };
        let auxiliary = self.auxiliary(&certified);
        let by: &dyn Auxiliary = auxiliary.as_ref().map_or(&NoAuxiliary, |auxiliary| auxiliary);
        let prepared = primary.prepare_by(by, &guard, &changes, &marker);
        let outputs = self.end_auxiliary(auxiliary, prepared.is_ok());
        pending.files.extend(outputs);
        let record = prepared?;
        assert!(matches!(record.state, BatchState::Prepared(_)), "{record:?}");
        assert_eq!(tree(&*primary.name_space()), tree_of(&self.model), "{}", self.name);
        if self.random.one_in(4) {
            primary.roll_back(&guard, &marker.blob)?;
            return Ok(false);
        }
        self.blobs.commit(&marker, crash)?;
        primary.publish(&guard, &marker.blob)?;
        Ok(true)
    }

    /// Returns an auxiliary server, in some cases.
    fn auxiliary(&mut self, certified: &Certified) -> Option<AuxiliaryServer> {
        self.random.one_in(2).then(|| AuxiliaryServer {
            certified: certified.clone(),
            image: self.image.clone().expect("it is open"),
            crash: Crash::after(if self.random.one_in(2) { u64::MAX } else { self.random.below(12) as u64 }),
            outputs: Mutex::default(),
            verified: Mutex::default(),
            path: self.directory.path().to_owned(),
            first: self.begun,
        })
    }

    /// Counts the verifications of an auxiliary server. Returns the directories that it leaves,
    /// whose tables a power failure damages as well.
    fn end_auxiliary(&mut self, auxiliary: Option<AuxiliaryServer>, is_accepted: bool) -> Vec<Arc<Files>> {
        let Some(auxiliary) = auxiliary else { return Vec::new() };
        let (outputs, verified) =
            (auxiliary.outputs.into_inner().unwrap(), auxiliary.verified.into_inner().unwrap());
        self.without += u64::from(is_accepted && verified < outputs.len() as u64);
        self.begun += outputs.len() as u64;
        self.verified += verified;
        outputs
    }

    /// Submits the pending batch in some cases, and commits it.
    fn end_without_blobs(&mut self, primary: &Primary, end: &mut End) -> Result<()> {
        let pending = end.pending.as_mut().expect("a batch is pending");
        let (number, model) = (pending.number, pending.model.clone());
        if self.random.one_in(2) {
            let submitted = primary.submit(number).inspect_err(|_| end.permitted.push(model.clone()))?;
            assert!(matches!(submitted.state, BatchState::Submitted { order: 1 }));
            pending.is_submitted = true;
        }
        let certified = pending.certified.clone().expect("it is complete");
        let auxiliary = self.auxiliary(&certified);
        let committed = commit(primary, number, &certified, auxiliary.as_ref());
        let outputs = self.end_auxiliary(auxiliary, committed.is_ok());
        let pending = end.pending.as_mut().expect("a batch is pending");
        pending.files.extend(outputs);
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
        for mut record in primary.batches().unwrap() {
            let pending = end.pending.as_ref().filter(|pending| pending.number == record.number);
            in_parts += u64::from(record.has_parts() && pending.is_some());
            if let BatchState::Prepared(prepared) = &record.state {
                let pending = pending.expect("a batch that was not acknowledged");
                assert_eq!(pending.marker.as_ref(), Some(&prepared.marker), "{name}");
                let guard = primary.lock_commit(record.number);
                match self.blobs.resolve(&prepared.marker) {
                    true => {
                        primary.publish(&guard, &prepared.marker.blob).unwrap();
                        assert_eq!(tree(&*master), tree_of(&pending.model), "{name}");
                        self.model = pending.model.clone();
                        assert!(self.blobs.has_taken_effect(pending.marker.as_ref()), "{name}");
                        self.published += 1;
                        continue;
                    }
                    false => {
                        record = primary.roll_back(&guard, &prepared.marker.blob).unwrap();
                        self.rolled_back += 1;
                    }
                }
            }
            let has_taken_effect =
                pending.is_some_and(|pending| self.blobs.has_taken_effect(pending.marker.as_ref()));
            match (record.state, pending) {
                (BatchState::Committed { .. }, Some(pending)) => {
                    assert_eq!(found, tree_of(&pending.model), "{name}");
                    assert_eq!(has_taken_effect, pending.marker.is_some(), "{name}: files without blobs");
                    committed = Some(true);
                }
                _ if has_taken_effect => panic!("{name}: blobs without files"),
                (
                    state @ (BatchState::Open | BatchState::Submitted { .. }),
                    Some(Pending { certified: Some(certified), model, is_submitted, .. }),
                ) => {
                    let is_open = state == BatchState::Open;
                    assert!(!is_open || !is_submitted, "{name}: a submitted batch is open again");
                    submitted += u64::from(!is_open);
                    // The tables of the batch were durable before the certificate was returned.
                    let durable = |(number, certificate, files): &(u64, Certificate, Arc<Files>)| {
                        (*number, certificate.clone(), Files::new(&files.path, &crash))
                    };
                    commit(&primary, record.number, &certified.iter().map(durable).collect(), None).unwrap();
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
        // Without the key-value store, an intact image can be rebuilt from the copy of the
        // description.
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
    let (mut verified, mut without) = (0, 0);
    let (mut published, mut rolled_back) = (0, 0);
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
        verified += case.verified;
        without += case.without;
        published += case.published;
        rolled_back += case.rolled_back;
    }
    // The crashes happen in all parts of a commit.
    assert!(before > 0 && resumed > 10, "{before} committed before the crash, {resumed} resumed");
    assert!(submitted > 5, "{submitted} submitted before the crash");
    assert!(in_parts > 20, "{in_parts} of several parts");
    assert!(verified > 50, "{verified} verified by auxiliary servers");
    assert!(without > 10, "{without} committed after an auxiliary server had ended");
    assert!(
        published > 3 && rolled_back > 3,
        "{published} prepared batches were published after the crash, {rolled_back} were opened again"
    );
}

/// A request of a client that commits a batch with a transaction of blobs.
#[derive(Debug, Clone)]
enum Step {
    Prepare(Marker),
    Publish(Marker),
    RollBack(Marker),
}

/// A batch that clients commit through servers, each of which ends at a call of its storage.
struct ServedCommit {
    case: Case,
    batch: u64,
    certified: Certified,
    /// The requests that were sent. Copies of them can arrive later.
    sent: Vec<Step>,
    /// The number of ends of a server.
    ends: u64,
}

impl ServedCommit {
    /// Executes a request once. `None` if the server has ended: a next one opens the store, with or
    /// without a power failure before.
    fn execute(&mut self, step: &Step, calls: u64) -> Option<Result<BatchState>> {
        let crash = Crash::after(calls);
        let (keys, image) = (Keys::new(self.case.state.clone(), &crash), self.case.files("image", &crash));
        let primary = Primary::open(keys.clone(), image.clone()).unwrap();
        let guard = primary.lock_commit(self.batch);
        let changes = |number, visit: &mut quell_batch_service::SubmittedVisitor<'_>| {
            let (_, certificate, files) = of_number(&self.certified, number);
            visit(certificate, &**files)
        };
        let result = match step {
            Step::Prepare(marker) => primary.prepare_by(&NoAuxiliary, &guard, &changes, marker),
            Step::Publish(marker) => primary.publish(&guard, &marker.blob),
            Step::RollBack(marker) => primary.roll_back(&guard, &marker.blob),
        };
        drop(guard);
        drop(primary);
        let has_ended = matches!(&result, Err(error) if error.kind == ErrorKind::Os(5));
        // A server can also end after it has executed the request, before it sends the reply.
        let is_lost = has_ended || self.case.random.one_in(4);
        let is_power_failure = is_lost && self.case.random.one_in(2);
        if is_power_failure {
            image.fail_power(&mut self.case.random);
        }
        self.case.state = keys.after(is_power_failure.then_some(&mut self.case.random));
        self.ends += u64::from(is_lost);
        (!is_lost).then(|| result.map(|record| record.state))
    }

    /// Sends a request until there is a reply. Copies of earlier requests arrive meanwhile.
    fn send(&mut self, step: Step) -> Result<BatchState> {
        loop {
            self.sent.push(step.clone());
            if self.case.random.one_in(3) {
                let late = self.case.random.pick(&self.sent).clone();
                // The client does not get this reply.
                let _ = self.execute(&late, u64::MAX);
            }
            let calls = if self.case.random.one_in(2) { u64::MAX } else { self.case.random.below(30) as u64 };
            if let Some(result) = self.execute(&step, calls) {
                return result;
            }
        }
    }

    fn state(&self) -> BatchState {
        let crash = Crash::after(u64::MAX);
        let (keys, image) = (Keys::new(self.case.state.clone(), &crash), self.case.files("image", &crash));
        Primary::open(keys, image).unwrap().batch(self.batch).unwrap().state
    }

    /// A client commits the batch. It can end after each step.
    fn commit(&mut self, number: u64) {
        let marker = Marker { location: "dir:/blobs".into(), blob: format!("{number}") };
        // If a late request of an earlier client has prepared the batch, this one is refused.
        let Ok(BatchState::Prepared(prepared)) = self.send(Step::Prepare(marker.clone())) else { return };
        assert_eq!(prepared.marker, marker);
        if self.case.random.one_in(5) {
            return;
        }
        let is_refused = self.case.random.one_in(3);
        if !is_refused {
            self.case.blobs.commit(&marker, &Crash::after(u64::MAX)).unwrap();
        }
        if self.case.random.one_in(5) {
            return;
        }
        if is_refused {
            let _ = self.send(Step::RollBack(marker));
        } else {
            let published = self.send(Step::Publish(marker));
            assert!(matches!(published, Ok(BatchState::Committed { .. })), "{published:?}");
        }
    }

    /// A client ends a prepared batch by its marker.
    fn resolve(&mut self) {
        while let BatchState::Prepared(prepared) = self.state() {
            let marker = prepared.marker.clone();
            let is_committed = self.case.blobs.resolve(&marker);
            // A late copy of `Prepare` can prepare the batch again.
            let _ = self.send(if is_committed { Step::Publish(marker) } else { Step::RollBack(marker) });
        }
    }
}

#[test]
fn clients_and_servers_that_end_during_a_commit_with_blobs_leave_both_or_neither() {
    let (mut ends, mut committed, mut open) = (0, 0, 0);
    for seed in 0..cases() {
        let mut case = Case::new(seed);
        let crash = Crash::after(u64::MAX);
        let (keys, image) = (Keys::new(case.state.clone(), &crash), case.files("image", &crash));
        let primary = Primary::open(keys.clone(), image).unwrap();
        let caller = BatchCaller { uid: FILE.uid, gid: FILE.gid, groups: Vec::new() };
        let new = NewBatch { name: "job".into(), caller, subtree: ROOT, is_atomic: false };
        let record = primary.begin(new).unwrap();
        let files = case.files("batch", &crash);
        let operations: Vec<Operation> = (0..10).map(|_| operation(&mut case.random)).collect();
        let model = after(&case.model, &operations);
        let names = RwLock::new(primary.private(&record, files.clone(), 1 << 20).unwrap());
        for operation in &operations {
            let _ = operation.run(&names);
        }
        let names = names.into_inner().unwrap();
        let certificate = names.0.submit(primary.store_number(), &record, &*files, proof_form(), 0).unwrap();
        drop((names, primary));
        case.state = keys.after(None);
        let certified = vec![(record.number, certificate, files)];
        let mut commit = ServedCommit { case, batch: record.number, certified, sent: Vec::new(), ends: 0 };
        for number in 0..4 {
            if matches!(commit.state(), BatchState::Committed { .. }) {
                break;
            }
            commit.commit(number);
            commit.resolve();
        }
        let state = commit.state();
        let is_committed = matches!(state, BatchState::Committed { .. });
        assert!(is_committed || state == BatchState::Open, "seed {seed}: {state:?}");
        assert_eq!(commit.case.blobs.effects.len(), usize::from(is_committed), "seed {seed}");
        let keys = Keys::new(commit.case.state.clone(), &crash);
        let image = commit.case.files("image", &crash);
        commit.case.check_whole(&keys, &image);
        let expected = if is_committed { &model } else { &commit.case.model };
        let primary = Primary::open(keys, image).unwrap();
        assert_eq!(tree(&*primary.name_space()), tree_of(expected), "seed {seed}");
        ends += commit.ends;
        committed += u64::from(is_committed);
        open += u64::from(!is_committed);
    }
    assert!(ends > 100 && committed > 20 && open > 0, "{ends} ends, {committed} committed, {open} open");
}
