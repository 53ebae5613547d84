//! The sequential specification of names: the results that each operation may have if operations
//! are performed one after the other.

use std::collections::{BTreeMap, BTreeSet};

use quell_vfs::{ErrorKind, Rename};

use super::model::Model;

/// The root directory.
pub const ROOT: u64 = 0;
/// The first number for nodes whose identifier is not known, because the reply was lost. Real
/// identifiers are smaller.
const UNKNOWN: u64 = 1 << 63;

/// The identifier of a directory, and a name in it.
pub type Name = (u64, u8);

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the operations and arguments of the contract
pub enum NameOperation {
    Lookup(Name),
    Create { name: Name, is_dir: bool },
    Remove { name: Name, is_dir: bool },
    Rename { from: Name, to: Name, mode: Rename },
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameResult {
    /// The identifier of the node of a name, if it exists.
    Found(Option<u64>),
    /// The identifier of a node that was created.
    Created(u64),
    /// The operation has taken effect.
    Done,
    /// The operation has no effect.
    Failed(ErrorKind),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    id: u64,
    is_dir: bool,
}

/// All names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Names {
    entries: BTreeMap<Name, Node>,
    removed: BTreeSet<u64>,
}

impl Names {
    fn is_empty(&self, dir: u64) -> bool {
        self.entries.range((dir, 0)..=(dir, u8::MAX)).next().is_none()
    }

    fn is_at_or_below(&self, dir: u64, above: u64) -> bool {
        let mut at = dir;
        while at != above {
            match self.entries.iter().find(|(_, node)| node.id == at) {
                Some(((parent, _), _)) => at = *parent,
                None => return false,
            }
        }
        true
    }

    /// Returns the errors that an operation may have. It succeeds if and only if there are no
    /// errors.
    fn errors(&self, operation: &NameOperation) -> Vec<ErrorKind> {
        use ErrorKind::{Exists, InvalidInput, IsADirectory, NotADirectory, NotEmpty, NotFound};
        let entry = |name: &Name| self.entries.get(name).copied();
        let is_removed = |name: &Name| self.removed.contains(&name.0);
        match operation {
            NameOperation::Lookup(_) => vec![],
            NameOperation::Create { name, .. } if is_removed(name) => vec![NotFound],
            NameOperation::Create { name, .. } => entry(name).map(|_| Exists).into_iter().collect(),
            NameOperation::Remove { name, is_dir } => match (entry(name), is_dir) {
                (None, _) => vec![NotFound],
                (Some(node), false) if node.is_dir => vec![IsADirectory],
                (Some(node), true) if !node.is_dir => vec![NotADirectory],
                (Some(node), true) if !self.is_empty(node.id) => vec![NotEmpty],
                _ => vec![],
            },
            NameOperation::Rename { from, to, mode } => {
                let Some(moved) = entry(from) else { return vec![NotFound] };
                if from == to {
                    return if *mode == Rename::Keep { vec![Exists] } else { vec![] };
                }
                let mut errors = Vec::new();
                if is_removed(to) {
                    errors.push(NotFound);
                }
                if moved.is_dir && self.is_at_or_below(to.0, moved.id) {
                    errors.push(InvalidInput);
                }
                match (mode, entry(to)) {
                    (Rename::Keep, Some(_)) => errors.push(Exists),
                    (Rename::Exchange, None) => errors.push(NotFound),
                    (Rename::Exchange, Some(other)) => {
                        if other.is_dir && self.is_at_or_below(from.0, other.id) {
                            errors.push(InvalidInput);
                        }
                    }
                    (Rename::Replace, Some(other)) => match (moved.is_dir, other.is_dir) {
                        (true, false) => errors.push(NotADirectory),
                        (false, true) => errors.push(IsADirectory),
                        (true, true) if !self.is_empty(other.id) => errors.push(NotEmpty),
                        _ => {}
                    },
                    (_, None) => {}
                }
                errors
            }
        }
    }

    /// Performs an operation that has no error. `id` is the identifier of a created node.
    fn apply(&mut self, operation: &NameOperation, id: u64) {
        match operation {
            NameOperation::Lookup(_) => {}
            NameOperation::Create { name, is_dir } => {
                self.entries.insert(*name, Node { id, is_dir: *is_dir });
            }
            NameOperation::Remove { name, .. } => {
                let removed = self.entries.remove(name).expect("it has no error");
                self.removed.insert(removed.id);
            }
            NameOperation::Rename { from, to, .. } if from == to => {}
            NameOperation::Rename { from, to, mode } => {
                let moved = self.entries.remove(from).expect("it has no error");
                match (mode, self.entries.insert(*to, moved)) {
                    (Rename::Exchange, Some(other)) => drop(self.entries.insert(*from, other)),
                    (_, Some(replaced)) => drop(self.removed.insert(replaced.id)),
                    (_, None) => {}
                }
            }
        }
    }

    /// Returns whether the node of a name can have this identifier. If the identifier of the node
    /// was unknown, it is set.
    fn finds(&mut self, name: &Name, id: u64) -> bool {
        let is_elsewhere = self.entries.values().any(|node| node.id == id) || self.removed.contains(&id);
        match self.entries.get_mut(name) {
            Some(node) if node.id >= UNKNOWN && !is_elsewhere => {
                node.id = id;
                true
            }
            found => found.is_some_and(|node| node.id == id),
        }
    }
}

impl Model for Names {
    type Operation = NameOperation;
    type Result = NameResult;

    fn perform_unknown(&mut self, operation: &NameOperation, number: u64) -> bool {
        let has_effect = !matches!(operation, NameOperation::Lookup(_)) && self.errors(operation).is_empty();
        if has_effect {
            self.apply(operation, UNKNOWN + number);
        }
        has_effect
    }

    fn perform(&mut self, operation: &NameOperation, result: &NameResult) -> bool {
        let errors = self.errors(operation);
        match (operation, result) {
            (NameOperation::Lookup(name), NameResult::Found(Some(id))) => self.finds(name, *id),
            (NameOperation::Lookup(name), NameResult::Found(None)) => !self.entries.contains_key(name),
            (_, NameResult::Failed(error)) => errors.contains(error),
            (_, NameResult::Created(id)) if errors.is_empty() => {
                self.apply(operation, *id);
                true
            }
            (_, NameResult::Done) if errors.is_empty() => {
                self.apply(operation, 0);
                true
            }
            _ => false,
        }
    }
}
