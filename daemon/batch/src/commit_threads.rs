//! The threads that verify and commit batches, and resolve their conflicts. This can last for
//! minutes, so it must not occupy a thread that executes the operations of mounts.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use quell_batch::{Requester, ServedStore};
use quell_threads::lock;
use quell_transport::peer::Taken;

/// The largest number of commits that wait for a thread.
const WAITING_MAX: usize = 256;

/// The reason for which a commit is refused when too many wait for a thread.
const QUEUE_IS_FULL: &str = "256 commits are waiting for a thread; repeat the command later";
/// The reason for which a commit that no thread has begun is refused when the server ends.
const SERVER_ENDS: &str = "the server ends; repeat the command when the next server runs, or without one";

/// A commit that no thread will execute.
pub(crate) struct Refused {
    pub(crate) commit: Taken<Requester>,
    pub(crate) reason: &'static str,
}

/// The commits that wait for a thread.
#[derive(Default)]
pub(crate) struct CommitQueue {
    state: Mutex<State>,
    added: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Taken<Requester>>,
    /// Whether there are submitted batches that no thread has begun to commit.
    has_submitted: bool,
    is_ending: bool,
}

/// The work of a thread.
enum Work {
    Commit(Taken<Requester>),
    /// The commit of all batches that were submitted.
    Submitted,
}

impl CommitQueue {
    /// Passes a commit to the threads.
    ///
    /// # Errors
    /// The commit is returned if too many commits wait already, or the threads end.
    pub(crate) fn add(&self, commit: Taken<Requester>) -> Result<(), Refused> {
        let mut state = lock(&self.state);
        let reason = match state.is_ending {
            true => SERVER_ENDS,
            false if state.waiting.len() >= WAITING_MAX => QUEUE_IS_FULL,
            false => {
                state.waiting.push_back(commit);
                drop(state);
                self.added.notify_one();
                return Ok(());
            }
        };
        Err(Refused { commit, reason })
    }

    /// Makes a thread commit the batches that were submitted. If the threads end first, the next
    /// server commits them.
    pub(crate) fn commit_submitted(&self) {
        lock(&self.state).has_submitted = true;
        self.added.notify_one();
    }

    /// Makes the threads end after the commits that they execute now, and returns the commits that
    /// wait for a thread. Later commits are refused.
    fn close(&self) -> Vec<Refused> {
        let mut state = lock(&self.state);
        (state.is_ending, state.has_submitted) = (true, false);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.added.notify_all();
        waiting.into_iter().map(|commit| Refused { commit, reason: SERVER_ENDS }).collect()
    }

    /// Waits for work, and returns it. `None` after `close`.
    fn next(&self) -> Option<Work> {
        let is_waiting =
            |state: &mut State| state.waiting.is_empty() && !state.has_submitted && !state.is_ending;
        let waited = self.added.wait_while(lock(&self.state), is_waiting);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.has_submitted) {
            return Some(Work::Submitted);
        }
        state.waiting.pop_front().map(Work::Commit)
    }
}

/// The running threads.
pub(crate) struct CommitThreads {
    store: Arc<ServedStore>,
    queue: Arc<CommitQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl CommitThreads {
    /// Starts at least one thread.
    ///
    /// # Errors
    /// The error of the system if no thread can be created.
    pub(crate) fn start(store: &Arc<ServedStore>, threads: usize) -> io::Result<CommitThreads> {
        let mut started = CommitThreads { store: store.clone(), queue: Arc::default(), threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let (store, queue) = (store.clone(), started.queue.clone());
            match std::thread::Builder::new().name("batch commits".into()).spawn(move || run(&store, &queue))
            {
                Ok(thread) => started.threads.push(thread),
                Err(error) => {
                    started.end();
                    return Err(error);
                }
            }
        }
        Ok(started)
    }

    /// Returns the queue of the threads.
    pub(crate) fn queue(&self) -> Arc<CommitQueue> {
        self.queue.clone()
    }

    /// Refuses the commits that no thread has begun, and all later ones. Their batches stay open,
    /// so their clients can repeat them. A second call does nothing.
    pub(crate) fn refuse_waiting(&self) {
        for refused in self.queue.close() {
            refused.send(&self.store);
        }
    }

    /// Refuses the commits that no thread has begun, and waits for the commits that are being
    /// executed. A second call does nothing.
    pub(crate) fn end(&mut self) {
        self.refuse_waiting();
        for thread in self.threads.drain(..) {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl Refused {
    /// Sends the reply to the client.
    pub(crate) fn send(self, store: &ServedStore) {
        self.commit.reply.send(store.refuse_busy(self.reason));
    }
}

fn run(store: &ServedStore, queue: &CommitQueue) {
    while let Some(work) = queue.next() {
        match work {
            Work::Commit(Taken { request, rights, reply }) => {
                reply.send(store.execute(&rights, &request.bytes, request.reply_bytes_max));
                // The request may have submitted a batch.
                if store.has_submitted() {
                    queue.commit_submitted();
                }
            }
            // The next request that needs the image tries again, and gets the error.
            Work::Submitted => _ = store.commit_submitted(),
        }
    }
}
