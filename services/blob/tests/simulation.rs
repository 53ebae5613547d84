//! Clients of a store whose process crashes, in one thread and from a seed: replies are lost,
//! commits are repeated, and the process ends before, during and after commits. The histories are
//! checked for strict serializability. Runs with planted bugs show that the check and porcupine
//! find these bugs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use quell_blob_service::{Clock, CommitResult, MemoryExtents, OpenStore, Options, Snapshot, check};
use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore, Value};
use quell_testkit::Random;
use quell_testkit::porcupine::Porcupine;
use quell_testkit::serializability::{
    HistoryOperation, HistoryTransaction, Outcome, check_strict_serializability,
};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{Operation, Part, Read, Refusal, Transaction, TransactionId, Transform};

/// A planted bug, which the check must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// The reads of a transaction are not compared with other commits.
    NoReadSet,
    /// Commits are acknowledged before they are stored.
    EarlyAcknowledge,
    /// A commit that is repeated is performed again.
    NoResults,
}

const BUGS: [Bug; 3] = [Bug::NoReadSet, Bug::EarlyAcknowledge, Bug::NoResults];
const LISTS: u64 = 3;
const REGISTERS: std::ops::Range<u64> = LISTS..LISTS + 2;
const CLIENTS: usize = 5;
const STEPS: usize = 500;
const COUNTER: &[u8] = b"counter";
const BALLAST: &[u8] = b"ballast";

struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        0
    }
}

/// Tables of a process that ends during a commit.
struct CrashingTables {
    live: MemoryStore,
    /// The entries that the next process finds.
    durable: Mutex<MemoryStore>,
    state: Mutex<CrashState>,
    has_crashed: AtomicBool,
}

struct CrashState {
    random: Random,
    /// On average, one of this many commits ends the process; 0 if no commit does.
    crash_one_in: usize,
    bug: Bug,
}

impl CrashingTables {
    fn new(entries: MemoryStore, state: CrashState) -> CrashingTables {
        let durable = Mutex::new(entries.clone());
        CrashingTables {
            live: entries,
            durable,
            state: Mutex::new(state),
            has_crashed: AtomicBool::new(false),
        }
    }
}

fn crashed() -> Error {
    Error::new(ErrorKind::Os(quell_vfs::errno::EIO), "commit", "a process that has ended")
}

impl KeyValue for CrashingTables {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.live.get(key)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        if self.has_crashed.load(Ordering::Relaxed) {
            return Err(crashed());
        }
        let mut state = self.state.lock().unwrap();
        let one_in = state.crash_one_in;
        if one_in > 0 && state.random.one_in(one_in) {
            self.has_crashed.store(true, Ordering::Relaxed);
            if state.random.one_in(2) && state.bug != Bug::EarlyAcknowledge {
                self.durable.lock().unwrap().commit(batch)?;
            }
            return Err(crashed());
        }
        let is_late = state.bug == Bug::EarlyAcknowledge && !state.random.one_in(3);
        self.live.commit(batch)?;
        if !is_late {
            *self.durable.lock().unwrap() = self.live.clone();
        }
        Ok(())
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.live.scan(range, visit)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64> {
        self.live.size_bytes()
    }
}

/// The state of a client.
enum Client {
    Idle,
    /// A transaction that reads and appends.
    Open {
        draft: Snapshot,
        begun: u64,
        transaction: Transaction,
        operations: Vec<HistoryOperation>,
        left: usize,
    },
    /// A transaction whose commit was sent.
    Sent {
        begun: u64,
        transaction: Transaction,
        operations: Vec<HistoryOperation>,
        answer: Answer,
    },
}

/// The result of a commit, when it has arrived.
type Answer = Arc<Mutex<Option<CommitResult>>>;

struct Simulation {
    tables: Arc<CrashingTables>,
    extents: Arc<MemoryExtents>,
    store: OpenStore,
    clients: Vec<Client>,
    history: Vec<HistoryTransaction>,
    time: u64,
    next_value: u64,
    random: Random,
    bug: Bug,
}

fn list_name(list: u64) -> Vec<u8> {
    format!("list-{list}").into_bytes()
}

fn register_name(register: u64) -> Vec<u8> {
    format!("register-{register}").into_bytes()
}

fn open(tables: &Arc<CrashingTables>, extents: &Arc<MemoryExtents>) -> Result<OpenStore> {
    let options = Options { results_max: 40, ..Options::default() };
    OpenStore::open(tables.clone(), extents.clone(), Arc::new(NoClock), options)
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty(), "a number was appended in part");
    numbers.iter().map(|number| u64::from_le_bytes(*number)).collect()
}

fn read_register(draft: &Snapshot, register: u64) -> Result<Option<u64>> {
    let mut bytes = [0; 8];
    draft.read(&register_name(register), 0, &mut bytes)?;
    Ok(Some(u64::from_le_bytes(bytes)).filter(|number| *number != 0))
}

fn read_all(draft: &Snapshot, name: &[u8]) -> Result<Vec<u8>> {
    let size = draft.stat(name)?.map_or(0, |stat| stat.size_bytes);
    let mut bytes = vec![0; size as usize];
    if size > 0 {
        assert_eq!(draft.read(name, 0, &mut bytes)?, bytes.len());
    }
    Ok(bytes)
}

impl Simulation {
    fn new(seed: u64, bug: Bug) -> Simulation {
        let mut random = Random::new(seed);
        let state = CrashState { random: Random::new(random.number()), crash_one_in: 0, bug };
        let tables = Arc::new(CrashingTables::new(MemoryStore::new(), state));
        let extents = Arc::new(MemoryExtents::default());
        let store = open(&tables, &extents).expect("opened");
        let mut names: Vec<Vec<u8>> = (0..LISTS).map(list_name).chain(REGISTERS.map(register_name)).collect();
        names.extend([COUNTER.to_vec(), BALLAST.to_vec()]);
        let operations = names.into_iter().map(|name| Operation::Create { name, may_exist: false }).collect();
        store.commit(Transaction { operations, ..Transaction::default() }).expect("created");
        *tables.durable.lock().unwrap() = tables.live.clone();
        tables.state.lock().unwrap().crash_one_in = 25;
        let clients = (0..CLIENTS).map(|_| Client::Idle).collect();
        Simulation {
            tables,
            extents,
            store,
            clients,
            history: Vec::new(),
            time: 0,
            next_value: 1,
            random,
            bug,
        }
    }

    /// Replaces the process by a new process, which finds the durable data.
    fn restart(&mut self) {
        let entries = self.tables.durable.lock().unwrap().clone();
        let random = Random::new(self.random.number());
        let state = CrashState { random, crash_one_in: 25, bug: self.bug };
        self.tables = Arc::new(CrashingTables::new(entries, state));
        self.extents = Arc::new((*self.extents).clone());
        match open(&self.tables, &self.extents) {
            Ok(store) => self.store = store,
            // The process ended while it opened the store.
            Err(_) => return self.restart(),
        }
        for index in 0..self.clients.len() {
            match std::mem::replace(&mut self.clients[index], Client::Idle) {
                Client::Idle => {}
                Client::Open { begun, operations, .. } => self.end(begun, operations, Outcome::Refused),
                Client::Sent { begun, operations, .. } if self.random.one_in(3) => {
                    self.end(begun, operations, Outcome::Unknown);
                }
                Client::Sent { begun, transaction, operations, .. } => {
                    let answer = self.send(&transaction, true);
                    self.clients[index] = Client::Sent { begun, transaction, operations, answer };
                }
            }
        }
    }

    fn end(&mut self, begun: u64, operations: Vec<HistoryOperation>, outcome: Outcome) {
        self.history.push(HistoryTransaction { begun, ended: self.time, outcome, operations });
    }

    fn send(&mut self, transaction: &Transaction, is_repeated: bool) -> Answer {
        let mut transaction = Transaction { is_repeated, ..transaction.clone() };
        match self.bug {
            Bug::NoReadSet => (transaction.snapshot, transaction.reads) = (None, Vec::new()),
            Bug::NoResults => transaction.id = None,
            Bug::None | Bug::EarlyAcknowledge => {}
        }
        let answer = Answer::default();
        let receiver = answer.clone();
        self.store.submit(transaction, move |result| *receiver.lock().unwrap() = Some(result));
        answer
    }

    fn step(&mut self) {
        self.time += 1;
        if self.tables.has_crashed.load(Ordering::Relaxed) {
            return self.restart();
        }
        if self.random.one_in(4) {
            self.store.commit_pending();
            return;
        }
        if self.random.one_in(40) {
            let _ = self.store.collect();
            return;
        }
        let index = self.random.below(CLIENTS);
        self.clients[index] = match std::mem::replace(&mut self.clients[index], Client::Idle) {
            Client::Idle => self.begin(),
            Client::Open { draft, begun, transaction, operations, left: 0 } => {
                drop(draft);
                let answer = self.send(&transaction, false);
                Client::Sent { begun, transaction, operations, answer }
            }
            Client::Open { draft, begun, transaction, operations, left } => {
                self.operate(draft, begun, transaction, operations, left - 1)
            }
            Client::Sent { begun, transaction, operations, answer } => {
                self.receive(begun, transaction, operations, answer)
            }
        };
    }

    fn begin(&mut self) -> Client {
        let draft = self.store.snapshot();
        let number = self.next_value;
        self.next_value += 1;
        let id = TransactionId { client: 7, number, begun: draft.version() };
        let snapshot = Some(draft.version());
        let transaction = Transaction { id: Some(id), snapshot, ..Transaction::default() };
        let left = 1 + self.random.below(4);
        Client::Open { draft, begun: self.time, transaction, operations: Vec::new(), left }
    }

    /// Reads a list or a register, or changes one.
    fn operate(
        &mut self,
        mut draft: Snapshot,
        begun: u64,
        mut transaction: Transaction,
        mut operations: Vec<HistoryOperation>,
        left: usize,
    ) -> Client {
        if self.random.one_in(3) {
            return self.operate_on_register(draft, begun, transaction, operations, left);
        }
        let list = self.random.below(LISTS as usize) as u64;
        let name = list_name(list);
        if self.random.one_in(2) {
            let Ok(bytes) = read_all(&draft, &name) else {
                // So much was changed that the snapshot cannot be read.
                self.end(begun, operations, Outcome::Refused);
                return Client::Idle;
            };
            transaction.reads.push(Read { name: name.clone(), part: Part::Size });
            transaction.reads.push(Read { name, part: Part::Range { start: 0, end: u64::MAX } });
            operations.push(HistoryOperation::Read(list, numbers(&bytes)));
            return Client::Open { draft, begun, transaction, operations, left };
        }
        let value = self.next_value;
        self.next_value += 1;
        let mut added = vec![
            Operation::Append { name, data: value.to_le_bytes().to_vec() },
            Operation::Transform { name: COUNTER.to_vec(), offset: 0, transform: Transform::add_i64(1) },
        ];
        if self.random.one_in(6) {
            let offset = self.random.below(100_000) as u64;
            added.push(Operation::Write { name: BALLAST.to_vec(), offset, data: vec![value as u8; 33_000] });
        }
        for operation in added {
            if let Err(refusal) = draft.apply(operation.clone()) {
                // With a planted bug, data that was acknowledged can be missing.
                assert!(self.bug != Bug::None, "{refusal:?}");
                self.end(begun, operations, Outcome::Refused);
                return Client::Idle;
            }
            transaction.operations.push(operation);
        }
        operations.push(HistoryOperation::Append(list, value));
        Client::Open { draft, begun, transaction, operations, left }
    }

    /// Reads or writes a register.
    fn operate_on_register(
        &mut self,
        mut draft: Snapshot,
        begun: u64,
        mut transaction: Transaction,
        mut operations: Vec<HistoryOperation>,
        left: usize,
    ) -> Client {
        let register = REGISTERS.start + self.random.below(REGISTERS.count()) as u64;
        let name = register_name(register);
        let succeeded = match self.random.one_in(2) {
            true => read_register(&draft, register).map(|value| {
                transaction.reads.push(Read { name, part: Part::Range { start: 0, end: 8 } });
                operations.push(HistoryOperation::ReadRegister(register, value));
            }),
            false => {
                let value = self.next_value;
                self.next_value += 1;
                let data = value.to_le_bytes().to_vec();
                let write = Operation::Write { name, offset: 0, data };
                transaction.operations.push(write.clone());
                operations.push(HistoryOperation::Write(register, value));
                draft.apply(write).map(|_| ()).map_err(|refusal| {
                    assert!(self.bug != Bug::None, "{refusal:?}");
                    crashed()
                })
            }
        };
        if succeeded.is_err() {
            self.end(begun, operations, Outcome::Refused);
            return Client::Idle;
        }
        Client::Open { draft, begun, transaction, operations, left }
    }

    fn receive(
        &mut self,
        begun: u64,
        transaction: Transaction,
        operations: Vec<HistoryOperation>,
        answer: Answer,
    ) -> Client {
        let Some(result) = answer.lock().unwrap().take() else {
            return Client::Sent { begun, transaction, operations, answer };
        };
        // The reply is lost, and the client repeats the commit.
        if self.random.one_in(5) {
            let answer = self.send(&transaction, true);
            return Client::Sent { begun, transaction, operations, answer };
        }
        let outcome = match result {
            Ok(_) => Outcome::Committed,
            Err(Refusal::Conflict(_) | Refusal::SnapshotTooOld) => Outcome::Refused,
            // The process has ended, or the result of a repeated commit is no longer known.
            Err(Refusal::Failed { .. }) => Outcome::Unknown,
            Err(refusal) => panic!("{refusal:?}"),
        };
        self.end(begun, operations, outcome);
        Client::Idle
    }

    /// Ends all transactions, and reads everything in a new process.
    fn finish(mut self) -> History {
        self.restart();
        self.tables.state.lock().unwrap().crash_one_in = 0;
        if self.tables.has_crashed.load(Ordering::Relaxed) {
            return self.finish();
        }
        while self.clients.iter().any(|client| !matches!(client, Client::Idle)) {
            self.time += 1;
            self.store.commit_pending();
            for index in 0..CLIENTS {
                if let Client::Sent { begun, transaction, operations, answer } =
                    std::mem::replace(&mut self.clients[index], Client::Idle)
                {
                    self.clients[index] = self.receive(begun, transaction, operations, answer);
                }
            }
        }
        self.time += 1;
        let draft = self.store.snapshot();
        let mut reads = Vec::new();
        let mut count = 0;
        for list in 0..LISTS {
            let values = numbers(&read_all(&draft, &list_name(list)).expect("read"));
            count += values.len() as i64;
            reads.push(HistoryOperation::Read(list, values));
        }
        for register in REGISTERS {
            let value = read_register(&draft, register).expect("read");
            reads.push(HistoryOperation::ReadRegister(register, value));
        }
        let mut counter = [0; 8];
        draft.read(COUNTER, 0, &mut counter).expect("read");
        let begun = self.time;
        self.time += 1;
        self.end(begun, reads, Outcome::Committed);
        drop(draft);
        let mut faults = Vec::new();
        if i64::from_le_bytes(counter) != count {
            faults.push(format!("{count} appends, but the counter is {}", i64::from_le_bytes(counter)));
        }
        let collected = self.store.collect().err();
        faults.extend(collected.map(|error| error.to_string()));
        let checked = check(&*self.tables, &*self.extents, false, &mut |problem| {
            faults.push(format!("{}: {}", problem.kind.identifier(), problem.detail));
        });
        faults.extend(checked.err().map(|error| error.to_string()));
        History { transactions: self.history, faults }
    }
}

/// A history that has ended.
struct History {
    transactions: Vec<HistoryTransaction>,
    /// Faults that were found in the store at the end, and not by a transaction.
    faults: Vec<String>,
}

fn run(seed: u64, bug: Bug) -> History {
    let mut simulation = Simulation::new(seed, bug);
    for _ in 0..STEPS {
        simulation.step();
    }
    simulation.finish()
}

/// Returns the seeds of the histories. Their number is the value of `QUELL_HISTORIES`, or 300, and
/// the first seed is the value of `QUELL_SEED`.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse().expect("a number"));
    let first = number("QUELL_SEED").unwrap_or(0);
    first..first + number("QUELL_HISTORIES").unwrap_or(300)
}

#[test]
fn histories_with_crashes_are_strictly_serializable() {
    let mut total = [0; 3];
    for seed in seeds() {
        let History { transactions, faults } = run(seed, Bug::None);
        let repeat = format!("repeat it with QUELL_SEED={seed} QUELL_HISTORIES=1");
        check_strict_serializability(&transactions).unwrap_or_else(|found| panic!("{found}\n{repeat}"));
        assert!(faults.is_empty(), "{faults:?}\n{repeat}");
        for transaction in transactions {
            total[transaction.outcome as usize] += 1;
        }
    }
    // The histories have all kinds of results.
    assert!(total.iter().all(|count| *count as u64 >= seeds().count() as u64 / 10), "{total:?}");
}

#[test]
fn planted_bugs_are_found() {
    for bug in BUGS {
        let is_violation = |seed: &u64| check_strict_serializability(&run(*seed, bug).transactions).is_err();
        let found = (0..50).filter(is_violation).count();
        println!("{bug:?} was found in {found} of 50 histories");
        assert!(found >= 10, "{bug:?} was found in {found} of 50 histories");
    }
}

#[test]
fn porcupine_finds_the_planted_bugs_and_no_others() {
    let Some(porcupine) = Porcupine::find() else { return };
    for bug in BUGS {
        let histories: Vec<_> = (0..50).map(|seed| run(seed, bug).transactions).collect();
        let found = porcupine.check(&histories).into_iter().filter(|is_accepted| !is_accepted).count();
        println!("{bug:?} was found in {found} of 50 histories");
        assert!(found >= 10, "{bug:?} was found in {found} of 50 histories");
    }
    let seeds: Vec<u64> = seeds().collect();
    for seeds in seeds.chunks(500) {
        let histories: Vec<_> = seeds.iter().map(|seed| run(*seed, Bug::None).transactions).collect();
        for (seed, is_accepted) in seeds.iter().zip(porcupine.check(&histories)) {
            assert!(is_accepted, "repeat it with QUELL_SEED={seed} QUELL_HISTORIES=1");
        }
    }
}
