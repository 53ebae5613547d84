//! Random histories of servers with leases, on objects in memory. Servers are paused at any point
//! and go on later, they are killed and replaced, and their clocks have different rates. Clients
//! read lists and append to them. The histories are checked for strict serializability, and those
//! with planted bugs must fail, also by porcupine. Each history is determined by its seed.

use std::sync::Arc;
use std::time::Duration;

use quell_kv::{Batch, KeyValue, MemoryStore};
use quell_rados::{
    FaultEffect, Lease, LogOptions, MemoryObjects, Objects, Observed, Observer, RadosStore, Renewal,
    ServerRecord, ServerState, read_server,
};
use quell_testkit::Random;
use quell_testkit::porcupine::Porcupine;
use quell_testkit::serializability::{
    HistoryOperation, HistoryTransaction, Outcome, check_strict_serializability,
};

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A server answers reads after its lease.
    ReadsAfterLease,
    /// A lease begins at the end of a renewal.
    LeaseFromEnd,
    /// A server that takes the store over does not wait for the end of the lease.
    NoWait,
    /// No write of the log compares its guard.
    NoGuards,
}

const BUGS: [Bug; 4] = [Bug::ReadsAfterLease, Bug::LeaseFromEnd, Bug::NoWait, Bug::NoGuards];
const LEASE: Duration = Duration::from_millis(1500);
const LISTS: usize = 2;
const STEPS: usize = 2000;
/// The steps of a history, and the requests in a server, for a search of all orders.
const SEARCHED: (usize, usize) = (300, 2);

/// A monotonic clock with a rate of its own.
#[derive(Debug, Clone, Copy)]
struct ServerClock {
    offset_us: u64,
    /// The rate in thousandths.
    rate: u64,
}

impl ServerClock {
    fn at(self, time_us: u64) -> Duration {
        Duration::from_micros(self.offset_us + time_us * self.rate / 1000)
    }
}

/// A request of a client, as far as the server has executed it.
struct Execution {
    begun: u64,
    operation: HistoryOperation,
    is_executed: bool,
}

enum Phase {
    Watching(Observer),
    Serving(Box<Serving>),
}

struct Serving {
    lease: Lease,
    renewal: Option<Renewal>,
    /// For a planted bug.
    valid_until: Duration,
    store: RadosStore<MemoryStore>,
    executions: Vec<Execution>,
}

struct Server {
    clock: ServerClock,
    objects: Arc<dyn Objects>,
    phase: Phase,
    paused_until_us: u64,
    /// Whether the server replaces another server that is alive.
    replaces: bool,
}

struct Simulation {
    random: Random,
    bug: Bug,
    objects: MemoryObjects,
    servers: Vec<Server>,
    /// The time in microseconds. It is never the same at two events of the history.
    time_us: u64,
    next_value: u64,
    history: Vec<HistoryTransaction>,
    takeovers: usize,
    /// The largest number of requests that a server has at a time.
    requests_max: usize,
}

fn key(list: u64) -> Vec<u8> {
    format!("list {list}").into_bytes()
}

fn read(store: &RadosStore<MemoryStore>, list: u64) -> Vec<u64> {
    let value = store.get(&key(list)).expect("in memory");
    let (numbers, _) = value.as_deref().unwrap_or_default().as_chunks::<8>();
    numbers.iter().map(|number| u64::from_le_bytes(*number)).collect()
}

impl Simulation {
    fn new(seed: u64, bug: Bug) -> Simulation {
        Simulation {
            random: Random::new(seed),
            bug,
            objects: MemoryObjects::new(),
            servers: Vec::new(),
            time_us: 0,
            next_value: 1,
            history: Vec::new(),
            takeovers: 0,
            requests_max: usize::MAX,
        }
    }

    fn add_server(&mut self) {
        let mut random = Random::new(self.random.number());
        let faults_of_32 = *self.random.pick(&[0, 0, 1, 3]);
        let has_guards = self.bug != Bug::NoGuards;
        let objects = self.objects.with_faults(Box::new(move |operation, object| {
            if random.below(32) >= faults_of_32 {
                let is_guarded = has_guards || object.ends_with(".server");
                return if is_guarded { FaultEffect::Performed } else { FaultEffect::Unguarded };
            }
            // Writes of the log are never late here: tests/histories.rs has those.
            match random.below(3) {
                0 if operation == "write" && object.ends_with(".server") => FaultEffect::Late,
                _ => FaultEffect::ResultLost,
            }
        }));
        let rate = 900 + self.random.below(201) as u64;
        self.servers.push(Server {
            clock: ServerClock { offset_us: 1 + self.random.below(1_000_000) as u64, rate },
            objects: Arc::new(objects),
            phase: Phase::Watching(Observer::new()),
            paused_until_us: 0,
            replaces: self.random.one_in(4),
        });
    }

    fn end(&mut self, execution: Execution, outcome: Outcome) {
        let Execution { begun, operation, .. } = execution;
        let ended = self.time_us;
        self.history.push(HistoryTransaction { begun, ended, outcome, operations: vec![operation] });
    }

    /// Ends a server. Clients get no results of its requests.
    fn kill(&mut self, index: usize) {
        if let Phase::Serving(serving) = self.servers.swap_remove(index).phase {
            for execution in serving.executions {
                if matches!(execution.operation, HistoryOperation::Append(..)) {
                    self.end(execution, Outcome::Unknown);
                }
            }
        }
    }

    /// Lets a server that watches read the record, and take the store over if it is free.
    fn watch(&mut self, index: usize) {
        let now = self.now(index);
        let bug = self.bug;
        let server = &mut self.servers[index];
        let Phase::Watching(observer) = &mut server.phase else { return };
        let Ok(found) = read_server(&*server.objects, "test") else { return };
        let mut is_free = observer.observe(found.clone(), now, now) == Observed::Free;
        if !is_free && !server.replaces && bug != Bug::NoWait {
            return;
        }
        is_free |= bug == Bug::NoWait;
        let objects = server.objects.clone();
        let parameters = ([index as u8; 16].map(|byte| byte ^ self.next_value as u8), LEASE);
        self.next_value += 1;
        let Ok(lease) = Lease::take(objects.clone(), "test", found.as_ref(), is_free, parameters, &|| now)
        else {
            return;
        };
        match RadosStore::open(objects, "test", MemoryStore::new(), &LogOptions::default()) {
            Ok(store) => {
                let valid_until = lease.validity().1;
                let executions = Vec::new();
                let serving = Serving { lease, renewal: None, valid_until, store, executions };
                server.phase = Phase::Serving(Box::new(serving));
                self.takeovers += 1;
            }
            Err(_) => self.kill(index),
        }
    }

    fn now(&self, index: usize) -> Duration {
        self.servers[index].clock.at(self.time_us)
    }

    /// Begins a renewal, or takes its result.
    fn renew(&mut self, index: usize) {
        let now = self.now(index);
        let bug = self.bug;
        let Phase::Serving(serving) = &mut self.servers[index].phase else { return };
        match serving.renewal.take() {
            None => serving.renewal = Some(serving.lease.begin(now, ServerState::Serving, "", false)),
            Some(renewal) => match serving.lease.finish(renewal) {
                Ok(()) if bug == Bug::LeaseFromEnd => serving.valid_until = now + LEASE,
                Ok(()) => serving.valid_until = serving.lease.validity().1,
                Err(error) if quell_rados::Replaced::of(&error).is_some() => self.kill(index),
                Err(_) => {}
            },
        }
    }

    fn request(&mut self, index: usize) {
        let is_append = self.random.one_in(2);
        let list = self.random.below(LISTS) as u64;
        let (value, begun) = (self.next_value, self.time_us);
        self.next_value += 1;
        let operation = match is_append {
            true => HistoryOperation::Append(list, value),
            false => HistoryOperation::Read(list, Vec::new()),
        };
        if let Phase::Serving(serving) = &mut self.servers[index].phase
            && serving.executions.len() < self.requests_max
        {
            serving.executions.push(Execution { begun, operation, is_executed: false });
        }
    }

    /// Executes a request, or sends its reply.
    fn execute(&mut self, index: usize) {
        let (now, bug) = (self.now(index), self.bug);
        let Phase::Serving(serving) = &mut self.servers[index].phase else { return };
        if serving.executions.is_empty() {
            return;
        }
        let (from, until) = (serving.lease.validity().0, serving.valid_until);
        let is_valid = from <= now && now < until;
        let position = self.random.below(serving.executions.len());
        let execution = &mut serving.executions[position];
        if !execution.is_executed {
            execution.is_executed = true;
            let has_failed = match &mut execution.operation {
                HistoryOperation::Read(list, values) => {
                    *values = read(&serving.store, *list);
                    false
                }
                HistoryOperation::Append(list, value) => {
                    let mut values = read(&serving.store, *list);
                    values.push(*value);
                    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    let mut batch = Batch::new();
                    batch.put(&key(*list), &bytes);
                    serving.store.commit(batch).is_err()
                }
                other => unreachable!("clients only append and read: {other:?}"),
            };
            // A server ends after a failed write.
            if has_failed {
                self.kill(index);
            }
            return;
        }
        let is_read = matches!(execution.operation, HistoryOperation::Read(..));
        if is_valid || (bug == Bug::ReadsAfterLease && is_read) {
            let execution = serving.executions.swap_remove(position);
            self.end(execution, Outcome::Committed);
        }
    }

    fn step(&mut self) {
        self.time_us += 1 + self.random.below(30_000) as u64;
        if self.servers.len() < 3 && self.random.one_in(20) {
            self.add_server();
        }
        if self.objects.late() > 0 && self.random.one_in(8) {
            let index = self.random.below(self.objects.late());
            self.objects.perform_late(index);
        }
        if self.servers.is_empty() {
            return;
        }
        let index = self.random.below(self.servers.len());
        if self.servers[index].paused_until_us > self.time_us {
            return;
        }
        match self.random.below(100) {
            0 => self.kill(index),
            // The equivalent of SIGSTOP, and later SIGCONT.
            1..4 => {
                let limit_us = *self.random.pick(&[1_000_000, 6_000_000]);
                let pause = self.random.below(limit_us) as u64;
                self.servers[index].paused_until_us = self.time_us + pause;
            }
            _ if matches!(self.servers[index].phase, Phase::Watching(_)) => self.watch(index),
            4..16 => self.renew(index),
            16..50 => self.request(index),
            _ => self.execute(index),
        }
    }

    /// Ends all servers, reads all lists in a new one, and returns the history and the number of
    /// takeovers.
    fn finish(mut self) -> (Vec<HistoryTransaction>, usize) {
        while !self.servers.is_empty() {
            self.kill(0);
        }
        let objects: Arc<dyn Objects> = Arc::new(self.objects.clone());
        let store = RadosStore::open(objects, "test", MemoryStore::new(), &LogOptions::default());
        let list = |list: u64| match &store {
            Ok(store) => read(store, list),
            // Only a planted bug damages the log.
            Err(error) => {
                assert_eq!(self.bug, Bug::NoGuards, "{error}");
                Vec::new()
            }
        };
        let operations = (0..LISTS as u64).map(|number| HistoryOperation::Read(number, list(number)));
        let operations = operations.collect();
        let (begun, ended) = (self.time_us + 1, self.time_us + 2);
        self.history.push(HistoryTransaction { begun, ended, outcome: Outcome::Committed, operations });
        (self.history, self.takeovers)
    }
}

/// Returns the history of a seed, and the number of takeovers.
fn run(seed: u64, bug: Bug) -> (Vec<HistoryTransaction>, usize) {
    let mut simulation = Simulation::new(seed, bug);
    for _ in 0..STEPS {
        simulation.step();
    }
    simulation.finish()
}

/// Returns a history of few steps and requests, whose orders can all be searched.
fn run_briefly(seed: u64, bug: Bug) -> Vec<HistoryTransaction> {
    let (steps, requests_max) = SEARCHED;
    let mut simulation = Simulation { requests_max, ..Simulation::new(seed, bug) };
    for _ in 0..steps {
        simulation.step();
    }
    simulation.finish().0
}

#[test]
fn no_server_answers_with_an_old_state() {
    let variable =
        |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (first, count) = (variable("QUELL_SEED", 0), variable("QUELL_HISTORIES", 300));
    let (mut requests, mut takeovers) = (0, 0);
    for seed in first..first + count {
        let (history, own_takeovers) = run(seed, Bug::None);
        check_strict_serializability(&history)
            .unwrap_or_else(|error| panic!("{error}\nrepeat it with QUELL_SEED={seed} QUELL_HISTORIES=1"));
        requests += history.len();
        takeovers += own_takeovers;
    }
    println!("{count} histories: {requests} requests, {takeovers} takeovers");
    assert!(count < 50 || (requests as u64 > count * 50 && takeovers as u64 > count * 3));
}

#[test]
fn planted_bugs_are_found() {
    for bug in BUGS {
        let is_violation = |seed: &u64| check_strict_serializability(&run(*seed, bug).0).is_err();
        let found = (0..200).filter(is_violation).count();
        println!("{bug:?}: found in {found} of 200 histories");
        assert!(found >= 5, "{bug:?} was found in {found} of 200 histories");
    }
}

#[test]
fn porcupine_finds_the_planted_bugs_and_no_others() {
    let Some(porcupine) = Porcupine::find() else { return };
    for bug in BUGS.into_iter().chain([Bug::None]) {
        let histories: Vec<_> = (0..1000).map(|seed| run_briefly(seed, bug)).collect();
        let results = porcupine.check(&histories);
        for (seed, (history, is_accepted)) in histories.iter().zip(&results).enumerate() {
            let found = check_strict_serializability(history);
            assert_eq!(found.is_ok(), *is_accepted, "{bug:?}, seed {seed}: {found:?}");
        }
        let found = results.iter().filter(|is_accepted| !**is_accepted).count();
        println!("{bug:?}: found in {found} of 1,000 histories");
        assert_eq!(found >= 2, bug != Bug::None, "{bug:?} was found in {found} of 1,000 histories");
    }
}

/// A record of another server, which has the state `Serving`.
fn record(term: u64, renewal: u64) -> ServerRecord {
    let (state, address) = (ServerState::Serving, "a:1".to_owned());
    ServerRecord { term, renewal, owner: [1; 16], lease: LEASE, state, is_encrypted: false, address }
}

#[test]
fn a_server_is_regarded_as_dead_only_after_its_lease() {
    let ms = Duration::from_millis;
    let mut observer = Observer::new();
    assert_eq!(Observer::new().observe(None, ms(0), ms(1)), Observed::Free);
    assert_eq!(observer.observe(Some(record(1, 1)), ms(0), ms(1)), Observed::Unknown);
    assert_eq!(observer.observe(Some(record(1, 1)), ms(1875), ms(1876)), Observed::Unknown);
    assert_eq!(observer.observe(Some(record(1, 1)), ms(1876), ms(1877)), Observed::Free);
    assert_eq!(observer.observe(Some(record(1, 2)), ms(1900), ms(1901)), Observed::Alive);
    assert_eq!(observer.observe(Some(record(1, 2)), ms(3700), ms(3701)), Observed::Unknown);
    // A read that took long: the cluster may have delayed the renewals also.
    assert_eq!(observer.observe(Some(record(1, 2)), ms(3710), ms(5000)), Observed::Unknown);
    assert_eq!(observer.observe(Some(record(1, 2)), ms(5100), ms(5101)), Observed::Unknown);
    assert_eq!(observer.observe(Some(record(1, 2)), ms(6875), ms(6876)), Observed::Free);
    let ended = ServerRecord { state: ServerState::Ended, ..record(2, 0) };
    assert_eq!(observer.observe(Some(ended), ms(6900), ms(6901)), Observed::Free);
}

#[test]
fn of_two_servers_that_take_the_lease_one_gets_it() {
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let now = || Duration::from_secs(1);
    let take = |found: Option<&ServerRecord>, owner: u8| {
        Lease::take(objects.clone(), "test", found, true, ([owner; 16], LEASE), &now)
    };
    let mut first = take(None, 1).expect("taken");
    assert_eq!(take(None, 2).expect_err("taken by the first").kind, quell_vfs::ErrorKind::Busy);
    let found = read_server(&*objects, "test").expect("read").expect("a record");
    let second = take(Some(&found), 2).expect("taken");
    assert_eq!((first.term(), second.term()), (1, 2));
    let renewal = first.begin(now(), ServerState::Serving, "a:1", false);
    let replaced = first.finish(renewal).expect_err("replaced");
    assert_eq!(quell_rados::Replaced::of(&replaced).map(|replaced| replaced.epoch), Some(2));
}
