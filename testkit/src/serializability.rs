//! A checker of strict serializability in the manner of Elle (Kingsbury and Alvaro, VLDB 2020), for
//! histories of transactions on lists and registers. Each number that a history appends or writes
//! is unique. The dependencies of the transactions follow from the numbers that they read, and a
//! cycle of dependencies, with the order in real time, is a violation.
//!
//! A read of a list shows the order of all appends before it, so for lists alone the check is
//! complete: `tests/serializability.rs` compares it with all orders of the transactions of short
//! histories, and checks histories with each kind of anomaly. For registers it does not find a
//! violation that depends on an order of writes which neither a read nor the order in real time
//! shows. [`crate::porcupine`] is a second checker, of another kind.

mod graph;
mod history;
mod registers;

use std::collections::{BTreeMap, HashMap, HashSet};

use graph::{Dependency, Graph};
use history::precedences;
use registers::Registers;

pub use history::{HistoryOperation, HistoryTransaction, Outcome};

/// Returns an error that describes a violation of strict serializability, with Adya's name of the
/// anomaly if it has one. The last transaction of the history must have read all lists and
/// registers, after all others have ended.
pub fn check_strict_serializability(history: &[HistoryTransaction]) -> Result<(), String> {
    let writers = writers(history)?;
    let lists = longest_lists(history)?;
    check_values(history, &writers, &lists)?;
    let mut graph = Graph::new(history.len());
    for values in lists.values() {
        for pair in values.windows(2) {
            graph.add(writers[&pair[0]], writers[&pair[1]], Dependency::WriteWrite);
        }
    }
    for (reader, transaction) in history.iter().enumerate().filter(|(_, t)| t.outcome == Outcome::Committed) {
        for (list, read) in reads_of_others(transaction) {
            if let Some(last) = read.last() {
                graph.add(writers[last], reader, Dependency::WriteRead);
            }
            let next = lists.get(&list).and_then(|values| values.get(read.len()));
            if let Some(next) = next {
                graph.add(reader, writers[next], Dependency::ReadWrite);
            }
        }
    }
    Registers::new(history)?.check(&mut graph)?;
    let all: Vec<usize> = (0..history.len()).collect();
    for (first, second) in precedences(history, &all) {
        graph.add(first, second, Dependency::RealTime);
    }
    graph.anomaly().map_or(Ok(()), Err)
}

/// Returns the transaction that appended each number.
fn writers(history: &[HistoryTransaction]) -> Result<HashMap<u64, usize>, String> {
    let mut writers = HashMap::new();
    for (index, transaction) in history.iter().enumerate() {
        for operation in &transaction.operations {
            if let HistoryOperation::Append(_, value) = operation
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
fn reads_of_others(transaction: &HistoryTransaction) -> BTreeMap<u64, Vec<u64>> {
    let own = own_appends(transaction);
    let mut reads = BTreeMap::new();
    for operation in &transaction.operations {
        if let HistoryOperation::Read(list, values) = operation {
            let others = values.iter().copied().filter(|value| !own.contains(value)).collect();
            reads.entry(*list).or_insert(others);
        }
    }
    reads
}

fn own_appends(transaction: &HistoryTransaction) -> HashSet<u64> {
    let value = |operation: &HistoryOperation| match operation {
        HistoryOperation::Append(_, value) => Some(*value),
        _ => None,
    };
    transaction.operations.iter().filter_map(value).collect()
}

/// Returns the longest version of each list that a committed transaction has read. All other
/// versions must be prefixes of it.
fn longest_lists(history: &[HistoryTransaction]) -> Result<BTreeMap<u64, Vec<u64>>, String> {
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
    history: &[HistoryTransaction],
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
                return Err(format!(
                    "G1a: list {list} has {value} of transaction {writer}, which was refused"
                ));
            }
            if !history[*writer].operations.contains(&HistoryOperation::Append(*list, *value)) {
                return Err(format!("list {list} has {value}, which was appended to another list"));
            }
            if !found.insert(*value) {
                return Err(format!("list {list} has {value} twice"));
            }
        }
        check_own_order(history, writers, *list, values)?;
    }
    let all: HashSet<u64> = lists.values().flatten().copied().collect();
    let written = read_registers(history);
    for (index, transaction) in history.iter().enumerate() {
        let appended = own_appends(transaction);
        let missing = appended.iter().find(|value| !all.contains(value));
        let is_written = |operation: &HistoryOperation| match operation {
            HistoryOperation::Write(register, value) => written.contains(&(*register, *value)),
            _ => false,
        };
        let is_visible = || {
            appended.iter().any(|value| all.contains(value)) || transaction.operations.iter().any(is_written)
        };
        match (transaction.outcome, missing) {
            (Outcome::Committed, Some(missing)) => {
                return Err(format!("{missing} of transaction {index}, which was committed, is lost"));
            }
            (Outcome::Unknown, Some(missing)) if is_visible() => {
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

/// Checks that the numbers of each transaction are in the order in which it appended them.
fn check_own_order(
    history: &[HistoryTransaction],
    writers: &HashMap<u64, usize>,
    list: u64,
    values: &[u64],
) -> Result<(), String> {
    let mut of_writer: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for value in values {
        of_writer.entry(writers[value]).or_default().push(*value);
    }
    for (writer, found) in of_writer {
        let appended = |operation: &HistoryOperation| match operation {
            HistoryOperation::Append(to, value) if *to == list && found.contains(value) => Some(*value),
            _ => None,
        };
        if !history[writer].operations.iter().filter_map(appended).eq(found.iter().copied()) {
            return Err(format!(
                "list {list} has the numbers {found:?} of transaction {writer} in another order"
            ));
        }
    }
    Ok(())
}

/// Returns the registers with the numbers that committed transactions have read in them.
fn read_registers(history: &[HistoryTransaction]) -> HashSet<(u64, u64)> {
    let committed = history.iter().filter(|transaction| transaction.outcome == Outcome::Committed);
    let read = |operation: &HistoryOperation| match operation {
        HistoryOperation::ReadRegister(register, Some(value)) => Some((*register, *value)),
        _ => None,
    };
    committed.flat_map(|transaction| transaction.operations.iter().filter_map(read)).collect()
}

/// Checks that each read of a transaction has its own appends so far at the end, and that all reads
/// of a list agree.
fn check_own_reads(index: usize, transaction: &HistoryTransaction) -> Result<(), String> {
    let others = reads_of_others(transaction);
    let mut appended: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for operation in &transaction.operations {
        match operation {
            HistoryOperation::Append(list, value) => appended.entry(*list).or_default().push(*value),
            HistoryOperation::Read(list, values) => {
                let mut expected = others.get(list).cloned().unwrap_or_default();
                expected.extend(appended.get(list).into_iter().flatten());
                if *values != expected {
                    return Err(format!(
                        "transaction {index} read {values:?} of list {list}, not {expected:?}"
                    ));
                }
            }
            HistoryOperation::Write(..) | HistoryOperation::ReadRegister(..) => {}
        }
    }
    Ok(())
}

/// Checks that a read does not end between two appends of one transaction.
fn check_whole_transactions(
    history: &[HistoryTransaction],
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
        return Err(format!(
            "G1b: list {list} was read in the middle of transaction {writer}: {operations:?}"
        ));
    }
    Ok(())
}
