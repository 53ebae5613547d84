//! Calls of a program's callbacks: one thread for each store, and a limit of operations in flight.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{JoinHandle, ThreadId};

use quell_threads::{lock, wait_while};
use quell_vfs::{Error, ErrorKind, Result};

use crate::owner::closed;

const EDEADLK: i32 = 35;

/// Calls one callback.
type Call = Box<dyn FnOnce() + Send>;

/// The callbacks of a store. The thread that calls them is started by the first operation.
pub struct Callbacks {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    in_flight_max: usize,
    state: Mutex<State>,
    /// Wakes the thread: a call was added, or the store is closed.
    called: Condvar,
    /// Wakes the threads that wait until fewer operations are in flight.
    finished: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of operations whose callbacks have not returned.
    in_flight: usize,
    calls: VecDeque<Call>,
    is_closed: bool,
    thread: Option<ThreadId>,
}

/// One operation in flight. Its callback must be called once.
pub struct InFlight(Arc<Shared>);

impl Callbacks {
    /// Returns the callbacks of a store with at most `in_flight_max` operations in flight.
    pub fn new(in_flight_max: usize) -> Callbacks {
        let shared = Shared {
            in_flight_max,
            state: Mutex::default(),
            called: Condvar::new(),
            finished: Condvar::new(),
        };
        Callbacks { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Begins an operation. Waits while the largest number of operations is in flight, unless the
    /// caller is a callback: it would wait for itself.
    ///
    /// # Errors
    /// EBADF after `close`; the error of a thread that cannot be started.
    pub fn begin(&self) -> Result<InFlight> {
        self.start()?;
        let shared = &self.shared;
        let current = std::thread::current().id();
        let is_full = |state: &mut State| {
            state.in_flight >= shared.in_flight_max && !state.is_closed && state.thread != Some(current)
        };
        let mut state = wait_while(&shared.finished, lock(&shared.state), is_full);
        if state.is_closed {
            return Err(closed("it is closed"));
        }
        state.in_flight += 1;
        Ok(InFlight(shared.clone()))
    }

    /// Waits until all callbacks have returned.
    ///
    /// # Errors
    /// EDEADLK if the caller is a callback.
    pub fn drain(&self) -> Result<()> {
        let shared = &self.shared;
        let state = lock(&shared.state);
        if state.thread == Some(std::thread::current().id()) {
            let source = Some("a callback cannot wait for callbacks".into());
            return Err(Error { source, ..Error::new(ErrorKind::Os(EDEADLK), "wait for operations", "") });
        }
        drop(wait_while(&shared.finished, state, |state| state.in_flight > 0));
        Ok(())
    }

    /// Refuses more operations, waits until all callbacks have returned, and ends the thread.
    ///
    /// # Errors
    /// EDEADLK if the caller is a callback. Then the callbacks are not closed.
    pub fn close(&self) -> Result<()> {
        self.drain()?;
        lock(&self.shared.state).is_closed = true;
        // Operations that another thread has begun since are finished before the thread ends.
        self.shared.called.notify_all();
        self.shared.finished.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        Ok(())
    }

    fn start(&self) -> Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_some() || lock(&self.shared.state).is_closed {
            return Ok(());
        }
        let shared = self.shared.clone();
        let started = std::thread::Builder::new()
            .name("blob callbacks".into())
            .spawn(move || shared.execute())
            .map_err(|cause| Error::from_io(cause, "start a thread", "blob callbacks"))?;
        lock(&self.shared.state).thread = Some(started.thread().id());
        *thread = Some(started);
        Ok(())
    }
}

impl Shared {
    fn execute(&self) {
        let waits = |state: &mut State| state.calls.is_empty() && !(state.is_closed && state.in_flight == 0);
        loop {
            let mut state = wait_while(&self.called, lock(&self.state), waits);
            let Some(call) = state.calls.pop_front() else { return };
            drop(state);
            call();
            lock(&self.state).in_flight -= 1;
            self.finished.notify_all();
        }
    }
}

impl InFlight {
    /// Passes the call of the callback to the thread.
    pub fn finish(self, call: Call) {
        lock(&self.0.state).calls.push_back(call);
        self.0.called.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn callers_wait_while_the_largest_number_is_in_flight_and_callbacks_do_not() {
        let callbacks = Arc::new(Callbacks::new(2));
        let called = Arc::new(AtomicUsize::new(0));
        let held = [callbacks.begin().unwrap(), callbacks.begin().unwrap()];
        let (sender, receiver) = channel();
        let third = {
            let callbacks = callbacks.clone();
            std::thread::spawn(move || {
                let third = callbacks.begin().unwrap();
                sender.send(()).unwrap();
                third.finish(Box::new(|| ()));
            })
        };
        assert!(receiver.recv_timeout(std::time::Duration::from_millis(20)).is_err());
        for operation in held {
            let (callbacks, called) = (callbacks.clone(), called.clone());
            operation.finish(Box::new(move || {
                assert!(callbacks.drain().is_err() && callbacks.close().is_err());
                let more = callbacks.begin().unwrap();
                more.finish(Box::new(move || _ = called.fetch_add(1, Ordering::Relaxed)));
            }));
        }
        receiver.recv().unwrap();
        third.join().unwrap();
        callbacks.close().unwrap();
        assert_eq!(called.load(Ordering::Relaxed), 2);
        assert!(callbacks.begin().is_err());
    }
}
