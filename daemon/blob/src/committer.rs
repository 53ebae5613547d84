//! The thread that commits the transactions of clients, in groups, and the thread that removes data
//! that these transactions have replaced or deleted. Removals wait for the storage; commits do not
//! wait for removals.

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
struct State {
    /// Whether the thread has work.
    is_awake: bool,
    is_ending: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Wakes a thread.
#[derive(Clone, Default)]
pub(crate) struct Waker(Arc<Shared>);

impl Waker {
    /// Makes the thread work. If it is working already, it works once more afterwards.
    pub(crate) fn wake(&self) {
        let was_awake = std::mem::replace(&mut lock(&self.0.state).is_awake, true);
        if !was_awake {
            self.0.changed.notify_one();
        }
    }

    fn is_ending(&self) -> bool {
        lock(&self.0.state).is_ending
    }

    /// Calls `work` each time that the thread is woken, and once more before the thread ends.
    fn run(&self, work: impl Fn()) {
        loop {
            let state = lock(&self.0.state);
            let mut state = wait_while(&self.0.changed, state, |state| !state.is_awake && !state.is_ending);
            let is_last = state.is_ending;
            state.is_awake = false;
            drop(state);
            work();
            if is_last {
                return;
            }
        }
    }

    fn end(&self) {
        lock(&self.0.state).is_ending = true;
        self.0.changed.notify_one();
    }
}

/// The threads that commit and that remove unneeded data.
pub(crate) struct Committer {
    commits: Waker,
    removals: Waker,
    threads: Vec<JoinHandle<()>>,
}

impl Committer {
    pub(crate) fn start(store: OpenStore) -> io::Result<Committer> {
        let (commits, removals) = (Waker::default(), Waker::default());
        let mut committer =
            Committer { commits: commits.clone(), removals: removals.clone(), threads: Vec::new() };
        let (own, of_removals) = (store.clone(), removals.clone());
        let commit = move || commits.run(|| commit_all(&own, &commits, &of_removals));
        committer.threads.push(std::thread::Builder::new().name("blob commits".into()).spawn(commit)?);
        let commits = committer.commits.clone();
        let remove = move || removals.run(|| remove_some(&store, &commits));
        match std::thread::Builder::new().name("blob removals".into()).spawn(remove) {
            Ok(thread) => committer.threads.push(thread),
            Err(error) => {
                committer.end();
                return Err(error);
            }
        }
        Ok(committer)
    }

    /// Returns the waker with which a thread has a submitted transaction committed.
    pub(crate) fn waker(&self) -> Waker {
        self.commits.clone()
    }

    /// Ends the threads after they have committed the submitted transactions. A second call does
    /// nothing.
    pub(crate) fn end(&mut self) {
        self.commits.end();
        self.removals.end();
        for thread in self.threads.drain(..) {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn commit_all(store: &OpenStore, own: &Waker, removals: &Waker) {
    // The replies of a group are written together.
    let sends = peer::Server::collect();
    while store.commit_pending_and(&mut || sends.send()) {}
    // Transactions wait while a snapshot of several groups is taken. When the server ends, no
    // client waits for them.
    while store.has_pending() && !own.is_ending() {
        std::thread::sleep(HELD_INTERVAL);
        while store.commit_pending_and(&mut || sends.send()) {}
    }
    if store.has_removable() {
        removals.wake();
    }
}

fn remove_some(store: &OpenStore, commits: &Waker) {
    store.remove_some();
    // The remaining content of truncated blobs is removed by commits.
    if store.has_pending() {
        commits.wake();
    }
}
