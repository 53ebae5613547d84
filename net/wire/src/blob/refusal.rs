//! The reasons for which a transaction was not committed.

use std::fmt;

use quell_vfs::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::joint::JointId;
use super::operation::{READS_MAX, Read};
use crate::Failure;
use crate::bounded::at_most;

/// A part that a transaction has read, and that a later commit has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The part as the transaction has read it.
    pub read: Read,
    /// The part of it that was changed.
    pub changed: super::Part,
}

/// The reason for which the commit of a transaction failed. The transaction has changed nothing,
/// with the exceptions of [`Refusal::Failed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Other transactions have changed data that this one has read. Repeat the transaction.
    Conflict(#[serde(deserialize_with = "at_most::<READS_MAX, _, _>")] Vec<Conflict>),
    /// The state that the transaction has read is no longer kept. Repeat the transaction, and let
    /// it take less time.
    SnapshotTooOld,
    /// A compare-and-set found another number than the expected one.
    Different {
        /// The index of the operation in the transaction, from 0.
        operation: u32,
        /// The index of the first such number in the range of the operation, from 0.
        cell: u32,
        /// The number that was found, in the encoding of the operands.
        found: Vec<u8>,
    },
    /// The result of a checked transform is outside the range of its type.
    Overflow {
        /// The index of the operation in the transaction, from 0.
        operation: u32,
        /// The index of the first such number in the range of the operation, from 0.
        cell: u32,
    },
    /// An operation or the commit failed. If `operation` is `None`, the transaction can have taken
    /// effect after an error of the storage, and after `TimedOut` and `Unavailable`.
    Failed {
        /// The index of the operation in the transaction, from 0; `None` if the failure concerns
        /// the transaction or the store.
        operation: Option<u32>,
        /// The reason.
        failure: Failure,
    },
    /// A joint transaction that is not decided has locked data that this one uses. It can be
    /// resolved at its coordinator.
    Locked {
        /// The identity of the other transaction.
        id: JointId,
        /// The group that decides about it.
        coordinator: u32,
    },
    /// The joint transaction was aborted. Repeat it with another identity.
    Aborted,
}

impl Refusal {
    /// Returns whether the same transaction can succeed if it is repeated from the beginning.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Refusal::Conflict(_) | Refusal::SnapshotTooOld | Refusal::Locked { .. } | Refusal::Aborted => {
                true
            }
            Refusal::Failed { failure, .. } => {
                matches!(failure.kind(), ErrorKind::Conflict | ErrorKind::Busy)
            }
            Refusal::Different { .. } | Refusal::Overflow { .. } => false,
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Failed { operation: None, failure: Failure::new(&error) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Conflict(conflicts) => {
                write!(f, "another transaction changed ")?;
                for (index, conflict) in conflicts.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    let name = conflict.read.name.escape_ascii();
                    match &conflict.changed {
                        super::Part::Range { start, end } => {
                            write!(f, "{separator}bytes {start} to {end} of {name}")?;
                        }
                        super::Part::Size => write!(f, "{separator}the size of {name}")?,
                        super::Part::Existence => write!(f, "{separator}the existence of {name}")?,
                        super::Part::NamesWithPrefix => {
                            write!(f, "{separator}the names that begin with {name}")?;
                        }
                    }
                }
                Ok(())
            }
            Refusal::SnapshotTooOld => {
                f.write_str("the state that the transaction has read is no longer kept")
            }
            Refusal::Different { operation, cell, .. } => {
                write!(f, "operation {operation}: number {cell} is not the expected one")
            }
            Refusal::Overflow { operation, cell } => {
                write!(
                    f,
                    "operation {operation}: the result for number {cell} is outside the range of its type"
                )
            }
            Refusal::Failed { operation: Some(operation), failure } => {
                write!(f, "operation {operation}: {failure}")
            }
            Refusal::Failed { operation: None, failure } => write!(f, "{failure}"),
            Refusal::Locked { .. } => {
                f.write_str("a transaction over several groups of servers has locked the data")
            }
            Refusal::Aborted => f.write_str("the transaction over several groups of servers was aborted"),
        }
    }
}

impl std::error::Error for Refusal {}
