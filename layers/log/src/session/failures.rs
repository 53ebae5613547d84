//! The failed writes and syncs of one file. A failure is returned by every sync and close of the
//! file until a sync of the whole file succeeds.

use quell_vfs::Error;

use crate::locks::{Rank, RankedMutex};

/// The failures that were known when a sync began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailuresSeen {
    count: u64,
    /// There are failures since the last successful sync.
    pub is_any: bool,
}

#[derive(Debug, Default)]
struct FailureState {
    /// Number of failures.
    count: u64,
    /// There are failures since the last successful sync.
    is_any: bool,
}

/// The failures of one file.
pub(crate) struct Failures(RankedMutex<FailureState>);

impl Default for Failures {
    fn default() -> Failures {
        Failures(RankedMutex::new(Rank::Leaf, FailureState::default()))
    }
}

impl Failures {
    /// Records a failed write or sync.
    pub fn record(&self, _: &Error) {
        let mut state = self.0.lock();
        state.count += 1;
        state.is_any = true;
    }

    /// Returns true if there are failures since the last successful sync.
    pub fn is_any(&self) -> bool {
        self.0.lock().is_any
    }

    /// Returns the failures so far.
    pub fn seen(&self) -> FailuresSeen {
        let state = self.0.lock();
        FailuresSeen { count: state.count, is_any: state.is_any }
    }

    /// Records a successful sync: failures before it are not returned any more, unless others
    /// occurred during the sync.
    pub fn end(&self, seen: FailuresSeen) {
        let mut state = self.0.lock();
        if state.count == seen.count {
            state.is_any = false;
        }
    }
}
