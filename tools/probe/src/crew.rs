//! The worker threads of a probe. All requests to the file system are made in them, so that the
//! main thread can detect a call that takes too long, end the measurement, and give up a call that
//! never returns. The threads must never be joined.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::kind::Kind;
use crate::progress::Progress;

/// A call that takes longer shows that the file system is overloaded already.
pub const SLOW: Duration = Duration::from_secs(1);
/// How long to wait for calls in flight at the end.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval between checks of the threads.
const LOOK: Duration = Duration::from_millis(10);

/// The limits of one task.
#[derive(Debug, Clone, Copy)]
pub struct Orders {
    pub threads: u32,
    pub operations: u64,
    pub until: Instant,
    /// Removal continues when the measurement stops, and is not limited by `operations`, because
    /// its operations were reserved.
    pub removing: bool,
}

/// A completed call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub kind: Kind,
    pub took: Duration,
}

/// A completed task.
#[derive(Debug)]
pub struct Done<T> {
    /// The results of the threads.
    pub results: Vec<T>,
    pub calls: Vec<Call>,
    /// From the start of the first thread to the end of the last one.
    pub seconds: f64,
}

#[derive(Debug)]
pub enum Trouble {
    /// A call did not return and was given up.
    Hung,
    /// This node does not allow more threads.
    NoThreads,
}

/// No more calls may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enough;

#[derive(Debug)]
pub struct Crew {
    progress: Arc<Progress>,
    slow: Arc<AtomicBool>,
}

/// The state that the threads of one task share.
struct Work {
    orders: Orders,
    left: AtomicU64,
    progress: Arc<Progress>,
    slow: Arc<AtomicBool>,
    epoch: Instant,
    /// For each thread, the start of the call in flight, in nanoseconds after the epoch; 0 if there
    /// is none.
    desks: Vec<AtomicU64>,
}

/// One thread of a task.
pub struct Hand {
    work: Arc<Work>,
    number: usize,
    calls: Vec<Call>,
}

impl Hand {
    pub fn number(&self) -> usize {
        self.number
    }

    /// Makes one call if the limits allow it, counts it and measures its duration.
    pub fn call<T>(
        &mut self,
        kind: Kind,
        ask: impl FnOnce() -> rustix::io::Result<T>,
    ) -> Result<rustix::io::Result<T>, Enough> {
        let orders = self.work.orders;
        if Instant::now() >= orders.until || (!orders.removing && !self.work.goes_on(kind.operations())) {
            return Err(Enough);
        }
        Ok(self.must_call(kind, ask))
    }

    /// As `call`, for the few calls that are made regardless of the limits.
    pub fn must_call<T>(
        &mut self,
        kind: Kind,
        ask: impl FnOnce() -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        let work = &self.work;
        let begun = Instant::now();
        work.progress.asked(kind.operations());
        let since = begun.duration_since(work.epoch).as_nanos() as u64;
        work.desks[self.number].store(since.max(1), Ordering::Relaxed);
        let answer = ask();
        let took = begun.elapsed();
        work.desks[self.number].store(0, Ordering::Relaxed);
        if took > SLOW {
            work.slow.store(true, Ordering::Relaxed);
        }
        self.calls.push(Call { kind, took });
        answer
    }
}

impl Work {
    /// Takes operations from the limit; returns whether the call may be made.
    fn goes_on(&self, operations: u64) -> bool {
        !self.is_stopped()
            && self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(operations))
                .is_ok()
    }

    fn is_stopped(&self) -> bool {
        self.progress.is_stopped() || self.slow.load(Ordering::Relaxed)
    }

    /// Returns whether a call has been in flight for too long.
    fn is_slow(&self) -> bool {
        let now = self.epoch.elapsed().as_nanos() as u64;
        self.desks.iter().any(|desk| match desk.load(Ordering::Relaxed) {
            0 => false,
            since => now.saturating_sub(since) > SLOW.as_nanos() as u64,
        })
    }
}

impl Crew {
    pub fn new(progress: Arc<Progress>) -> Crew {
        Crew { progress, slow: Arc::default() }
    }

    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Returns whether a call took too long.
    pub fn met_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// Runs `job` once in each thread and waits for all of them.
    pub fn run<T: Send + 'static>(
        &self,
        orders: Orders,
        job: impl Fn(&mut Hand) -> T + Send + Sync + 'static,
    ) -> Result<Done<T>, Trouble> {
        let work = Arc::new(Work {
            orders,
            left: AtomicU64::new(orders.operations),
            progress: self.progress.clone(),
            slow: self.slow.clone(),
            epoch: Instant::now(),
            desks: (0..orders.threads).map(|_| AtomicU64::new(0)).collect(),
        });
        let job = Arc::new(job);
        // Held until all threads have started, so that they begin at the same time.
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        let (report, reports) = mpsc::channel();
        for number in 0..orders.threads as usize {
            let (its, job, gate, report) = (work.clone(), job.clone(), gate.clone(), report.clone());
            let thread = move || {
                drop(gate.lock());
                let mut hand = Hand { work: its, number, calls: Vec::new() };
                let result = job(&mut hand);
                // The main thread no longer receives from a thread that was given up.
                let _ = report.send((result, hand.calls, Instant::now()));
            };
            if std::thread::Builder::new().spawn(thread).is_err() {
                // The threads that were started find no operations left.
                work.left.store(0, Ordering::Relaxed);
                return Err(Trouble::NoThreads);
            }
        }
        drop(report);
        let begun = Instant::now();
        drop(closed);
        let mut done = Done { results: Vec::new(), calls: Vec::new(), seconds: 0.0 };
        let mut ended = begun;
        let mut give_up = None;
        while done.results.len() < orders.threads as usize {
            match reports.recv_timeout(LOOK) {
                Ok((result, calls, at)) => {
                    done.results.push(result);
                    done.calls.extend(calls);
                    ended = ended.max(at);
                }
                Err(RecvTimeoutError::Disconnected) => panic!("a thread of the probe panicked"),
                Err(RecvTimeoutError::Timeout) => {
                    if work.is_slow() {
                        self.slow.store(true, Ordering::Relaxed);
                    }
                    let over = Instant::now() >= orders.until || (!orders.removing && work.is_stopped());
                    if over && Instant::now() > *give_up.get_or_insert_with(|| Instant::now() + PATIENCE) {
                        return Err(Trouble::Hung);
                    }
                }
            }
        }
        done.seconds = ended.duration_since(begun).as_secs_f64();
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(threads: u32, operations: u64, milliseconds: u64) -> Orders {
        let until = Instant::now() + Duration::from_millis(milliseconds);
        Orders { threads, operations, until, removing: false }
    }

    fn as_often_as_allowed(hand: &mut Hand) {
        while hand.call(Kind::List, || Ok(())).is_ok() {}
    }

    #[test]
    fn threads_together_ask_no_more_than_was_allotted() {
        let crew = Crew::new(Arc::default());
        let done = crew.run(orders(8, 1_001, 60_000), as_often_as_allowed).unwrap();
        // A listing counts as two operations.
        assert_eq!((done.results.len(), done.calls.len()), (8, 500));
        assert_eq!(crew.progress().operations(), 1_000);
        assert!(!crew.met_slow());
    }

    #[test]
    fn time_ends_the_work() {
        // On a busy machine the time may be over before a thread has begun.
        let ended = [30, 300, 3_000, 30_000].into_iter().any(|milliseconds| {
            let crew = Crew::new(Arc::default());
            let done = crew.run(orders(2, u64::MAX, milliseconds), as_often_as_allowed).unwrap();
            !done.calls.is_empty() && done.seconds >= 0.02
        });
        assert!(ended);
    }

    #[test]
    fn a_slow_call_ends_the_work_of_all() {
        let crew = Crew::new(Arc::default());
        let job = |hand: &mut Hand| match hand.number() {
            0 => drop(hand.call(Kind::LookUp, || {
                std::thread::sleep(SLOW + Duration::from_millis(200));
                Ok(())
            })),
            _ => as_often_as_allowed(hand),
        };
        let begun = Instant::now();
        crew.run(orders(3, u64::MAX, 60_000), job).unwrap();
        assert!(crew.met_slow() && begun.elapsed() < Duration::from_secs(60));
        // The measurement is over, removal is not.
        let removing = Orders { removing: true, ..orders(1, 0, 60_000) };
        let done = crew.run(removing, |hand| hand.call(Kind::Remove, || Ok(())).is_ok()).unwrap();
        assert_eq!(done.results, [true]);
        let done = crew.run(orders(1, 10, 60_000), |hand| hand.call(Kind::List, || Ok(())).is_ok()).unwrap();
        assert_eq!(done.results, [false]);
    }

    #[test]
    fn the_word_to_stop_ends_the_work() {
        let progress = Arc::new(Progress::default());
        let crew = Crew::new(progress.clone());
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            progress.stop();
        });
        crew.run(orders(2, u64::MAX, 600_000), as_often_as_allowed).unwrap();
        stopper.join().unwrap();
    }
}
