//! Decides whether to poll shared memory before sleeping. Pure functions of times: the client and
//! the daemon load their words between two calls of `Attempt::goes_on`.
//!
//! Polling pays if the other side runs at the same time and is quick. It does not call
//! sched_yield(2), which in Linux 6.18 takes a whole time slice from the calling thread for each
//! call: beside busy programs, a thread that polls so does not run for seconds.
//! docs/decisions/0020-local-channel.md has the measurements.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often words are loaded between two calls of `Attempt::goes_on`, with a pause instruction
/// between loads.
pub(super) const LOADS_PER_CHECK: u32 = 32;
/// If two calls of `Attempt::goes_on` are further apart, another thread had the processor. A thread
/// that polls uses up its share of such a processor, and would be scheduled late when there is
/// something to do.
const GAP_MAX: Duration = Duration::from_micros(200);
/// How long polling is not tried after another thread had the processor.
const CONTENTION_PAUSE: Duration = Duration::from_millis(10);

/// The results of the last attempts to poll. Several threads can use it.
#[derive(Debug)]
pub(super) struct Polling {
    created: Instant,
    /// Whether the last polling succeeded, or the last sleep was short.
    is_useful: AtomicBool,
    /// The time before which polling is not tried, in nanoseconds after `created`.
    not_before_ns: AtomicU64,
}

/// One attempt.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    polling: &'a Polling,
    checked: Instant,
    end: Instant,
}

impl Polling {
    pub(super) fn new(created: Instant) -> Polling {
        Polling { created, is_useful: AtomicBool::new(true), not_before_ns: AtomicU64::new(0) }
    }

    /// Begins to poll at `now` until `end`; `None` if sleeping is better.
    pub(super) fn begin(&self, now: Instant, end: Instant) -> Option<Attempt<'_>> {
        let not_before = Duration::from_nanos(self.not_before_ns.load(Ordering::Relaxed));
        let may_begin = self.is_useful.load(Ordering::Relaxed) && self.created + not_before <= now;
        may_begin.then_some(Attempt { polling: self, checked: now, end })
    }

    /// Records how long a sleep was, or the wait that ended with a sleep; `short`: the duration
    /// below which polling would have been better.
    pub(super) fn slept(&self, duration: Duration, short: Duration) {
        self.is_useful.store(duration < short, Ordering::Relaxed);
    }
}

impl Attempt<'_> {
    /// Returns whether to go on polling.
    pub(super) fn goes_on(&mut self, now: Instant) -> bool {
        if now - self.checked > GAP_MAX {
            let not_before = now + CONTENTION_PAUSE - self.polling.created;
            self.polling.not_before_ns.store(not_before.as_nanos() as u64, Ordering::Relaxed);
            return false;
        }
        self.checked = now;
        if now >= self.end {
            self.polling.is_useful.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn polling_without_success_is_tried_again_after_a_short_sleep() {
        let start = Instant::now();
        let polling = Polling::new(start);
        let mut attempt = polling.begin(start, start + 50 * US).unwrap();
        assert!(attempt.goes_on(start + 49 * US) && !attempt.goes_on(start + 50 * US));
        assert!(polling.begin(start, start + 50 * US).is_none());
        polling.slept(100 * US, 100 * US);
        assert!(polling.begin(start, start + 50 * US).is_none());
        polling.slept(99 * US, 100 * US);
        assert!(polling.begin(start, start + 50 * US).is_some());
    }

    #[test]
    fn polling_pauses_when_another_thread_had_the_processor() {
        let start = Instant::now();
        let polling = Polling::new(start);
        let mut attempt = polling.begin(start, start + 1000 * US).unwrap();
        assert!(attempt.goes_on(start + 200 * US) && !attempt.goes_on(start + 401 * US));
        let end = start + 401 * US + CONTENTION_PAUSE;
        assert!(polling.begin(end - US, end).is_none());
        assert!(polling.begin(end, end + US).is_some());
    }
}
