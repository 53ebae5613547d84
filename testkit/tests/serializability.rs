//! The checkers of histories find each kind of anomaly, and agree with a search of all orders.

use std::collections::{BTreeMap, HashSet};

use quell_testkit::Random;
use quell_testkit::porcupine::Porcupine;
use quell_testkit::serializability::HistoryOperation::{Append, Read, ReadRegister, Write};
use quell_testkit::serializability::{
    HistoryOperation, HistoryTransaction, Outcome, check_strict_serializability,
};

const LISTS: [u64; 2] = [1, 2];
const REGISTERS: [u64; 2] = [3, 4];

fn transaction(begun: u64, ended: u64, operations: Vec<HistoryOperation>) -> HistoryTransaction {
    HistoryTransaction { begun, ended, outcome: Outcome::Committed, operations }
}

fn with_outcome(outcome: Outcome, transaction: HistoryTransaction) -> HistoryTransaction {
    HistoryTransaction { outcome, ..transaction }
}

/// Adds a read of all lists and registers.
fn ended(mut history: Vec<HistoryTransaction>, state: &State) -> Vec<HistoryTransaction> {
    let mut operations: Vec<HistoryOperation> =
        LISTS.iter().map(|list| Read(*list, state.list(*list))).collect();
    operations.extend(REGISTERS.iter().map(|register| ReadRegister(*register, state.register(*register))));
    history.push(transaction(1000, 1001, operations));
    history
}

/// The content of lists and registers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct State {
    lists: BTreeMap<u64, Vec<u64>>,
    registers: BTreeMap<u64, u64>,
}

impl State {
    fn lists(first: &[u64], second: &[u64]) -> State {
        State { lists: [(1, first.to_vec()), (2, second.to_vec())].into(), ..State::default() }
    }

    fn registers(first: u64, second: u64) -> State {
        State { registers: [(3, first), (4, second)].into(), ..State::default() }
    }

    fn list(&self, list: u64) -> Vec<u64> {
        self.lists.get(&list).cloned().unwrap_or_default()
    }

    fn register(&self, register: u64) -> Option<u64> {
        self.registers.get(&register).copied().filter(|value| *value != 0)
    }

    /// Performs a transaction, and returns whether its reads have found this state.
    fn perform(&mut self, operations: &[HistoryOperation]) -> bool {
        operations.iter().all(|operation| match operation {
            Append(list, value) => {
                self.lists.entry(*list).or_default().push(*value);
                true
            }
            Read(list, values) => self.list(*list) == *values,
            Write(register, value) => {
                self.registers.insert(*register, *value);
                true
            }
            ReadRegister(register, value) => self.register(*register) == *value,
        })
    }
}

/// Tries all orders of the transactions.
fn has_an_order(history: &[HistoryTransaction]) -> bool {
    let mut examined = HashSet::new();
    let mut waiting = vec![(0_u64, State::default())];
    while let Some((done, state)) = waiting.pop() {
        let left = |outcome| {
            let of = move |(number, t): &(usize, &HistoryTransaction)| {
                done & (1 << number) == 0 && t.outcome == outcome
            };
            history.iter().enumerate().filter(of)
        };
        let Some(first_end) = left(Outcome::Committed).map(|(_, t)| t.ended).min() else { return true };
        for (number, next) in left(Outcome::Committed).chain(left(Outcome::Unknown)) {
            let mut after = state.clone();
            if next.begun <= first_end && after.perform(&next.operations) {
                let reached = (done | 1 << number, after);
                if examined.insert(reached.clone()) {
                    waiting.push(reached);
                }
            }
        }
    }
    false
}

/// Histories with one anomaly each, and a part of the message of the checker.
fn anomalies() -> Vec<(&'static str, Vec<HistoryTransaction>)> {
    let all = |operations| transaction(0, 9, operations);
    let append = |begun, list, value| transaction(begun, begun + 1, vec![Append(list, value)]);
    let write = |begun, register, value| transaction(begun, begun + 1, vec![Write(register, value)]);
    let (lists, registers) = (State::lists, State::registers);
    let update = |value| all(vec![Read(1, vec![]), Append(1, value)]);
    let skew = |read, list, value| all(vec![Read(read, vec![]), Append(list, value)]);
    let change = |before, value| all(vec![ReadRegister(3, before), Write(3, value)]);
    let register_skew = |read, register, value| all(vec![ReadRegister(read, None), Write(register, value)]);
    vec![
        ("is lost", ended(vec![append(0, 1, 10)], &lists(&[], &[]))),
        ("twice", ended(vec![append(0, 1, 10)], &lists(&[10, 10], &[]))),
        ("not appended", ended(vec![append(0, 1, 10)], &lists(&[10, 99], &[]))),
        ("another list", ended(vec![append(0, 1, 10)], &lists(&[], &[10]))),
        ("G1a", ended(vec![with_outcome(Outcome::Refused, append(0, 1, 10))], &lists(&[10], &[]))),
        (
            "without 20",
            ended(
                vec![with_outcome(Outcome::Unknown, all(vec![Append(1, 10), Append(2, 20)]))],
                &lists(&[10], &[]),
            ),
        ),
        // Appends of two transactions in different orders.
        (
            "G0:",
            ended(
                vec![all(vec![Append(1, 10), Append(2, 20)]), all(vec![Append(1, 11), Append(2, 21)])],
                &lists(&[10, 11], &[21, 20]),
            ),
        ),
        ("G0-realtime", ended(vec![append(0, 1, 10), append(5, 1, 11)], &lists(&[11, 10], &[]))),
        // Each of two transactions has read the append of the other one.
        (
            "G1c:",
            ended(
                vec![
                    all(vec![Append(1, 10), Read(2, vec![20])]),
                    all(vec![Append(2, 20), Read(1, vec![10])]),
                ],
                &lists(&[10], &[20]),
            ),
        ),
        (
            "G1c-realtime",
            ended(vec![transaction(0, 1, vec![Read(1, vec![10])]), append(5, 1, 10)], &lists(&[10], &[])),
        ),
        // A read between two appends of one transaction.
        (
            "G1b",
            ended(
                vec![all(vec![Append(1, 10), Append(1, 11)]), all(vec![Read(1, vec![10])])],
                &lists(&[10, 11], &[]),
            ),
        ),
        // A lost update: both have read the empty list.
        ("G-single:", ended(vec![update(10), update(11)], &lists(&[10, 11], &[]))),
        // A read that does not correspond to one state.
        (
            "G-single:",
            ended(
                vec![all(vec![Append(1, 10), Append(2, 20)]), all(vec![Read(1, vec![10]), Read(2, vec![])])],
                &lists(&[10], &[20]),
            ),
        ),
        // A read that misses a transaction that had ended before.
        (
            "G-single-realtime",
            ended(vec![append(0, 1, 10), transaction(5, 6, vec![Read(1, vec![])])], &lists(&[10], &[])),
        ),
        // Write skew: each has read the list that the other one appends to.
        ("G2:", ended(vec![skew(1, 2, 20), skew(2, 1, 10)], &lists(&[10], &[20]))),
        // Two reads of concurrent appends in different orders.
        (
            "G2:",
            ended(
                vec![
                    all(vec![Append(1, 10)]),
                    all(vec![Append(2, 20)]),
                    all(vec![Read(1, vec![10]), Read(2, vec![])]),
                    all(vec![Read(1, vec![]), Read(2, vec![20])]),
                ],
                &lists(&[10], &[20]),
            ),
        ),
        // The same, and the order in real time instead of one of the reads.
        (
            "G2-realtime",
            ended(
                vec![
                    transaction(0, 1, vec![Read(1, vec![])]),
                    transaction(2, 9, vec![Read(2, vec![]), Append(1, 10)]),
                    transaction(2, 3, vec![Append(2, 20)]),
                    transaction(4, 9, vec![Read(1, vec![])]),
                ],
                &lists(&[10], &[20]),
            ),
        ),
        ("in another order", ended(vec![all(vec![Append(1, 10), Append(1, 11)])], &lists(&[11, 10], &[]))),
        ("was read as", {
            let one = all(vec![Read(1, vec![11])]);
            ended(vec![append(0, 1, 10), append(0, 1, 11), one], &lists(&[10, 11], &[]))
        }),
        ("transaction 0 read", ended(vec![all(vec![Append(1, 10), Read(1, vec![])])], &lists(&[10], &[]))),
        // Registers: a lost write, and one that takes effect again.
        ("cycle", ended(vec![write(0, 3, 10), write(5, 3, 11)], &registers(10, 0))),
        ("cycle", ended(vec![write(0, 3, 10)], &registers(0, 0))),
        ("not written", ended(vec![write(0, 3, 10)], &registers(99, 0))),
        ("another register", ended(vec![write(0, 3, 10)], &registers(0, 10))),
        ("G1a", ended(vec![with_outcome(Outcome::Refused, write(0, 3, 10))], &registers(10, 0))),
        (
            "G1b",
            ended(
                vec![all(vec![Write(3, 10), Write(3, 11)]), all(vec![ReadRegister(3, Some(10))])],
                &registers(11, 0),
            ),
        ),
        (
            "G1c:",
            ended(
                vec![
                    all(vec![Write(3, 10), ReadRegister(4, Some(20))]),
                    all(vec![Write(4, 20), ReadRegister(3, Some(10))]),
                ],
                &registers(10, 20),
            ),
        ),
        ("G-single", ended(vec![change(None, 10), change(None, 11)], &registers(11, 0))),
        (
            "cycle",
            ended(vec![write(0, 3, 10), transaction(5, 6, vec![ReadRegister(3, None)])], &registers(10, 0)),
        ),
        ("G2:", ended(vec![register_skew(3, 4, 20), register_skew(4, 3, 10)], &registers(10, 20))),
        (
            "transaction 0 read",
            ended(vec![all(vec![Write(3, 10), ReadRegister(3, None)])], &registers(10, 0)),
        ),
        // A list and a register in one transaction, of which a read shows one.
        (
            "G-single:",
            ended(
                vec![
                    all(vec![Append(1, 10), Write(3, 30)]),
                    all(vec![Read(1, vec![10]), ReadRegister(3, None)]),
                ],
                &State { registers: [(3, 30)].into(), ..lists(&[10], &[]) },
            ),
        ),
        (
            "without 10",
            ended(
                vec![with_outcome(Outcome::Unknown, all(vec![Append(1, 10), Write(3, 30)]))],
                &State { registers: [(3, 30)].into(), ..lists(&[], &[]) },
            ),
        ),
    ]
}

#[test]
fn each_anomaly_is_found() {
    for (expected, history) in anomalies() {
        let found = check_strict_serializability(&history).expect_err(expected);
        assert!(found.contains(expected), "{expected}: {found}");
        assert!(!has_an_order(&history), "{expected}");
    }
}

#[test]
fn porcupine_finds_each_anomaly() {
    let Some(porcupine) = Porcupine::find() else { return };
    let (names, histories): (Vec<_>, Vec<_>) = anomalies().into_iter().unzip();
    for (name, is_accepted) in names.iter().zip(porcupine.check(&histories)) {
        assert!(!is_accepted, "{name}");
    }
}

#[test]
fn serial_and_concurrent_histories_are_accepted() {
    let all = |operations| transaction(0, 9, operations);
    let unknown = with_outcome(Outcome::Unknown, transaction(0, 1, vec![Append(1, 10), Append(2, 20)]));
    let histories = [
        ended(
            vec![
                transaction(0, 1, vec![Append(1, 10), Append(2, 20), Write(3, 30)]),
                transaction(
                    2,
                    3,
                    vec![Read(1, vec![10]), Append(1, 11), Read(1, vec![10, 11]), Write(3, 31)],
                ),
                transaction(
                    4,
                    5,
                    vec![Read(1, vec![10, 11]), Read(2, vec![20]), ReadRegister(3, Some(31)), Write(4, 40)],
                ),
            ],
            &State { registers: [(3, 31), (4, 40)].into(), ..State::lists(&[10, 11], &[20]) },
        ),
        // Of concurrent transactions, each order is allowed.
        ended(
            vec![
                all(vec![Append(1, 10)]),
                all(vec![Read(1, vec![]), Append(2, 20)]),
                all(vec![Read(1, vec![10]), Read(2, vec![20])]),
            ],
            &State::lists(&[10], &[20]),
        ),
        ended(vec![unknown.clone()], &State::lists(&[10], &[20])),
        ended(vec![unknown], &State::lists(&[], &[])),
        // The write of an unknown result takes effect after the end of its client.
        ended(
            vec![
                with_outcome(Outcome::Unknown, transaction(0, 1, vec![Write(3, 10)])),
                transaction(2, 3, vec![ReadRegister(3, None)]),
                transaction(4, 5, vec![ReadRegister(3, Some(10)), Write(3, 11)]),
            ],
            &State::registers(11, 0),
        ),
    ];
    for history in &histories {
        assert_eq!(check_strict_serializability(history), Ok(()));
        assert!(has_an_order(history));
    }
    if let Some(program) = std::env::var_os("QUELL_PORCUPINE").and(Porcupine::find()) {
        assert_eq!(program.check(&histories), [true; 5]);
    }
}

/// Returns a short serial history with changes in some places: the values that a transaction has
/// read, its times, and its result.
fn random_history(random: &mut Random, has_registers: bool) -> Vec<HistoryTransaction> {
    let (mut state, mut value, mut history) = (State::default(), 10, Vec::new());
    let mut states = vec![state.clone()];
    let count = 2 + random.below(5);
    for position in 0..count {
        // Some reads are of an older state.
        let seen = match random.one_in(2) {
            true => random.pick(&states).clone(),
            false => state.clone(),
        };
        let mut own = State::default();
        let mut operations = Vec::new();
        for _ in 0..1 + random.below(3) {
            let (list, register) = (*random.pick(&LISTS), *random.pick(&REGISTERS));
            value += 1;
            match random.below(if has_registers { 4 } else { 2 }) {
                0 => {
                    state.lists.entry(list).or_default().push(value);
                    own.lists.entry(list).or_default().push(value);
                    operations.push(Append(list, value));
                }
                1 => operations.push(Read(list, [seen.list(list), own.list(list)].concat())),
                2 => {
                    state.registers.insert(register, value);
                    own.registers.insert(register, value);
                    operations.push(Write(register, value));
                }
                _ => {
                    let found = own.register(register).or(seen.register(register));
                    operations.push(ReadRegister(register, found));
                }
            }
        }
        let begun = (position * 10).saturating_sub(random.below(12)) as u64;
        let ended = (position * 10 + 1 + random.below(12)) as u64;
        let mut outcome = Outcome::Committed;
        if random.one_in(6) {
            outcome = if random.one_in(3) { Outcome::Refused } else { Outcome::Unknown };
            if random.one_in(2) {
                // The transaction had no effect.
                state = states.last().expect("the initial state").clone();
            }
            operations.retain(|operation| matches!(operation, Append(..) | Write(..)));
        }
        states.push(state.clone());
        history.push(with_outcome(outcome, transaction(begun, ended.max(begun), operations)));
    }
    if random.one_in(4) {
        let lost = &mut state.lists.entry(*random.pick(&LISTS)).or_default();
        if lost.len() > 1 {
            lost.swap(0, 1);
        }
    }
    ended(history, &state)
}

/// Returns random histories.
fn random_histories(count: usize, has_registers: bool) -> Vec<Vec<HistoryTransaction>> {
    let mut random = Random::new(u64::from(has_registers));
    (0..count).map(|_| random_history(&mut random, has_registers)).collect()
}

#[test]
fn of_lists_the_checker_finds_exactly_the_violations() {
    let mut violations = 0;
    for history in random_histories(20_000, false) {
        let (found, expected) = (check_strict_serializability(&history), has_an_order(&history));
        assert_eq!(found.is_ok(), expected, "{found:?}: {history:#?}");
        violations += usize::from(!expected);
    }
    assert!((3_000..17_000).contains(&violations), "{violations} of 20,000 histories are violations");
}

#[test]
fn of_registers_the_checker_finds_only_violations_and_most_of_them() {
    let (mut violations, mut found) = (0, 0);
    for history in random_histories(20_000, true) {
        let (result, has_order) = (check_strict_serializability(&history), has_an_order(&history));
        assert!(result.is_ok() || !has_order, "{result:?}: {history:#?}");
        violations += usize::from(!has_order);
        found += usize::from(result.is_err());
    }
    println!("{found} of {violations} violations in 20,000 histories were found");
    assert!((3_000..17_000).contains(&violations), "{violations} of 20,000 histories are violations");
    assert!(found * 100 >= violations * 95, "only {found} of {violations} violations were found");
}

#[test]
fn porcupine_finds_exactly_the_violations() {
    let Some(porcupine) = Porcupine::find() else { return };
    for has_registers in [false, true] {
        let histories = random_histories(5_000, has_registers);
        for (history, is_accepted) in histories.iter().zip(porcupine.check(&histories)) {
            assert_eq!(is_accepted, has_an_order(history), "{history:#?}");
        }
    }
}
