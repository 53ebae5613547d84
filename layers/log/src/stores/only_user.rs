//! The periods in which this process is the only user of its store. A file that was opened for
//! reading in such a period follows the changes of other processes as soon as the period is over,
//! because the kernel may still cache its data and requests its attributes.

use std::time::Instant;

use crate::locks::{Rank, RankedMutex};

/// A period in which this process is the only user of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnlyUserPeriod(u64);

/// A state of the stores in which only this process creates containers of objects, and since which
/// it has created none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CreationState {
    period: OnlyUserPeriod,
    /// Changes before and after a container is created.
    creations: u64,
}

impl CreationState {
    pub(crate) fn new(period: OnlyUserPeriod, creations: u64) -> CreationState {
        CreationState { period, creations }
    }
}

/// The periods of one mount.
pub(crate) struct OnlyUserPeriods(RankedMutex<State>);

struct State {
    /// The number of periods that have begun.
    begun: u64,
    /// The end of the current period, unless it is confirmed before. `None`: there is no period.
    until: Option<Instant>,
}

impl State {
    fn is_only_user(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

impl OnlyUserPeriods {
    pub fn new() -> OnlyUserPeriods {
        OnlyUserPeriods(RankedMutex::new(Rank::Leaf, State { begun: 0, until: None }))
    }

    /// Extends the current period, or begins a new one.
    pub fn confirm(&self, until: Instant, now: Instant) {
        let mut state = self.0.lock();
        if !state.is_only_user(now) {
            state.begun += 1;
        }
        state.until = Some(until);
    }

    /// Ends the current period.
    pub fn end(&self) {
        self.0.lock().until = None;
    }

    /// Returns the current period, or `None` if other processes may use the store.
    pub fn current(&self, now: Instant) -> Option<OnlyUserPeriod> {
        let state = self.0.lock();
        state.is_only_user(now).then_some(OnlyUserPeriod(state.begun))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_period_ends_when_it_is_ended_or_not_confirmed_in_time() {
        let periods = OnlyUserPeriods::new();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(periods.current(at(0)), None);
        periods.confirm(at(2000), at(10));
        let first = periods.current(at(10));
        assert!(first.is_some());
        periods.confirm(at(2500), at(510));
        assert_eq!(periods.current(at(2400)), first, "it was confirmed");
        assert_eq!(periods.current(at(2500)), None, "the check is too late");
        periods.confirm(at(4600), at(2610));
        let second = periods.current(at(2700));
        assert!(second.is_some() && second != first, "others may have used the store meanwhile");
        periods.end();
        assert_eq!(periods.current(at(3010)), None);
        periods.confirm(at(5500), at(3510));
        assert!(![None, first, second].contains(&periods.current(at(3510))));
    }
}
