//! Limits the workers that wait for requests. The kernel gives each request to the worker that has
//! waited longest. With many waiting workers, each request would run on another thread, whose stack
//! and data are not in the caches of the processor. So only a few workers wait; the others pause
//! until all workers that do not pause are busy.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use quell_threads::{lock, wait_timeout_while};

/// The number of workers that wait for requests. One client has up to two requests at the same
/// time, because the kernel does not wait for RELEASE and FORGET.
const WAITING_MAX: usize = 3;
/// The longest pause. The read(2) of a worker fails when the mount has ended, so the workers end no
/// later than this.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The workers of one session.
#[derive(Debug)]
pub(crate) struct Workers {
    counts: Mutex<Counts>,
    called: Condvar,
    pause_max: Duration,
}

#[derive(Debug)]
struct Counts {
    workers: usize,
    busy: usize,
    paused: usize,
    /// Workers that were called and still count as neither paused nor waiting in the kernel.
    called: usize,
}

impl Counts {
    /// Returns the number of workers that wait for requests, or do so soon.
    fn waiting(&self) -> usize {
        self.workers.saturating_sub(self.busy + self.paused)
    }
}

impl Workers {
    pub(crate) fn new(workers: usize) -> Workers {
        Workers::with_pause(workers, PAUSE_MAX)
    }

    fn with_pause(workers: usize, pause_max: Duration) -> Workers {
        let counts = Counts { workers, busy: 0, paused: 0, called: 0 };
        Workers { counts: Mutex::new(counts), called: Condvar::new(), pause_max }
    }

    /// Notes that a worker is busy until the result is dropped. Calls a paused worker if no other
    /// one waits.
    pub(crate) fn begin(&self) -> BusyWorker<'_> {
        let mut counts = lock(&self.counts);
        counts.busy += 1;
        let calls = counts.waiting() == 0 && counts.paused > 0;
        if calls {
            counts.paused -= 1;
            counts.called += 1;
        }
        drop(counts);
        if calls {
            self.called.notify_one();
        }
        BusyWorker { workers: self, may_pause: true }
    }

    /// Notes that a worker has answered its request. Pauses if enough others wait.
    fn end(&self, may_pause: bool) {
        let mut counts = lock(&self.counts);
        counts.busy -= 1;
        if !may_pause || counts.waiting() <= WAITING_MAX {
            return;
        }
        counts.paused += 1;
        counts = wait_timeout_while(&self.called, counts, self.pause_max, |counts| counts.called == 0);
        match counts.called {
            0 => counts.paused -= 1,
            _ => counts.called -= 1,
        }
    }
}

/// A worker that answers a request. It has sent its reply when this is dropped.
#[derive(Debug)]
pub(crate) struct BusyWorker<'a> {
    workers: &'a Workers,
    may_pause: bool,
}

impl BusyWorker<'_> {
    /// Makes the worker continue without a pause.
    pub(crate) fn continue_at_once(&mut self) {
        self.may_pause = false;
    }
}

impl Drop for BusyWorker<'_> {
    fn drop(&mut self) {
        self.workers.end(self.may_pause && !std::thread::panicking());
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    fn counts(workers: &Workers) -> (usize, usize, usize) {
        let counts = lock(&workers.counts);
        (counts.busy, counts.paused, counts.called)
    }

    #[test]
    fn a_worker_pauses_while_others_wait_and_is_called_when_all_others_are_busy() {
        let workers = Workers::with_pause(WAITING_MAX + 2, LONG);
        thread::scope(|scope| {
            let pausing = scope.spawn(|| drop(workers.begin()));
            while counts(&workers) != (0, 1, 0) {
                thread::yield_now();
            }
            // None of these workers is the last one that waits.
            let mut busy: Vec<_> = (0..WAITING_MAX).map(|_| workers.begin()).collect();
            assert_eq!(counts(&workers), (WAITING_MAX, 1, 0));
            busy.push(workers.begin());
            pausing.join().unwrap();
            assert_eq!(counts(&workers), (WAITING_MAX + 1, 0, 0));
            busy.iter_mut().for_each(BusyWorker::continue_at_once);
        });
        assert_eq!(counts(&workers), (0, 0, 0));
    }

    #[test]
    fn a_pause_ends_without_a_call() {
        let workers = Workers::with_pause(WAITING_MAX + 1, Duration::from_millis(1));
        drop(workers.begin());
        assert_eq!(counts(&workers), (0, 0, 0));
    }

    #[test]
    fn few_workers_do_not_pause() {
        let workers = Workers::with_pause(WAITING_MAX, LONG);
        drop(workers.begin());
        let many = Workers::with_pause(100, LONG);
        many.begin().continue_at_once();
        let busy: Vec<_> = (0..100 - WAITING_MAX).map(|_| many.begin()).collect();
        assert_eq!((counts(&workers), counts(&many)), ((0, 0, 0), (100 - WAITING_MAX, 0, 0)));
        busy.into_iter().for_each(|mut busy| busy.continue_at_once());
    }
}
