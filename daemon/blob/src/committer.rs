//! The thread that commits the transactions of clients, in groups.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use quell_blob_service::OpenStore;
use quell_threads::{lock, wait_while};
use quell_transport::peer;

/// The time between two attempts to commit transactions that wait for a snapshot of several groups.
const HELD_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Default)]
struct CommitterState {
    /// Whether the thread looks for transactions that wait.
    is_awake: bool,
    is_ending: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<CommitterState>,
    changed: Condvar,
}

/// The thread that commits.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Wakes the thread.
#[derive(Clone)]
pub(crate) struct CommitterWaker(Arc<Shared>);

impl CommitterWaker {
    /// Lets the thread commit a transaction that was submitted.
    pub(crate) fn wake(&self) {
        let was_awake = std::mem::replace(&mut lock(&self.0.state).is_awake, true);
        if !was_awake {
            self.0.changed.notify_one();
        }
    }
}

impl Committer {
    pub(crate) fn start(store: OpenStore) -> io::Result<Committer> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let run = move || {
            loop {
                let mut state =
                    wait_while(&own.changed, lock(&own.state), |state| !state.is_awake && !state.is_ending);
                let is_last = state.is_ending;
                state.is_awake = false;
                drop(state);
                // The replies of a group are written together.
                let sends = peer::Server::collect();
                while store.commit_pending_and(&mut || sends.send()) {}
                // A snapshot of several groups lets them wait. When the server ends, no client
                // waits for them.
                while store.has_pending() && !lock(&own.state).is_ending {
                    std::thread::sleep(HELD_INTERVAL);
                    while store.commit_pending_and(&mut || sends.send()) {}
                }
                if is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("blob commits".into()).spawn(run)?;
        Ok(Committer { shared, thread: Some(thread) })
    }

    pub(crate) fn waker(&self) -> CommitterWaker {
        CommitterWaker(self.shared.clone())
    }

    /// Ends the thread after it has committed the submitted transactions. A second call does
    /// nothing.
    pub(crate) fn end(&mut self) {
        lock(&self.shared.state).is_ending = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}
