//! The worker threads of a probe. All requests to the file system are sent by them, so that the
//! main thread can detect a call that takes too long, end the measurement, and give up a call that
//! never returns. The threads must never be joined.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::kind::OperationKind;
use crate::progress::ProbeProgress;

/// A call that takes longer shows that the file system is overloaded already.
pub const SLOW: Duration = Duration::from_secs(1);
/// The time limit for calls in flight at the end.
const HANG_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between checks of the threads.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The limits of one task.
#[derive(Debug, Clone, Copy)]
pub struct TaskLimits {
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
    pub kind: OperationKind,
    pub took: Duration,
}

/// A completed task.
#[derive(Debug)]
pub struct TaskResult<T> {
    /// The results of the threads.
    pub results: Vec<T>,
    pub calls: Vec<Call>,
    /// From the start of the first thread to the end of the last one.
    pub seconds: f64,
}

#[derive(Debug)]
pub enum TaskError {
    /// A call did not return and was given up.
    Hung,
    /// This node does not allow more threads.
    NoThreads,
}

/// No more calls may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitReached;

#[derive(Debug)]
pub struct WorkerPool {
    progress: Arc<ProbeProgress>,
    slow: Arc<AtomicBool>,
}

/// The state that the threads of one task share.
struct SharedState {
    task_limits: TaskLimits,
    left: AtomicU64,
    progress: Arc<ProbeProgress>,
    slow: Arc<AtomicBool>,
    started: Instant,
    /// For each thread, the start of the call in flight, in nanoseconds after `started`; 0 if there
    /// is none.
    in_flight_since_ns: Vec<AtomicU64>,
}

/// One thread of a task.
pub struct Worker {
    state: Arc<SharedState>,
    number: usize,
    calls: Vec<Call>,
}

impl Worker {
    pub fn number(&self) -> usize {
        self.number
    }

    /// Makes one call if the limits allow it, counts it and measures its duration.
    pub fn call<T>(
        &mut self,
        kind: OperationKind,
        request: impl FnOnce() -> rustix::io::Result<T>,
    ) -> Result<rustix::io::Result<T>, LimitReached> {
        let task_limits = self.state.task_limits;
        if Instant::now() >= task_limits.until
            || (!task_limits.removing && !self.state.take_operations(kind.operations()))
        {
            return Err(LimitReached);
        }
        Ok(self.call_regardless_of_limits(kind, request))
    }

    /// Does the same as `call`, for the few calls that are made regardless of the limits.
    pub fn call_regardless_of_limits<T>(
        &mut self,
        kind: OperationKind,
        request: impl FnOnce() -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        let state = &self.state;
        let begun = Instant::now();
        state.progress.add_operations(kind.operations());
        let since = begun.duration_since(state.started).as_nanos() as u64;
        state.in_flight_since_ns[self.number].store(since.max(1), Ordering::Relaxed);
        let answer = request();
        let took = begun.elapsed();
        state.in_flight_since_ns[self.number].store(0, Ordering::Relaxed);
        if took > SLOW {
            state.slow.store(true, Ordering::Relaxed);
            tracing::debug!(kind = kind.name(), ?took, "a call took too long");
        }
        self.calls.push(Call { kind, took });
        answer
    }
}

impl SharedState {
    /// Takes operations from the limit; returns whether the call may be made.
    fn take_operations(&self, operations: u64) -> bool {
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
        let now = self.started.elapsed().as_nanos() as u64;
        self.in_flight_since_ns.iter().any(|since_ns| match since_ns.load(Ordering::Relaxed) {
            0 => false,
            since => now.saturating_sub(since) > SLOW.as_nanos() as u64,
        })
    }
}

impl WorkerPool {
    pub fn new(progress: Arc<ProbeProgress>) -> WorkerPool {
        WorkerPool { progress, slow: Arc::default() }
    }

    pub fn progress(&self) -> &Arc<ProbeProgress> {
        &self.progress
    }

    /// Returns whether a call took too long.
    pub fn has_slow_call(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// Runs `job` once in each thread and waits for all of them.
    pub fn run<T: Send + 'static>(
        &self,
        task_limits: TaskLimits,
        job: impl Fn(&mut Worker) -> T + Send + Sync + 'static,
    ) -> Result<TaskResult<T>, TaskError> {
        let state = Arc::new(SharedState {
            task_limits,
            left: AtomicU64::new(task_limits.operations),
            progress: self.progress.clone(),
            slow: self.slow.clone(),
            started: Instant::now(),
            in_flight_since_ns: (0..task_limits.threads).map(|_| AtomicU64::new(0)).collect(),
        });
        let job = Arc::new(job);
        // Held until all threads have started, so that they begin at the same time.
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        let (report, reports) = mpsc::channel();
        for number in 0..task_limits.threads as usize {
            let (shared, job, gate, report) = (state.clone(), job.clone(), gate.clone(), report.clone());
            let thread = move || {
                drop(gate.lock());
                let mut worker = Worker { state: shared, number, calls: Vec::new() };
                let result = job(&mut worker);
                // The main thread no longer receives from a thread that was given up.
                let _ = report.send((result, worker.calls, Instant::now()));
            };
            if std::thread::Builder::new().spawn(thread).is_err() {
                // The threads that were started find no operations left.
                state.left.store(0, Ordering::Relaxed);
                tracing::debug!(number, "this node allows no more threads");
                return Err(TaskError::NoThreads);
            }
        }
        drop(report);
        let begun = Instant::now();
        drop(closed);
        let mut done = TaskResult { results: Vec::new(), calls: Vec::new(), seconds: 0.0 };
        let mut ended = begun;
        let mut give_up = None;
        while done.results.len() < task_limits.threads as usize {
            match reports.recv_timeout(CHECK_INTERVAL) {
                Ok((result, calls, at)) => {
                    done.results.push(result);
                    done.calls.extend(calls);
                    ended = ended.max(at);
                }
                Err(RecvTimeoutError::Disconnected) => panic!("a thread of the probe panicked"),
                Err(RecvTimeoutError::Timeout) => {
                    if state.is_slow() {
                        self.slow.store(true, Ordering::Relaxed);
                    }
                    let over =
                        Instant::now() >= task_limits.until || (!task_limits.removing && state.is_stopped());
                    if over && Instant::now() > *give_up.get_or_insert_with(|| Instant::now() + HANG_TIMEOUT)
                    {
                        tracing::debug!(threads = task_limits.threads, "gave up a call that does not return");
                        return Err(TaskError::Hung);
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

    fn task_limits(threads: u32, operations: u64, milliseconds: u64) -> TaskLimits {
        let until = Instant::now() + Duration::from_millis(milliseconds);
        TaskLimits { threads, operations, until, removing: false }
    }

    fn call_until_the_limit(worker: &mut Worker) {
        while worker.call(OperationKind::List, || Ok(())).is_ok() {}
    }

    #[test]
    fn all_threads_together_stay_within_the_operation_limit() {
        let pool = WorkerPool::new(Arc::default());
        let done = pool.run(task_limits(8, 1_001, 60_000), call_until_the_limit).unwrap();
        // A listing counts as two operations.
        assert_eq!((done.results.len(), done.calls.len()), (8, 500));
        assert_eq!(pool.progress().operations(), 1_000);
        assert!(!pool.has_slow_call());
    }

    #[test]
    fn the_time_limit_ends_the_task() {
        // On a busy machine the time may be over before a thread has begun.
        let ended = [30, 300, 3_000, 30_000].into_iter().any(|milliseconds| {
            let pool = WorkerPool::new(Arc::default());
            let done = pool.run(task_limits(2, u64::MAX, milliseconds), call_until_the_limit).unwrap();
            !done.calls.is_empty() && done.seconds >= 0.02
        });
        assert!(ended);
    }

    #[test]
    fn a_slow_call_ends_the_task_of_all_threads() {
        let pool = WorkerPool::new(Arc::default());
        let job = |worker: &mut Worker| match worker.number() {
            0 => drop(worker.call(OperationKind::LookUp, || {
                std::thread::sleep(SLOW + Duration::from_millis(200));
                Ok(())
            })),
            _ => call_until_the_limit(worker),
        };
        let begun = Instant::now();
        pool.run(task_limits(3, u64::MAX, 60_000), job).unwrap();
        assert!(pool.has_slow_call() && begun.elapsed() < Duration::from_secs(60));
        // The measurement is over, removal is not.
        let removing = TaskLimits { removing: true, ..task_limits(1, 0, 60_000) };
        let done =
            pool.run(removing, |worker| worker.call(OperationKind::Remove, || Ok(())).is_ok()).unwrap();
        assert_eq!(done.results, [true]);
        let done = pool
            .run(task_limits(1, 10, 60_000), |worker| worker.call(OperationKind::List, || Ok(())).is_ok())
            .unwrap();
        assert_eq!(done.results, [false]);
    }

    #[test]
    fn a_stop_request_ends_the_task() {
        let progress = Arc::new(ProbeProgress::default());
        let pool = WorkerPool::new(progress.clone());
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            progress.stop();
        });
        pool.run(task_limits(2, u64::MAX, 600_000), call_until_the_limit).unwrap();
        stopper.join().unwrap();
    }
}
