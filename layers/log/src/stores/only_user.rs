//! The periods in which this process is the only user of its store. A file that was opened for
//! reading in such a period follows the changes of other processes as soon as the period is over,
//! because the kernel may still cache its data and requests its attributes.

use std::time::{Duration, Instant};

use crate::locks::{Rank, RankedMutex};

/// The time since the last check began after which other processes may use the store, because its
/// file system did not answer and may have removed the locks of this node.
const CONFIRMATION: Duration = Duration::from_secs(2);

/// A period in which this process is the only user of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnlyUserPeriod(u64);

/// The periods of one mount.
pub(crate) struct OnlyUserPeriods(RankedMutex<State>);

struct State {
    /// The number of periods that have begun.
    begun: u64,
    /// When the last successful check of the current period began. `None`: there is no period.
    confirmed: Option<Instant>,
}

impl State {
    fn is_only_user(&self, now: Instant) -> bool {
        self.confirmed.is_some_and(|confirmed| now.saturating_duration_since(confirmed) < CONFIRMATION)
    }
}

impl OnlyUserPeriods {
    pub fn new() -> OnlyUserPeriods {
        OnlyUserPeriods(RankedMutex::new(Rank::Leaf, State { begun: 0, confirmed: None }))
    }

    /// Notes the result of a check that began at `began` and ends now.
    pub fn note(&self, is_only_user: bool, began: Instant, now: Instant) {
        let mut state = self.0.lock();
        if is_only_user && !state.is_only_user(now) {
            state.begun += 1;
        }
        state.confirmed = is_only_user.then_some(began);
    }

    /// Returns the current period, or `None` if other processes may use the store.
    pub fn current(&self, now: Instant) -> Option<OnlyUserPeriod> {
        let state = self.0.lock();
        state.is_only_user(now).then_some(OnlyUserPeriod(state.begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_ends_with_a_failed_check_or_without_a_check_in_time() {
        let periods = OnlyUserPeriods::new();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(periods.current(at(0)), None);
        periods.note(true, at(0), at(10));
        let first = periods.current(at(10));
        assert!(first.is_some());
        periods.note(true, at(500), at(510));
        assert_eq!(periods.current(at(2400)), first, "it was confirmed");
        assert_eq!(periods.current(at(2500)), None, "the check is too late");
        periods.note(true, at(2600), at(2610));
        let second = periods.current(at(2700));
        assert!(second.is_some() && second != first, "others may have used the store meanwhile");
        periods.note(false, at(3000), at(3010));
        assert_eq!(periods.current(at(3010)), None);
        periods.note(true, at(3500), at(3510));
        assert!(![None, first, second].contains(&periods.current(at(3510))));
    }
}
