//! Calls of a function that the kernel may block without limit, each with a time limit.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::locks::lock;

/// Calls a function on helper threads and waits a limited time for each result.
///
/// A call that exceeds the limit keeps its thread until the function returns. At most `blocked_max`
/// threads are kept in this way, and in addition one for each thread that is inside
/// [`results`](Self::results) at the same moment.
pub struct TimedCalls<Q, A> {
    function: Function<Q, A>,
    timeout: Duration,
    blocked_max: usize,
    blocked: Arc<Mutex<Blocked<Q>>>,
}

type Function<Q, A> = Arc<dyn Fn(&Q) -> A + Send + Sync>;

/// The calls that have exceeded the limit and have not returned: the number of the thread, and the
/// argument.
#[derive(Debug)]
struct Blocked<Q> {
    calls: Vec<(u64, Q)>,
    last_thread: u64,
}

/// A thread that calls the function for some arguments, in their order, and sends the results.
struct Helper<A> {
    number: u64,
    results: Receiver<A>,
    thread: std::thread::JoinHandle<()>,
}

impl<Q, A> TimedCalls<Q, A>
where
    Q: Clone + PartialEq + Send + 'static,
    A: Send + 'static,
{
    /// Prepares calls of `function`, which must not panic. No thread is started.
    pub fn new(
        function: impl Fn(&Q) -> A + Send + Sync + 'static,
        timeout: Duration,
        blocked_max: usize,
    ) -> Self {
        let blocked = Arc::new(Mutex::new(Blocked { calls: Vec::new(), last_thread: 0 }));
        TimedCalls { function: Arc::new(function), timeout, blocked_max, blocked }
    }

    /// Calls the function for each argument and returns the results in the same order. A result is
    /// `None` if the call takes longer than the timeout, if an earlier call with an equal argument
    /// is still blocked, if `blocked_max` calls are blocked, or if no thread can be started.
    ///
    /// One thread makes all calls; after a call that takes too long, another thread continues. On
    /// return all threads have ended, except those whose call is blocked.
    pub fn results(&self, arguments: impl IntoIterator<Item = Q>) -> Vec<Option<A>> {
        self.results_within(arguments, |_| self.timeout)
    }

    fn results_within(
        &self,
        arguments: impl IntoIterator<Item = Q>,
        timeout: impl Fn(&Q) -> Duration,
    ) -> Vec<Option<A>> {
        let mut left: VecDeque<(usize, Q)> = arguments.into_iter().enumerate().collect();
        let mut results: Vec<Option<A>> = left.iter().map(|_| None).collect();
        while let Some(helper) = self.start_helper(&mut left) {
            let is_complete = loop {
                let Some((index, argument)) = left.pop_front() else { break true };
                results[index] = self.receive(&helper, &argument, timeout(&argument));
                if results[index].is_none() {
                    break false;
                }
            };
            if is_complete {
                // The thread has no more calls to make. It is joined, because callers rely on the
                // number of threads of the process.
                let _ = helper.thread.join();
            }
        }
        results
    }

    /// Starts a thread that calls the function for the arguments in `left`. Removes those whose
    /// call is blocked. Returns `None` if none is left or no thread can be started.
    fn start_helper(&self, left: &mut VecDeque<(usize, Q)>) -> Option<Helper<A>> {
        let number = {
            let mut blocked = lock(&self.blocked);
            left.retain(|(_, argument)| blocked.calls.iter().all(|(_, other)| other != argument));
            if left.is_empty() || blocked.calls.len() >= self.blocked_max {
                return None;
            }
            blocked.last_thread += 1;
            blocked.last_thread
        };
        let arguments: Vec<Q> = left.iter().map(|(_, argument)| argument.clone()).collect();
        let (send_result, results) = channel();
        let (function, blocked) = (Arc::clone(&self.function), Arc::clone(&self.blocked));
        let run = move || {
            for argument in &arguments {
                // After a call that took too long there is no receiver.
                if send_result.send(function(argument)).is_err() {
                    break;
                }
            }
            lock(&blocked).calls.retain(|(other, _)| *other != number);
        };
        let thread = std::thread::Builder::new().name("timed-calls".into()).spawn(run).ok()?;
        Some(Helper { number, results, thread })
    }

    /// Waits for the result of the call that follows the last received one. Returns `None` if it
    /// takes too long; the thread's later results are not received.
    fn receive(&self, helper: &Helper<A>, argument: &Q, timeout: Duration) -> Option<A> {
        if let Ok(result) = helper.results.recv_timeout(timeout) {
            return Some(result);
        }
        let mut blocked = lock(&self.blocked);
        // The thread sends its result before it takes this lock to remove its call. If there is no
        // result yet, the call is therefore in the list before the thread removes it.
        match helper.results.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                blocked.calls.push((helper.number, argument.clone()));
                None
            }
        }
    }
}

impl<Q, A> std::fmt::Debug for TimedCalls<Q, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TimedCalls { timeout, blocked_max, .. } = self;
        f.debug_struct("TimedCalls")
            .field("timeout", timeout)
            .field("blocked_max", blocked_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;
    use std::thread::ThreadId;

    use super::*;

    /// The first argument whose call blocks. The others return at once.
    const BLOCKING: u32 = 100;
    const NEVER: Duration = Duration::from_secs(3600);

    /// Returns calls that report their thread. Calls from `BLOCKING` on return when the sender is
    /// dropped.
    fn calls(blocked_max: usize) -> (TimedCalls<u32, ThreadId>, Sender<()>) {
        let (release, released) = channel();
        let released = Mutex::new(released);
        let function = move |argument: &u32| {
            if *argument >= BLOCKING {
                // All blocked calls wait until the sender is dropped, one after the other.
                assert!(lock(&released).recv().is_err());
            }
            std::thread::current().id()
        };
        (TimedCalls::new(function, NEVER, blocked_max), release)
    }

    /// Calls the function for the arguments. The time limit of blocking calls is 0, so that the
    /// tests do not wait.
    fn results(calls: &TimedCalls<u32, ThreadId>, arguments: &[u32]) -> Vec<Option<ThreadId>> {
        let timeout = |argument: &u32| if *argument >= BLOCKING { Duration::ZERO } else { NEVER };
        calls.results_within(arguments.iter().copied(), timeout)
    }

    #[test]
    fn one_thread_makes_all_calls_that_return() {
        let (calls, _release) = calls(1);
        let results = calls.results([1, 2, 3]);
        assert_eq!(results.len(), 3);
        assert!(results[0].is_some_and(|thread| thread != std::thread::current().id()));
        assert!(results.iter().all(|thread| *thread == results[0]));
    }

    #[test]
    fn another_thread_continues_after_a_blocked_call() {
        let (calls, _release) = calls(2);
        let results = results(&calls, &[1, BLOCKING, 2, 3]);
        let [Some(first), None, Some(second), Some(third)] = results[..] else { panic!("{results:?}") };
        assert_ne!(first, second);
        assert_eq!(second, third);
    }

    #[test]
    fn a_blocked_call_is_not_repeated() {
        let (calls, _release) = calls(3);
        assert_eq!(results(&calls, &[BLOCKING, BLOCKING]), [None, None]);
        assert_eq!(calls.results([BLOCKING]), [None], "returns without waiting");
        assert_eq!(lock(&calls.blocked).calls.len(), 1);
    }

    #[test]
    fn the_number_of_blocked_calls_is_limited() {
        let (calls, _release) = calls(2);
        assert_eq!(results(&calls, &[BLOCKING, BLOCKING + 1, BLOCKING + 2, 1]), [None; 4]);
        assert_eq!(lock(&calls.blocked).calls.len(), 2);
    }

    #[test]
    fn calls_continue_when_a_blocked_call_has_returned() {
        let (calls, release) = calls(1);
        assert_eq!(results(&calls, &[BLOCKING, 1]), [None, None]);
        drop(release);
        while !lock(&calls.blocked).calls.is_empty() {
            std::thread::yield_now();
        }
        assert!(calls.results([BLOCKING, 1]).iter().all(Option::is_some));
    }
}
