//! Simulations of a pool with faults. A seed determines the operations of the clients, the delays
//! of messages, and the faults. A simulation that fails prints its seed. `QUELL_SEED` is the first
//! seed, and `QUELL_HISTORIES` the number of seeds.

mod cluster;
mod contents;
mod contents_model;
mod invariants;
mod repetitions;
mod replicas;
mod scenarios;
mod storage;
mod time;
mod workload;

use std::rc::Rc;
use std::time::Duration;

use cluster::Cluster;
use contents::Accesses;
use futures_executor::LocalPool;
use time::SimulationRuntime;
use workload::{Fault, Focus, Shared, run_client, run_faults};

/// The time at which all clients must have ended.
const CLIENTS_END: Duration = Duration::from_secs(400);
/// The longest time of an operation.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The time in which members must complete all work after the last operation.
const QUIET: Duration = Duration::from_secs(180);

/// The size of a simulation.
#[derive(Debug, Clone, Copy)]
struct Shape {
    members: u16,
    clients: usize,
    operations: usize,
    focus: Focus,
    /// The time of the end of the faults, in seconds.
    faults_end_s: u64,
    /// Whether each member has a backup on another daemon.
    replicates: bool,
}

const SHAPE: Shape = Shape {
    members: 3,
    clients: 4,
    operations: 24,
    focus: Focus::Names,
    faults_end_s: 30,
    replicates: false,
};

/// The result of a simulation.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Descriptions of violated rules; empty after a correct run.
    wrong: Vec<String>,
    /// The operations and their results.
    history: String,
    accesses: Accesses,
}

/// Runs the simulation of a seed.
fn simulate(seed: u64, shape: Shape, kinds: &[Fault]) -> Outcome {
    let mut executor = LocalPool::new();
    let runtime = SimulationRuntime::new(seed, &executor);
    let cluster = Cluster::start(&runtime, shape.members, shape.replicates);
    if shape.replicates {
        cluster.keep_backups();
    }
    let faults_end = Duration::from_secs(shape.faults_end_s);
    let shared = Shared::new(shape.focus);
    shared.clients_running.set(shape.clients);
    for _ in 0..shape.clients {
        runtime.spawn(run_client(Rc::clone(&cluster), Rc::clone(&shared), shape.operations));
    }
    runtime.spawn(run_faults(Rc::clone(&cluster), kinds.to_vec(), faults_end));
    runtime.run(&mut executor, faults_end, || false);
    cluster.heal();
    runtime.run(&mut executor, CLIENTS_END, || shared.clients_running.get() == 0);
    let mut wrong = Vec::new();
    if shared.clients_running.get() > 0 {
        wrong.push(format!("{} clients wait forever", shared.clients_running.get()));
    }
    // This also starts the members that have not been started again yet.
    cluster.heal();
    runtime.run(&mut executor, runtime.now() + QUIET, || false);
    // References are dropped if their member cannot be reached for a long time, or if the message
    // that has made them was lost.
    let keeps_references =
        !kinds.iter().any(|kind| matches!(kind, Fault::Loss | Fault::Stop | Fault::Disconnect));
    if keeps_references && shared.lost_files.get() > 0 {
        wrong.push(format!("{} files with references were removed", shared.lost_files.get()));
    }
    // The process that performs an operation can be stopped, too.
    if !kinds.contains(&Fault::Stop) && shared.longest.get() > WAIT_MAX {
        wrong.push(format!("an operation took {:?}", shared.longest.get()));
    }
    wrong.extend(invariants::violations(&cluster));
    // A backup replaces the member within the time in which requests are repeated.
    let knows_results =
        shape.replicates && kinds.iter().all(|kind| matches!(kind, Fault::Fail | Fault::Move));
    if knows_results && shared.unknown.get() > 0 {
        let unknown = shared.unknown.get();
        wrong.push(format!("{unknown} operations of members that did not fail have no known result"));
    }
    if kinds == [Fault::Fail] && cluster.replicas.failures.get() == 0 {
        wrong.push("no daemon has failed".into());
    }
    if kinds == [Fault::Move] && cluster.replicas.moves.get() == 0 {
        wrong.push("no member has moved".into());
    }
    let is_linearizable = shared.history.borrow().is_linearizable();
    let mut history = shared.history.borrow().describe();
    if !is_linearizable {
        wrong.push(format!("no order of the operations explains the results:\n{history}"));
    }
    let contents = shared.contents.borrow();
    wrong.extend(contents.violations());
    history.push_str(&contents.describe());
    Outcome { wrong, history, accesses: contents.accesses }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Simulates `count` seeds with faults of these kinds. Returns the accesses of all simulations.
fn check_seeds(count: u64, shape: Shape, kinds: &[Fault]) -> Accesses {
    let mut accesses = Accesses::default();
    let first = variable("QUELL_SEED").unwrap_or(0);
    for seed in first..first + variable("QUELL_HISTORIES").unwrap_or(count) {
        let Outcome { wrong, accesses: of_seed, .. } = simulate(seed, shape, kinds);
        accesses.add(of_seed);
        assert!(
            wrong.is_empty(),
            "{shape:?}, {kinds:?}:\n{}\nrepeat it with QUELL_SEED={seed} QUELL_HISTORIES=1",
            wrong.join("\n")
        );
    }
    accesses
}

#[test]
fn a_seed_decides_everything() {
    let first = simulate(7, SHAPE, &Fault::ALL);
    assert_eq!(first, simulate(7, SHAPE, &Fault::ALL));
    assert_ne!(first.history, simulate(8, SHAPE, &Fault::ALL).history);
}

#[test]
fn names_are_linearizable_without_faults() {
    check_seeds(20, SHAPE, &[]);
}

#[test]
fn names_are_linearizable_when_members_are_killed_and_started_again() {
    check_seeds(20, SHAPE, &[Fault::Kill]);
}

#[test]
fn operations_end_when_a_member_is_gone() {
    check_seeds(20, Shape { faults_end_s: 150, ..SHAPE }, &[Fault::Gone]);
}

#[test]
fn names_are_linearizable_when_messages_are_lost() {
    check_seeds(20, SHAPE, &[Fault::Loss]);
}

#[test]
fn names_are_linearizable_when_members_are_stopped_or_cut_off() {
    check_seeds(20, SHAPE, &[Fault::Stop, Fault::Disconnect]);
}

#[test]
fn names_are_linearizable_when_disks_are_full_and_clocks_are_moved() {
    check_seeds(20, SHAPE, &[Fault::Full, Fault::Clock]);
}

#[test]
fn names_are_linearizable_with_all_faults() {
    check_seeds(20, SHAPE, &Fault::ALL);
}

#[test]
fn names_are_linearizable_when_daemons_fail_with_their_storage() {
    let shape = Shape { members: 4, faults_end_s: 60, replicates: true, ..SHAPE };
    check_seeds(5, shape, &[]);
    check_seeds(20, shape, &[Fault::Fail]);
    check_seeds(10, shape, &[Fault::Fail, Fault::Loss, Fault::Stop, Fault::Clock]);
    check_seeds(10, Shape { focus: Focus::Dirs, ..shape }, &[Fault::Fail]);
}

#[test]
fn names_are_linearizable_when_members_move_between_daemons() {
    let shape = Shape { members: 4, faults_end_s: 60, replicates: true, ..SHAPE };
    check_seeds(20, shape, &[Fault::Move]);
    check_seeds(10, shape, &[Fault::Move, Fault::Fail]);
    check_seeds(10, shape, &[Fault::Move, Fault::Fail, Fault::Loss, Fault::Stop, Fault::Clock]);
    check_seeds(10, Shape { focus: Focus::Dirs, ..shape }, &[Fault::Move]);
}

#[test]
fn moves_of_directories_make_no_cycles() {
    let shape = Shape { clients: 5, operations: 20, focus: Focus::Dirs, ..SHAPE };
    check_seeds(20, shape, &[]);
    check_seeds(20, shape, &[Fault::Kill]);
    check_seeds(20, shape, &Fault::ALL);
}

#[test]
fn contents_are_linearizable() {
    let shape = Shape { operations: 40, focus: Focus::Contents, ..SHAPE };
    let Accesses { inline_writes, inline_reads, chunk_writes, chunk_reads } = check_seeds(20, shape, &[]);
    let fewest = inline_writes.min(inline_reads).min(chunk_writes).min(chunk_reads);
    assert!(fewest > 0, "not all kinds of accesses were used");
    check_seeds(40, shape, &[Fault::Kill]);
    check_seeds(20, shape, &[Fault::Loss]);
    check_seeds(20, shape, &[Fault::Stop, Fault::Disconnect]);
    check_seeds(20, shape, &[Fault::Full]);
    check_seeds(20, shape, &Fault::ALL);
}

#[test]
fn contents_are_linearizable_when_daemons_fail_or_members_move() {
    let shape = Shape {
        members: 4,
        operations: 40,
        focus: Focus::Contents,
        faults_end_s: 60,
        replicates: true,
        ..SHAPE
    };
    check_seeds(20, shape, &[Fault::Fail]);
    check_seeds(20, shape, &[Fault::Move]);
    check_seeds(10, shape, &[Fault::Move, Fault::Fail, Fault::Loss, Fault::Stop, Fault::Clock]);
}
