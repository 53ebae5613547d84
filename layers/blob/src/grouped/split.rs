//! Divides a transaction into parts for the groups of servers, and merges their results.

use std::collections::BTreeMap;

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    Committed, JOINT_BYTES_MAX, Operation, OperationResult, Part, Refusal, Transaction, Version, group_of,
};
use quell_wire::encode;

/// A transaction that is divided by groups.
pub(crate) struct Split {
    pub(crate) parts: BTreeMap<u32, GroupPart>,
    operations: usize,
}

/// The reads and operations of one group.
#[derive(Default)]
pub(crate) struct GroupPart {
    pub(crate) transaction: Transaction,
    /// The positions of the operations in the whole transaction.
    positions: Vec<u32>,
}

impl Split {
    /// Divides a transaction. `versions` are the versions of the groups in the state that was read.
    ///
    /// # Errors
    /// `Unsupported` if it renames a blob, and the new name belongs to another group.
    pub(crate) fn new(transaction: Transaction, versions: &[Version], groups: u32) -> Result<Split> {
        let mut split = Split { parts: BTreeMap::new(), operations: transaction.operations.len() };
        for read in transaction.reads {
            let concerned = match read.part {
                Part::NamesWithPrefix => 0..groups,
                _ => {
                    let group = group_of(&read.name, groups);
                    group..group + 1
                }
            };
            for group in concerned {
                let part = &mut split.parts.entry(group).or_default().transaction;
                part.snapshot = versions.get(group as usize).copied();
                part.reads.push(read.clone());
            }
        }
        for (position, operation) in transaction.operations.into_iter().enumerate() {
            let part = split.parts.entry(group_of_operation(&operation, groups)?).or_default();
            part.positions.push(position as u32);
            part.transaction.operations.push(operation);
        }
        if split.parts.is_empty() {
            split.parts.insert(0, GroupPart::default());
        }
        Ok(split)
    }

    /// Checks the limits of a transaction with several parts.
    ///
    /// # Errors
    /// `InvalidInput` if a part is too large.
    pub(crate) fn check(&self) -> Result<()> {
        match self.parts.values().all(|part| encode(&part.transaction).len() <= JOINT_BYTES_MAX) {
            true => Ok(()),
            false => {
                let reason = "it concerns several groups of servers, and more than 1 MiB in one; divide it";
                let error = Error::new(ErrorKind::InvalidInput, "commit", "transaction");
                Err(Error { source: Some(reason.into()), ..error })
            }
        }
    }

    /// Returns the result of the whole transaction.
    pub(crate) fn merge(&self, results: BTreeMap<u32, Committed>) -> Committed {
        let mut merged = vec![OperationResult::Done; self.operations];
        let mut version = Version(0);
        for (group, committed) in results {
            version = version.max(committed.version);
            let Some(part) = self.parts.get(&group) else { continue };
            for (position, result) in part.positions.iter().zip(committed.results) {
                merged[*position as usize] = result;
            }
        }
        Committed { version, results: merged }
    }

    /// Returns the refusal of a group, with positions of operations in the whole transaction.
    pub(crate) fn refusal(&self, group: u32, refusal: Refusal) -> Refusal {
        let positions = self.parts.get(&group).map_or(&[][..], |part| &part.positions);
        let of = |operation: u32| positions.get(operation as usize).copied().unwrap_or(operation);
        match refusal {
            Refusal::Different { operation, cell, found } => {
                Refusal::Different { operation: of(operation), cell, found }
            }
            Refusal::Overflow { operation, cell } => Refusal::Overflow { operation: of(operation), cell },
            Refusal::Failed { operation, failure } => {
                Refusal::Failed { operation: operation.map(of), failure }
            }
            other => other,
        }
    }
}

/// Returns the group of an operation.
///
/// # Errors
/// `Unsupported` for a rename to a name of another group.
pub(crate) fn group_of_operation(operation: &Operation, groups: u32) -> Result<u32> {
    let group = group_of(operation.name(), groups);
    match operation.names().all(|name| group_of(name, groups) == group) {
        true => Ok(group),
        false => {
            let reason = "the new name belongs to another group of servers; copy the blob, and delete it";
            let error = Error::new(ErrorKind::Unsupported, "rename", operation.name());
            Err(Error { source: Some(reason.into()), ..error })
        }
    }
}
