//! Registers: each write replaces the number, so a read does not show the order of the writes. It
//! follows from transactions that read before they write, and from the order in real time.

use std::collections::{BTreeMap, HashMap};

use super::graph::{Dependency, Graph};
use super::history::{HistoryOperation, HistoryTransaction, Outcome, precedences};

/// The writes and reads of the registers of a history.
pub(super) struct Registers<'a> {
    history: &'a [HistoryTransaction],
    /// The transaction that wrote each number, the register, and whether this is the last write of
    /// the transaction to the register.
    writers: HashMap<u64, (usize, u64, bool)>,
}

/// The numbers of a register that a transaction has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    transaction: usize,
    /// The number before the first write of the transaction, if it has read it.
    read: Option<Option<u64>>,
    /// The last write of the transaction.
    written: Option<u64>,
}

impl Seen {
    fn first(&self) -> Option<u64> {
        self.read.unwrap_or(self.written)
    }

    fn last(&self) -> Option<u64> {
        self.written.or(self.read.flatten())
    }
}

impl<'a> Registers<'a> {
    /// Returns an error if a number was written twice.
    pub(super) fn new(history: &'a [HistoryTransaction]) -> Result<Registers<'a>, String> {
        let mut writers = HashMap::new();
        for (index, transaction) in history.iter().enumerate() {
            let mut last: BTreeMap<u64, u64> = BTreeMap::new();
            for operation in &transaction.operations {
                if let HistoryOperation::Write(register, value) = operation {
                    if writers.insert(*value, (index, *register, false)).is_some() {
                        return Err(format!("the history writes {value} twice"));
                    }
                    last.insert(*register, *value);
                }
            }
            for (register, value) in last {
                writers.insert(value, (index, register, true));
            }
        }
        Ok(Registers { history, writers })
    }

    /// Checks the numbers that were read, and adds the dependencies of their transactions.
    pub(super) fn check(&self, graph: &mut Graph) -> Result<(), String> {
        let mut all: BTreeMap<u64, Vec<Seen>> = BTreeMap::new();
        for (index, transaction) in self.history.iter().enumerate() {
            if transaction.outcome != Outcome::Refused {
                for (register, seen) in self.seen(index, transaction)? {
                    all.entry(register).or_default().push(seen);
                }
            }
        }
        for seen in all.values() {
            self.add_dependencies(seen, graph);
        }
        Ok(())
    }

    /// Returns the numbers of each register that a transaction has seen.
    fn seen(&self, index: usize, transaction: &HistoryTransaction) -> Result<BTreeMap<u64, Seen>, String> {
        let mut found: BTreeMap<u64, Seen> = BTreeMap::new();
        for operation in &transaction.operations {
            match operation {
                HistoryOperation::Write(register, value) => {
                    let new = Seen { transaction: index, read: None, written: None };
                    found.entry(*register).or_insert(new).written = Some(*value);
                }
                // The reads of a transaction with an unknown result are not compared: it may have
                // had no effect.
                HistoryOperation::ReadRegister(register, value)
                    if transaction.outcome == Outcome::Committed =>
                {
                    let new = Seen { transaction: index, read: Some(*value), written: None };
                    let seen = found.entry(*register).or_insert(new);
                    if *value != seen.last() {
                        let expected = seen.last();
                        return Err(format!(
                            "transaction {index} read {value:?} of register {register}, not {expected:?}"
                        ));
                    }
                    if seen.written.is_none() {
                        self.check_read(index, *register, *value)?;
                    }
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Checks a number that a transaction has read and not written.
    fn check_read(&self, index: usize, register: u64, value: Option<u64>) -> Result<(), String> {
        let Some(value) = value else { return Ok(()) };
        let Some((writer, of, is_last)) = self.writers.get(&value) else {
            return Err(format!("register {register} has {value}, which was not written"));
        };
        if *of != register {
            return Err(format!("register {register} has {value}, which was written to another register"));
        }
        if self.history[*writer].outcome == Outcome::Refused {
            return Err(format!(
                "G1a: register {register} has {value} of transaction {writer}, which was refused"
            ));
        }
        if *writer == index {
            return Err(format!("transaction {index} read {value} before it wrote it"));
        }
        if !is_last {
            return Err(format!(
                "G1b: register {register} was read as {value} in the middle of transaction {writer}"
            ));
        }
        Ok(())
    }

    /// Adds the dependencies of the transactions that have seen a register.
    fn add_dependencies(&self, seen: &[Seen], graph: &mut Graph) {
        let mut readers: HashMap<Option<u64>, Vec<usize>> = HashMap::new();
        for seen in seen {
            if let Some(read) = seen.read {
                readers.entry(read).or_default().push(seen.transaction);
                graph.add(self.writer(read, graph), seen.transaction, Dependency::WriteRead);
            }
        }
        // Pairs of versions, of which the second one is later.
        let mut versions: Vec<(Option<u64>, Option<u64>)> = Vec::new();
        for seen in seen.iter().filter(|seen| seen.written.is_some()) {
            versions.push((None, seen.written));
            if let Some(read) = seen.read {
                versions.push((read, seen.written));
            }
        }
        // A register has each number during one period, because no number is written twice.
        let transactions: Vec<usize> = seen.iter().map(|seen| seen.transaction).collect();
        for (first, second) in precedences(self.history, &transactions) {
            versions.push((seen[first].last(), seen[second].first()));
        }
        for (before, after) in versions {
            if before == after {
                continue;
            }
            let after = self.writer(after, graph);
            graph.add(self.writer(before, graph), after, Dependency::WriteWrite);
            for reader in readers.get(&before).into_iter().flatten() {
                graph.add(*reader, after, Dependency::ReadWrite);
            }
        }
    }

    /// Returns the transaction that wrote a version.
    fn writer(&self, version: Option<u64>, graph: &Graph) -> usize {
        version.map_or(graph.initial(), |value| self.writers[&value].0)
    }
}
