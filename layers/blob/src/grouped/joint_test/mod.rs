//! Clients of a store with several groups, in one thread and from a seed: messages are lost and
//! repeated, clients die between any two steps, and servers are replaced. The histories are checked
//! for strict serializability. Runs with planted bugs show that the check finds them.

mod clients;
mod sums;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quell_blob_service::{
    ClientId, Clock, Group, OpenStore, Permissions, Problem, ProblemKind, SessionLimits, Sessions,
    compare_joint_records,
};
use quell_rados::{MemoryObjects, group_name};
use quell_testkit::Random;
use quell_testkit::serializability::{
    HistoryOperation, HistoryTransaction, Outcome, check_strict_serializability,
};
use quell_wire::blob::{
    Draft, JointDecision, JointId, JointReply, JointRequest, MESSAGE_BYTES_MAX, Operation,
    Outcome as Decided, Part, Preparation, Proof, Read, ReadState, Refusal, Reply, Request, SnapshotId,
    Transaction, TransactionId, Version, group_of,
};
use quell_wire::{decode, encode};

use crate::grouped::joint::{JointResult, JointTransaction};
use crate::grouped::split::{GroupPart, Split};
use crate::rados;

/// A planted bug, which the check must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A transaction is acknowledged when all groups have prepared it.
    EarlyAcknowledge,
    /// Reads are compared before the preparation, but not locked.
    NoReadLocks,
    /// Reads of locked data return the value before the transaction that is prepared.
    OldValues,
    /// A participant applies the decision of a server that is not the coordinator.
    ForgedDecisions,
}

const GROUPS: u32 = 3;
const LISTS: u64 = 4;
const CLIENTS: usize = 5;
const STEPS: usize = 6000;
const SECRET: [u8; 32] = [7; 32];

/// Snapshots of the groups, with their versions.
type Snapshots = Vec<(SnapshotId, Version)>;
type Replies = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

struct Server {
    sessions: Arc<Sessions>,
    store: OpenStore,
    /// The permissions of the client that [`call`] uses.
    permissions: Arc<Permissions>,
}

/// The requests of a step of a client, and their replies.
#[derive(Default)]
struct Calls {
    sent: BTreeMap<u64, (u32, Request)>,
    replies: BTreeMap<u32, Reply>,
}

/// The state of a client.
enum State {
    Idle,
    /// The client reads the latest state of a list.
    Latest(u64),
    /// The client begins a snapshot of each group.
    Begin,
    /// The client compares the snapshots with the latest states.
    Compare(Snapshots),
    /// The client reads lists of the snapshots. The second field has the lists that are not read
    /// yet.
    Read(Snapshots, Vec<u64>),
    /// The reads of the client are compared before the preparation. Only with the planted bug.
    Validate(Split),
    /// The client commits in one group.
    Single,
    /// The client commits in several groups, or ends the transaction of another client.
    Joint(Box<JointTransaction>),
}

struct Client {
    id: u64,
    state: State,
    calls: Calls,
    begun: u64,
    operations: Vec<HistoryOperation>,
    reads: Vec<Read>,
    /// Whether a commit was sent, so that the result of the transaction is not known.
    has_sent: bool,
    /// Whether the result is in the history.
    is_reported: bool,
}

struct Simulation {
    objects: MemoryObjects,
    clock: Arc<TestClock>,
    servers: Vec<Server>,
    clients: Vec<Client>,
    /// The requests that are not delivered yet: the number, the client, the group, and the bytes.
    network: Vec<(u64, u64, u32, Vec<u8>)>,
    replies: Replies,
    history: Vec<HistoryTransaction>,
    time: u64,
    last_number: u64,
    random: Random,
    permissions: Arc<Permissions>,
    bug: Bug,
    /// The numbers of replies by kind, which show that the histories are not trivial.
    seen: BTreeMap<&'static str, usize>,
}

fn list_name(list: u64) -> Vec<u8> {
    format!("list-{list}").into_bytes()
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect()
}

fn group(number: u32) -> Group {
    Group::new(number, GROUPS, &SECRET).expect("a group")
}

/// A clock that the test sets.
#[derive(Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl TestClock {
    fn advance_ms(&self, milliseconds: usize) {
        self.0.fetch_add(milliseconds as u64 * 1_000_000, Ordering::Relaxed);
    }
}

fn open(objects: &MemoryObjects, number: u32, clock: &Arc<TestClock>) -> Server {
    let (objects, name) = (Arc::new(objects.clone()), group_name(rados::NAME, number));
    let opened = rados::open_with(objects, &name, Box::new(|_| ()), clock.clone()).expect("opened");
    let sessions = Sessions::new(opened.store.clone(), SessionLimits::default());
    let permissions = Arc::new(Permissions::all());
    Server { sessions: Arc::new(sessions.in_group(group(number))), store: opened.store, permissions }
}

/// Executes a request at once.
fn call(server: &Server, request: &Request) -> Reply {
    let replies = Replies::default();
    let own = replies.clone();
    let replied = Box::new(move |bytes| own.lock().unwrap().push((0, bytes)));
    let message = encode(request);
    server.sessions.execute(ClientId(u64::MAX), &server.permissions, &message, MESSAGE_BYTES_MAX, replied);
    while server.store.commit_pending() {}
    let bytes = replies.lock().unwrap().pop().expect("a reply").1;
    decode(&bytes).expect("a reply")
}

impl Client {
    fn new(id: u64) -> Client {
        Client {
            id,
            state: State::Idle,
            calls: Calls::default(),
            begun: 0,
            operations: Vec::new(),
            reads: Vec::new(),
            has_sent: false,
            is_reported: false,
        }
    }
}

impl Simulation {
    fn new(seed: u64, bug: Bug) -> Simulation {
        let (objects, clock) = (MemoryObjects::new(), Arc::default());
        let servers: Vec<Server> = (0..GROUPS).map(|number| open(&objects, number, &clock)).collect();
        for list in 0..LISTS {
            let name = list_name(list);
            let server = &servers[group_of(&name, GROUPS) as usize];
            let operations = vec![Operation::Create { name, may_exist: false }];
            server.store.commit(Transaction { operations, ..Transaction::default() }).expect("created");
        }
        let clients = (0..CLIENTS as u64).map(Client::new).collect();
        Simulation {
            objects,
            clock,
            servers,
            clients,
            network: Vec::new(),
            replies: Replies::default(),
            history: Vec::new(),
            time: 0,
            last_number: 1000,
            random: Random::new(seed),
            permissions: Arc::new(Permissions::all()),
            bug,
            seen: BTreeMap::new(),
        }
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn step(&mut self) {
        self.time += 1;
        self.clock.advance_ms(1);
        match self.random.below(20) {
            0..=5 => self.deliver_request(),
            6..=11 => self.deliver_reply(),
            12..=14 => {
                let number = self.random.below(GROUPS as usize);
                self.servers[number].store.commit_pending();
            }
            15 if self.random.one_in(20) => {
                let number = self.random.below(GROUPS as usize);
                self.servers[number] = open(&self.objects, number as u32, &self.clock);
            }
            16 if self.random.one_in(15) => {
                let index = self.random.below(CLIENTS);
                self.die(index);
            }
            17 if self.random.one_in(10) => self.forge(),
            _ => {
                let index = self.random.below(CLIENTS);
                self.act(index);
            }
        }
    }

    fn deliver_request(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let index = self.random.below(self.network.len());
        let is_kept = self.random.one_in(8);
        let (number, client, to, bytes) = match is_kept {
            true => self.network[index].clone(),
            false => self.network.swap_remove(index),
        };
        if !is_kept && self.random.one_in(15) {
            return;
        }
        let replies = self.replies.clone();
        let replied = Box::new(move |bytes| replies.lock().unwrap().push((number, bytes)));
        let (sessions, permissions) = (&self.servers[to as usize].sessions, self.permissions.clone());
        sessions.execute(ClientId(client), &permissions, &bytes, MESSAGE_BYTES_MAX, replied);
    }

    fn deliver_reply(&mut self) {
        let mut replies = self.replies.lock().unwrap();
        if replies.is_empty() {
            return;
        }
        let index = self.random.below(replies.len());
        let (number, bytes) = replies.swap_remove(index);
        drop(replies);
        if self.random.one_in(15) {
            return;
        }
        let reply: Reply = decode(&bytes).expect("a reply");
        let kind = match &reply {
            Reply::Refused(Refusal::Locked { .. }) => "locked",
            Reply::Refused(Refusal::Aborted) => "aborted",
            Reply::Refused(Refusal::Conflict(_)) => "conflict",
            Reply::Joint(JointReply::Prepared { .. }) => "prepared",
            Reply::Joint(JointReply::Applied { .. }) => "applied",
            Reply::Joint(JointReply::Latest(_)) => "compared",
            Reply::Joint(JointReply::Decided { decision, .. }) => match decision.outcome {
                Decided::Committed => "committed",
                Decided::Aborted => "resolved",
            },
            _ => "other",
        };
        *self.seen.entry(kind).or_default() += 1;
        for client in &mut self.clients {
            if let Some((from, _)) = client.calls.sent.remove(&number) {
                client.calls.replies.insert(from, reply);
                return;
            }
        }
    }

    /// Replaces a client that dies by a new client.
    fn die(&mut self, index: usize) {
        let outcome = match self.clients[index].has_sent {
            true => Outcome::Unknown,
            false => Outcome::Refused,
        };
        self.end(index, outcome);
        let id = self.number();
        self.clients[index] = Client::new(id);
    }

    /// Adds the transaction of a client to the history.
    fn end(&mut self, index: usize, outcome: Outcome) {
        let client = &mut self.clients[index];
        let operations = std::mem::take(&mut client.operations);
        if !std::mem::replace(&mut client.is_reported, false) && !operations.is_empty() {
            self.history.push(HistoryTransaction {
                begun: client.begun,
                ended: self.time,
                outcome,
                operations,
            });
        }
        (client.state, client.calls, client.has_sent) = (State::Idle, Calls::default(), false);
        client.reads.clear();
    }

    /// Returns the content of a blob as it was before the joint transactions that are prepared.
    fn old_value(&mut self, to: u32, coordinator: u32, name: &[u8]) -> Vec<u8> {
        let copy = MemoryObjects::new();
        for object in self.objects.names() {
            let content = self.objects.change(&object, |found| {
                let found = found.clone();
                let created = quell_rados::Objects::write(
                    &copy,
                    &object,
                    &quell_rados::Write::new().create_exclusive().write_full(&found.content),
                );
                created.expect("copied");
                copy.change(&object, |new| *new = found);
            });
            assert!(content);
        }
        let server = open(&copy, to, &self.clock);
        let Reply::Joint(JointReply::Undecided(found)) =
            call(&server, &Request::Joint(JointRequest::Undecided))
        else {
            panic!("no list");
        };
        for (id, _) in found {
            for coordinator in [coordinator, 0, 1, 2] {
                let decision = forged(id, coordinator);
                call(&server, &Request::Joint(JointRequest::Apply(decision)));
            }
        }
        match call(
            &server,
            &Request::Read {
                state: ReadState { snapshot: None, draft: Draft::Inline(Vec::new()) },
                name: name.to_vec(),
                offset: 0,
                length_bytes: 1 << 20,
            },
        ) {
            Reply::Data(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a decision that no coordinator has made, about a transaction of another client.
    fn forge(&mut self) {
        let to = self.random.below(GROUPS as usize);
        let Reply::Joint(JointReply::Undecided(found)) =
            call(&self.servers[to], &Request::Joint(JointRequest::Undecided))
        else {
            panic!("no list");
        };
        let Some((id, coordinator)) = found.first().copied().filter(|(_, of)| *of != to as u32) else {
            return;
        };
        let decision = match self.bug {
            Bug::ForgedDecisions => forged(id, coordinator),
            _ => JointDecision { id, coordinator, outcome: Decided::Aborted, proof: Proof([1; 32]) },
        };
        let reply = call(&self.servers[to], &Request::Joint(JointRequest::Apply(decision)));
        let is_refused = matches!(reply, Reply::Failed(_));
        assert_eq!(is_refused, self.bug != Bug::ForgedDecisions, "{reply:?}");
    }

    /// Returns the problems that a check of all groups finds.
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let check = |group| {
            let objects = Arc::new(self.objects.clone());
            let checked =
                rados::check(objects, (group, GROUPS), false, &mut |problem| problems.push(problem));
            checked.expect("checked").1
        };
        let records: Vec<_> = (0..GROUPS).map(check).collect();
        compare_joint_records(&records, &mut |problem| problems.push(problem));
        problems
    }

    /// Ends all transactions, reads all lists from new servers, and checks the history.
    fn finish(mut self) -> Result<BTreeMap<&'static str, usize>, String> {
        (0..CLIENTS).for_each(|index| self.die(index));
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(format!("{problems:?}"));
        }
        self.servers = (0..GROUPS).map(|number| open(&self.objects, number, &self.clock)).collect();
        self.time += 1;
        for to in 0..GROUPS {
            let undecided = call(&self.servers[to as usize], &Request::Joint(JointRequest::Undecided));
            let Reply::Joint(JointReply::Undecided(found)) = undecided else { panic!("{undecided:?}") };
            for (id, coordinator) in found {
                let mut joint = JointTransaction::resolve(id, coordinator, to);
                while let Some((group, request)) = joint.requests().into_iter().next() {
                    let reply = call(&self.servers[group as usize], &Request::Joint(request));
                    joint.receive(group, Ok(reply));
                }
            }
        }
        let mut operations = Vec::new();
        let mut all: HashMap<u64, BTreeSet<u64>> = HashMap::new();
        for list in 0..LISTS {
            let server = &self.servers[group_of(&list_name(list), GROUPS) as usize];
            let reply = call(server, &read_request(list, None));
            let Reply::Data(bytes) = reply else { return Err(format!("{reply:?}")) };
            all.insert(list, numbers(&bytes).into_iter().collect());
            operations.push(HistoryOperation::Read(list, numbers(&bytes)));
        }
        let outcome = Outcome::Committed;
        self.history.push(HistoryTransaction { begun: self.time, ended: self.time + 1, outcome, operations });
        for to in 0..GROUPS {
            let undecided = call(&self.servers[to as usize], &Request::Joint(JointRequest::Undecided));
            if undecided != Reply::Joint(JointReply::Undecided(Vec::new())) {
                return Err(format!("not ended: {undecided:?}"));
            }
        }
        for transaction in &self.history {
            let is_visible = |operation: &HistoryOperation| match operation {
                HistoryOperation::Append(list, value) => Some(all[list].contains(value)),
                _ => None,
            };
            let visible: BTreeSet<bool> = transaction.operations.iter().filter_map(is_visible).collect();
            if visible.len() > 1 {
                return Err(format!("a part is visible: {transaction:?}"));
            }
        }
        check_strict_serializability(&self.history)?;
        for outcome in [Outcome::Committed, Outcome::Refused, Outcome::Unknown] {
            let kind = match outcome {
                Outcome::Committed => "ended: committed",
                Outcome::Refused => "ended: refused",
                Outcome::Unknown => "ended: unknown",
            };
            let count = self.history.iter().filter(|transaction| transaction.outcome == outcome).count();
            self.seen.insert(kind, count);
        }
        Ok(self.seen)
    }
}

/// Returns a decision to abort with the proof of a server that is not the coordinator, but states
/// that it is.
fn forged(id: JointId, coordinator: u32) -> JointDecision {
    let server = open(&MemoryObjects::new(), coordinator, &Arc::default());
    match call(&server, &Request::Joint(JointRequest::Resolve(id))) {
        Reply::Joint(JointReply::Decided { decision, .. }) => decision,
        other => panic!("{other:?}"),
    }
}

fn read_request(list: u64, snapshot: Option<SnapshotId>) -> Request {
    let state = ReadState { snapshot, draft: Draft::Inline(Vec::new()) };
    Request::Read { state, name: list_name(list), offset: 0, length_bytes: 1 << 20 }
}

fn run(seed: u64, bug: Bug) -> Result<BTreeMap<&'static str, usize>, String> {
    let mut simulation = Simulation::new(seed, bug);
    for _ in 0..STEPS {
        simulation.step();
    }
    simulation.finish()
}

/// Returns the seeds of the histories. Their number is the value of `QUELL_HISTORIES`, or 150, and
/// the first seed is the value of `QUELL_SEED`.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse().expect("a number"));
    let first = number("QUELL_SEED").unwrap_or(0);
    first..first + number("QUELL_HISTORIES").unwrap_or(150)
}

#[test]
fn histories_of_several_groups_are_strictly_serializable() {
    let mut total: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in seeds() {
        match run(seed, Bug::None) {
            Ok(seen) => seen.into_iter().for_each(|(kind, count)| *total.entry(kind).or_default() += count),
            Err(violation) => panic!("{violation}\nrepeat it with QUELL_SEED={seed} QUELL_HISTORIES=1"),
        }
    }
    println!("{total:?}");
    // The histories have all kinds of replies and results.
    let least = seeds().count() / 10;
    for kind in ["locked", "aborted", "conflict", "prepared", "applied", "committed", "resolved"] {
        assert!(total.get(kind).copied().unwrap_or(0) >= least, "{kind}: {total:?}");
    }
}

#[test]
fn a_check_of_all_groups_finds_transactions_that_are_committed_in_some() {
    let found = (0..40).filter(|seed| {
        let mut simulation = Simulation::new(*seed, Bug::ForgedDecisions);
        (0..STEPS).for_each(|_| simulation.step());
        let problems = simulation.problems();
        assert!(problems.iter().all(|problem| problem.kind == ProblemKind::HalfCommitted), "{problems:?}");
        !problems.is_empty()
    });
    let found = found.count();
    assert!(found >= 5, "found in {found} of 40 histories");
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::EarlyAcknowledge, Bug::NoReadLocks, Bug::OldValues, Bug::ForgedDecisions] {
        let found = (0..100).filter(|seed| run(*seed, bug).is_err()).count();
        println!("{bug:?} was found in {found} of 100 histories");
        assert!(found >= 5, "{bug:?} was found in {found} of 100 histories");
    }
}
