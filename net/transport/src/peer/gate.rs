//! The bound of the requests of all clients that the handler of a server has at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the requests that the handler has. While there are as many as the maximum, no connection
/// is read, so that clients wait and memory does not grow.
#[derive(Debug)]
pub(super) struct Gate {
    requests: AtomicUsize,
    requests_max: usize,
    changed: Notify,
}

impl Gate {
    pub fn new(requests_max: usize) -> Gate {
        Gate { requests: AtomicUsize::new(0), requests_max, changed: Notify::new() }
    }

    /// Waits until there are fewer requests than the maximum. As each connection waits before a
    /// frame, and not together with `enter`, there can be one more request for each connection.
    pub async fn wait(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.is_full() {
                return;
            }
            changed.await;
        }
    }

    pub fn is_full(&self) -> bool {
        self.requests.load(Ordering::SeqCst) >= self.requests_max
    }

    /// Notes a request that the handler gets.
    pub fn enter(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes the answer to a request.
    pub fn leave(&self) {
        if self.requests.fetch_sub(1, Ordering::SeqCst) == self.requests_max {
            self.changed.notify_waiters();
        }
    }
}
