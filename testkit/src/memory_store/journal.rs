//! Changes of names that are not durable yet, and the order in which they become durable.

use std::collections::HashSet;

use super::inode::Number;

/// The maximum number of unsynced changes of names. When it is exceeded, the older half becomes
/// durable.
pub(super) const CHANGES_MAX: usize = 10_000;

/// A change of one name: its inode before and after.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) dir: Number,
    pub(super) name: Vec<u8>,
    pub(super) before: Option<Number>,
    pub(super) after: Option<Number>,
}

/// A journal entry of a directory: either all slots change or none.
#[derive(Debug, Clone, Default)]
pub(super) struct NameChange {
    pub(super) slots: Vec<Slot>,
    /// A removed directory, which had lost its names before.
    pub(super) emptied: Option<Number>,
    /// Whether all earlier changes have happened if this change has happened.
    pub(super) after_all: bool,
}

impl NameChange {
    /// Returns whether a sync of directory `dir` makes the change durable.
    pub(super) fn is_synced_by(&self, dir: Number) -> bool {
        match self.slots.as_slice() {
            [only] => only.dir == dir,
            both => both.iter().any(|slot| slot.dir == dir && slot.after.is_some()),
        }
    }
}

/// Returns which changes have happened, given those that `happened` selects: these, and all earlier
/// changes that they depend on.
pub(super) fn closure(changes: &[NameChange], mut happened: impl FnMut(&NameChange) -> bool) -> Vec<bool> {
    let mut names: HashSet<(Number, &[u8])> = HashSet::new();
    let (mut emptied, mut all) = (HashSet::new(), false);
    let mut kept = vec![false; changes.len()];
    for (i, change) in changes.iter().enumerate().rev() {
        let needed = |slot: &Slot| emptied.contains(&slot.dir) || names.contains(&(slot.dir, &*slot.name));
        // Called for every change, so that each random choice is independent of the others.
        let happened = happened(change);
        if happened || all || change.slots.iter().any(needed) {
            kept[i] = true;
            all |= change.after_all;
            emptied.extend(change.emptied);
            names.extend(change.slots.iter().map(|slot| (slot.dir, &*slot.name)));
        }
    }
    kept
}
