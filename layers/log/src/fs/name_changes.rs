//! Counts changes of names in a mount, so that an operation that uses a name can find out whether
//! the name may have changed meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of changes that have begun, and that have ended.
#[derive(Debug, Default)]
pub(crate) struct NameChanges {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A state of the names. As long as it is the current one, no change has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamesState(u64);

impl NameChanges {
    /// Calls `change`, which may change names.
    pub fn during<T>(&self, change: impl FnOnce() -> T) -> T {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let changed = change();
        self.ended.fetch_add(1, Ordering::SeqCst);
        changed
    }

    /// Returns the current state, or `None` while names are being changed.
    pub fn state(&self) -> Option<NamesState> {
        // Changes that have ended are read first: a change that begins in between makes the counts
        // differ.
        let ended = self.ended.load(Ordering::SeqCst);
        let begun = self.begun.load(Ordering::SeqCst);
        (begun == ended).then_some(NamesState(begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_ends_when_a_change_begins() {
        let changes = NameChanges::default();
        let before = changes.state();
        assert!(before.is_some() && before == changes.state());
        changes.during(|| {
            changes.during(|| assert_eq!(changes.state(), None));
            assert_eq!(changes.state(), None, "one of the changes has not ended");
        });
        assert!(changes.state().is_some() && changes.state() != before);
    }
}
