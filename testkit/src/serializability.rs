//! A checker of strict serializability for histories of transactions that append unique numbers to
//! lists and read whole lists, in the manner of Elle (Kingsbury and Alvaro, VLDB 2020): the lists
//! show the order of the appends, from which the dependencies of the transactions follow. A cycle
//! of dependencies, with the order in real time, is a violation.
//!
//! Elle itself needs a Java virtual machine, which no other test needs. The tests of this module
//! plant each kind of anomaly.

use std::collections::{BTreeMap, HashMap, HashSet};

/// An operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListOperation {
    /// A number was appended to a list: the list, then the number, which no other append has.
    Append(u64, u64),
    /// A list was read: the list, then all its numbers, including those that the transaction itself
    /// had appended.
    Read(u64, Vec<u64>),
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The commit succeeded.
    Committed,
    /// The commit was refused.
    Refused,
    /// The result is not known, for example because the process ended.
    Unknown,
}

/// A transaction of a history.
#[derive(Debug, Clone)]
pub struct ListTransaction {
    /// The time at which it began, in any unit that all transactions share.
    pub begun: u64,
    /// The time at which its result was known, in the same unit. It is not used if the result is
    /// unknown.
    pub ended: u64,
    /// The result of its commit.
    pub outcome: Outcome,
    /// Its operations, in their order.
    pub operations: Vec<ListOperation>,
}

/// Returns an error that describes the first violation of strict serializability. The last
/// transaction of the history must have read all lists, after all others have ended.
pub fn check_strict_serializability(history: &[ListTransaction]) -> Result<(), String> {
    let writers = writers(history)?;
    let lists = longest_lists(history)?;
    check_values(history, &writers, &lists)?;
    let mut graph = Graph::new(history.len());
    for values in lists.values() {
        for pair in values.windows(2) {
            graph.add(writers[&pair[0]], writers[&pair[1]], "appended before");
        }
    }
    for (reader, transaction) in history.iter().enumerate().filter(|(_, t)| t.outcome == Outcome::Committed) {
        for (list, read) in reads_of_others(transaction) {
            if let Some(last) = read.last() {
                graph.add(writers[last], reader, "was read by");
            }
            let next = lists.get(&list).and_then(|values| values.get(read.len()));
            if let Some(next) = next {
                graph.add(reader, writers[next], "read before the append of");
            }
        }
    }
    add_real_time(history, &mut graph);
    graph.find_cycle().map_or(Ok(()), |cycle| Err(format!("a cycle of dependencies: {cycle}")))
}

/// Adds the order in real time: of the transactions that ended before another one began, those that
/// did not end before the beginning of one of them. The others precede through these.
fn add_real_time(history: &[ListTransaction], graph: &mut Graph) {
    let committed = history.iter().enumerate().filter(|(_, t)| t.outcome == Outcome::Committed);
    let mut ended: Vec<(u64, u64, usize)> = committed.map(|(index, t)| (t.ended, t.begun, index)).collect();
    ended.sort_unstable();
    let mut latest_begun = 0;
    let latest: Vec<u64> = (ended.iter())
        .map(|(_, begun, _)| {
            latest_begun = latest_begun.max(*begun);
            latest_begun
        })
        .collect();
    for (second, b) in history.iter().enumerate().filter(|(_, t)| t.outcome != Outcome::Refused) {
        let before = ended.partition_point(|(end, ..)| *end < b.begun);
        let Some(latest) = before.checked_sub(1).map(|last| latest[last]) else { continue };
        for (_, _, first) in ended[..before].iter().rev().take_while(|(end, ..)| *end >= latest) {
            graph.add(*first, second, "ended before the beginning of");
        }
    }
}

/// Returns the transaction that appended each number.
fn writers(history: &[ListTransaction]) -> Result<HashMap<u64, usize>, String> {
    let mut writers = HashMap::new();
    for (index, transaction) in history.iter().enumerate() {
        for operation in &transaction.operations {
            if let ListOperation::Append(_, value) = operation
                && writers.insert(*value, index).is_some()
            {
                return Err(format!("the history appends {value} twice"));
            }
        }
    }
    Ok(writers)
}

/// Returns the numbers that a transaction has read of each list, without its own appends. Reads
/// after the first one of a list are compared with it by [`check_values`].
fn reads_of_others(transaction: &ListTransaction) -> BTreeMap<u64, Vec<u64>> {
    let own = own_appends(transaction);
    let mut reads = BTreeMap::new();
    for operation in &transaction.operations {
        if let ListOperation::Read(list, values) = operation {
            let others = values.iter().copied().filter(|value| !own.contains(value)).collect();
            reads.entry(*list).or_insert(others);
        }
    }
    reads
}

fn own_appends(transaction: &ListTransaction) -> HashSet<u64> {
    let value = |operation: &ListOperation| match operation {
        ListOperation::Append(_, value) => Some(*value),
        ListOperation::Read(..) => None,
    };
    transaction.operations.iter().filter_map(value).collect()
}

/// Returns the longest version of each list that a committed transaction has read. All others must
/// be its beginnings.
fn longest_lists(history: &[ListTransaction]) -> Result<BTreeMap<u64, Vec<u64>>, String> {
    let mut lists: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for transaction in history.iter().filter(|transaction| transaction.outcome == Outcome::Committed) {
        for (list, read) in reads_of_others(transaction) {
            let longest = lists.entry(list).or_default();
            let common = longest.len().min(read.len());
            if longest[..common] != read[..common] {
                return Err(format!("list {list} was read as {read:?} and as {longest:?}"));
            }
            if read.len() > longest.len() {
                *longest = read;
            }
        }
    }
    Ok(lists)
}

/// Compares the numbers that were read with those that were appended.
fn check_values(
    history: &[ListTransaction],
    writers: &HashMap<u64, usize>,
    lists: &BTreeMap<u64, Vec<u64>>,
) -> Result<(), String> {
    for (list, values) in lists {
        let mut found = HashSet::new();
        for value in values {
            let Some(writer) = writers.get(value) else {
                return Err(format!("list {list} has {value}, which was not appended"));
            };
            if history[*writer].outcome == Outcome::Refused {
                return Err(format!("list {list} has {value} of transaction {writer}, which was refused"));
            }
            if !history[*writer].operations.contains(&ListOperation::Append(*list, *value)) {
                return Err(format!("list {list} has {value}, which was appended to another list"));
            }
            if !found.insert(*value) {
                return Err(format!("list {list} has {value} twice"));
            }
        }
    }
    let all: HashSet<u64> = lists.values().flatten().copied().collect();
    for (index, transaction) in history.iter().enumerate() {
        let appended = own_appends(transaction);
        let missing = appended.iter().find(|value| !all.contains(value));
        match (transaction.outcome, missing) {
            (Outcome::Committed, Some(missing)) => {
                return Err(format!("{missing} of transaction {index}, which was committed, is lost"));
            }
            (Outcome::Unknown, Some(missing)) if appended.iter().any(|value| all.contains(value)) => {
                return Err(format!("transaction {index} took effect without {missing}"));
            }
            _ => {}
        }
        if transaction.outcome == Outcome::Committed {
            check_own_reads(index, transaction)?;
            for (list, read) in reads_of_others(transaction) {
                check_whole_transactions(history, writers, list, &read, lists)?;
            }
        }
    }
    Ok(())
}

/// Checks that each read of a transaction has its own appends so far at the end, and that all reads
/// of a list agree.
fn check_own_reads(index: usize, transaction: &ListTransaction) -> Result<(), String> {
    let others = reads_of_others(transaction);
    let mut appended: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for operation in &transaction.operations {
        match operation {
            ListOperation::Append(list, value) => appended.entry(*list).or_default().push(*value),
            ListOperation::Read(list, values) => {
                let mut expected = others.get(list).cloned().unwrap_or_default();
                expected.extend(appended.get(list).into_iter().flatten());
                if *values != expected {
                    return Err(format!(
                        "transaction {index} read {values:?} of list {list}, not {expected:?}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Checks that a read does not end between two appends of one transaction.
fn check_whole_transactions(
    history: &[ListTransaction],
    writers: &HashMap<u64, usize>,
    list: u64,
    read: &[u64],
    lists: &BTreeMap<u64, Vec<u64>>,
) -> Result<(), String> {
    let next = lists.get(&list).and_then(|values| values.get(read.len()));
    if let (Some(last), Some(next)) = (read.last(), next)
        && writers[last] == writers[next]
    {
        let writer = writers[last];
        let operations = &history[writer].operations;
        return Err(format!("list {list} was read in the middle of transaction {writer}: {operations:?}"));
    }
    Ok(())
}

/// The dependencies of transactions.
struct Graph {
    /// For each transaction, those that must be after it, with the reason.
    edges: Vec<BTreeMap<usize, &'static str>>,
}

impl Graph {
    fn new(transactions: usize) -> Graph {
        Graph { edges: vec![BTreeMap::new(); transactions] }
    }

    fn add(&mut self, before: usize, after: usize, reason: &'static str) {
        if before != after {
            self.edges[before].entry(after).or_insert(reason);
        }
    }

    /// Returns a description of a cycle, if there is one. Without recursion: a history may be long.
    fn find_cycle(&self) -> Option<String> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            OnPath,
            Done,
        }
        let mut states = vec![State::New; self.edges.len()];
        for start in 0..self.edges.len() {
            if states[start] != State::New {
                continue;
            }
            let mut path = vec![(start, self.edges[start].keys())];
            states[start] = State::OnPath;
            while let Some((node, next)) = path.last_mut() {
                match next.next() {
                    Some(after) if states[*after] == State::OnPath => {
                        let begin = path.iter().position(|(node, _)| node == after).unwrap_or(0);
                        let mut nodes: Vec<usize> = path[begin..].iter().map(|(node, _)| *node).collect();
                        nodes.push(*after);
                        let step = |pair: &[usize]| format!("{} {} ", pair[0], self.edges[pair[0]][&pair[1]]);
                        let steps: String = nodes.windows(2).map(step).collect();
                        return Some(format!("{steps}{after}"));
                    }
                    Some(after) if states[*after] == State::New => {
                        states[*after] = State::OnPath;
                        path.push((*after, self.edges[*after].keys()));
                    }
                    Some(_) => {}
                    None => {
                        states[*node] = State::Done;
                        path.pop();
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::ListOperation::{Append, Read};
    use super::*;

    fn transaction(begun: u64, ended: u64, operations: Vec<ListOperation>) -> ListTransaction {
        ListTransaction { begun, ended, outcome: Outcome::Committed, operations }
    }

    /// Checks a history that ends with a read of the lists 1 and 2.
    fn check(mut history: Vec<ListTransaction>, first: &[u64], second: &[u64]) -> Result<(), String> {
        history.push(transaction(1000, 1001, vec![Read(1, first.into()), Read(2, second.into())]));
        check_strict_serializability(&history)
    }

    #[test]
    fn serial_and_concurrent_histories_are_accepted() {
        let serial = vec![
            transaction(0, 1, vec![Append(1, 10), Append(2, 20)]),
            transaction(2, 3, vec![Read(1, vec![10]), Append(1, 11), Read(1, vec![10, 11])]),
            transaction(4, 5, vec![Read(1, vec![10, 11]), Read(2, vec![20])]),
        ];
        assert_eq!(check(serial, &[10, 11], &[20]), Ok(()));
        // Of concurrent transactions, each order is allowed.
        let concurrent = vec![
            transaction(0, 9, vec![Append(1, 10)]),
            transaction(0, 9, vec![Read(1, vec![]), Append(2, 20)]),
            transaction(0, 9, vec![Read(1, vec![10]), Read(2, vec![20])]),
        ];
        assert_eq!(check(concurrent, &[10], &[20]), Ok(()));
        let mut unknown = vec![transaction(0, 1, vec![Append(1, 10), Append(2, 20)])];
        unknown[0].outcome = Outcome::Unknown;
        assert_eq!(check(unknown.clone(), &[10], &[20]), Ok(()));
        assert_eq!(check(unknown, &[], &[]), Ok(()));
    }

    #[test]
    fn anomalies_are_found() {
        let of = |history: Vec<ListTransaction>, first: &[u64], second: &[u64]| {
            check(history, first, second).expect_err("an anomaly")
        };
        let append = |begun, list, value| transaction(begun, begun + 1, vec![Append(list, value)]);
        assert!(of(vec![append(0, 1, 10)], &[], &[]).contains("is lost"));
        assert!(of(vec![append(0, 1, 10)], &[10, 10], &[]).contains("twice"));
        assert!(of(vec![append(0, 1, 10)], &[10, 99], &[]).contains("not appended"));
        assert!(of(vec![append(0, 1, 10)], &[], &[10]).contains("another list"));
        let mut refused = vec![append(0, 1, 10)];
        refused[0].outcome = Outcome::Refused;
        assert!(of(refused, &[10], &[]).contains("was refused"));
        let mut torn = vec![transaction(0, 1, vec![Append(1, 10), Append(2, 20)])];
        torn[0].outcome = Outcome::Unknown;
        assert!(of(torn, &[10], &[]).contains("without 20"));
        // A lost update: both have read the empty list.
        let update = |value| transaction(0, 9, vec![Read(1, vec![]), Append(1, value)]);
        assert!(of(vec![update(10), update(11)], &[10, 11], &[]).contains("cycle"));
        // Write skew: each has read the list that the other one appends to.
        let skew = |read, list, value| transaction(0, 9, vec![Read(read, vec![]), Append(list, value)]);
        assert!(of(vec![skew(1, 2, 20), skew(2, 1, 10)], &[10], &[20]).contains("cycle"));
        // A read that is not one state.
        let both = transaction(0, 9, vec![Append(1, 10), Append(2, 20)]);
        let fractured = transaction(0, 9, vec![Read(1, vec![10]), Read(2, vec![])]);
        assert!(of(vec![both, fractured], &[10], &[20]).contains("cycle"));
        // A read that misses a transaction that had ended before.
        let stale = transaction(5, 6, vec![Read(1, vec![])]);
        assert!(of(vec![append(0, 1, 10), stale], &[10], &[]).contains("cycle"));
        // A read between two appends of one transaction.
        let two = transaction(0, 9, vec![Append(1, 10), Append(1, 11)]);
        let middle = transaction(0, 9, vec![Read(1, vec![10])]);
        assert!(of(vec![two, middle], &[10, 11], &[]).contains("in the middle"));
        // Two orders of the same list.
        let one = transaction(0, 9, vec![Read(1, vec![11])]);
        assert!(of(vec![append(0, 1, 10), append(0, 1, 11), one], &[10, 11], &[]).contains("was read as"));
        // A transaction that does not see its own append.
        let blind = transaction(0, 9, vec![Append(1, 10), Read(1, vec![])]);
        assert!(of(vec![blind], &[10], &[]).contains("transaction 0 read"));
    }
}
