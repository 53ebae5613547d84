//! The changes that transactions have prepared on this member. The names of these changes stay
//! locked.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_wire::pool::{FileId, NodeKind, TransactionId};

use crate::inode::PreparedChange;
use crate::lock_table::HeldLock;

/// The changes that one transaction has prepared on this member.
#[derive(Default)]
pub struct Prepared {
    pub changes: Vec<PreparedChange>,
    /// The locks of the names.
    pub names: Vec<HeldLock>,
    /// The time of the last preparation.
    pub since: Duration,
}

impl Prepared {
    /// Returns whether the changes affect the resolution of paths.
    pub fn changes_dirs(&self) -> bool {
        self.changes.iter().any(|change| match change {
            PreparedChange::Entry { new, .. } => new.kind == NodeKind::Dir,
            PreparedChange::Node { kind, .. } => *kind == NodeKind::Dir,
            PreparedChange::Removal { .. } => true,
        })
    }
}

/// All transactions that have prepared changes on this member.
#[derive(Default)]
pub struct PreparedTransactions(pub BTreeMap<TransactionId, Prepared>);

impl PreparedTransactions {
    /// Returns whether the removal of a directory is prepared.
    pub fn removes(&self, dir: FileId) -> bool {
        self.changes().any(|change| matches!(change, PreparedChange::Removal { dir: of } if *of == dir))
    }

    /// Returns whether a new entry in a directory is prepared.
    pub fn adds_to(&self, dir: FileId) -> bool {
        self.changes().any(|change| matches!(change, PreparedChange::Entry { dir: of, .. } if *of == dir))
    }

    /// Returns whether a new name of a node is prepared.
    pub fn moves(&self, id: FileId) -> bool {
        self.changes().any(|change| matches!(change, PreparedChange::Node { id: of, .. } if *of == id))
    }

    /// Returns whether a transaction has prepared a change.
    pub fn has(&self, transaction: TransactionId, change: &PreparedChange) -> bool {
        self.0.get(&transaction).is_some_and(|prepared| prepared.changes.contains(change))
    }

    /// Returns the transaction that has prepared a name.
    pub fn of_name(&self, dir: FileId, name: &[u8]) -> Option<(TransactionId, &Prepared)> {
        let is_entry = |change: &PreparedChange| match change {
            PreparedChange::Entry { dir: of, name: other, .. } => *of == dir && other == name,
            _ => false,
        };
        let found = self.0.iter().find(|(_, prepared)| prepared.changes.iter().any(is_entry));
        found.map(|(transaction, prepared)| (*transaction, prepared))
    }

    fn changes(&self) -> impl Iterator<Item = &PreparedChange> {
        self.0.values().flat_map(|prepared| &prepared.changes)
    }
}
