//! The threads that verify and commit batches, resolve their conflicts, and merge the tables of the
//! image. This can last for minutes, so it must not occupy a thread that executes the operations of
//! mounts. One user other than the owner of the store occupies at most half of these threads.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use quell_batch::{Requester, ServedStore};
use quell_threads::lock;
use quell_transport::peer::Taken;

use crate::fair_queue::FairQueue;

/// The reason for which a request is refused when too many wait for a thread.
const QUEUE_IS_FULL: &str = "too many commits are waiting for a thread; repeat the command later";
/// The reason for which a request that no thread has begun is refused when the server ends.
const SERVER_ENDS: &str = "the server ends; repeat the command when the next server runs, or without one";

/// A request that no thread will execute.
pub(crate) struct Refused {
    pub(crate) request: Taken<Requester>,
    pub(crate) reason: &'static str,
}

/// The requests that wait for a thread.
pub(crate) struct CommitQueue {
    state: Mutex<State>,
    added: Condvar,
}

struct State {
    waiting: FairQueue<Taken<Requester>>,
    /// Whether there are submitted batches that no thread has begun to commit.
    has_submitted: bool,
    /// A thread commits submitted batches. Others would wait for it.
    is_committing_submitted: bool,
    /// Whether tables are to be merged, and no thread has begun to do so.
    needs_merge: bool,
    /// A thread merges tables. Others have nothing to do then.
    is_merging: bool,
    is_ending: bool,
}

/// The work of a thread.
enum Work {
    /// A request, and its user, unless it is the owner of the store.
    Request(Option<u32>, Taken<Requester>),
    /// The commit of all batches that were submitted.
    Submitted,
    /// A merge of tables.
    Merge,
}

impl State {
    /// Returns whether a thread is to commit the submitted batches.
    fn should_commit_submitted(&self) -> bool {
        self.has_submitted && !self.is_committing_submitted
    }

    /// Returns whether a thread is to merge tables.
    fn should_merge(&self) -> bool {
        self.needs_merge && !self.is_merging
    }
}

impl CommitQueue {
    fn new(threads: usize) -> CommitQueue {
        let state = State {
            waiting: FairQueue::new(threads),
            has_submitted: false,
            is_committing_submitted: false,
            needs_merge: false,
            is_merging: false,
            is_ending: false,
        };
        CommitQueue { state: Mutex::new(state), added: Condvar::new() }
    }

    /// Passes a request to the threads.
    ///
    /// # Errors
    /// The request is returned if too many wait already, or the threads end.
    pub(crate) fn add(&self, request: Taken<Requester>) -> Result<(), Refused> {
        let user = request.rights.caller().map(|caller| caller.uid);
        let mut state = lock(&self.state);
        if state.is_ending {
            return Err(Refused { request, reason: SERVER_ENDS });
        }
        let added = state.waiting.add(user, request);
        drop(state);
        self.added.notify_one();
        added.map_err(|request| Refused { request, reason: QUEUE_IS_FULL })
    }

    /// Makes a thread commit the batches that were submitted. If the threads end first, the next
    /// server commits them.
    pub(crate) fn commit_submitted(&self) {
        let mut state = lock(&self.state);
        state.has_submitted = !state.is_ending;
        drop(state);
        self.added.notify_one();
    }

    /// Makes a thread merge the tables of the image.
    pub(crate) fn merge_tables(&self) {
        let mut state = lock(&self.state);
        if state.needs_merge || state.is_ending {
            return;
        }
        state.needs_merge = true;
        drop(state);
        self.added.notify_one();
    }

    /// Makes the threads end after the requests that they execute now, and returns the requests
    /// that wait for a thread. Later requests are refused.
    fn close(&self) -> Vec<Refused> {
        let mut state = lock(&self.state);
        (state.is_ending, state.has_submitted, state.needs_merge) = (true, false, false);
        let waiting = state.waiting.drain();
        drop(state);
        self.added.notify_all();
        waiting.map(|request| Refused { request, reason: SERVER_ENDS }).collect()
    }

    /// Waits for work, and returns it. `None` after `close`.
    fn next(&self) -> Option<Work> {
        let is_waiting = |state: &mut State| {
            let has_work = state.should_commit_submitted() || state.should_merge();
            !state.waiting.is_ready() && !has_work && !state.is_ending
        };
        let waited = self.added.wait_while(lock(&self.state), is_waiting);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.should_commit_submitted() {
            (state.has_submitted, state.is_committing_submitted) = (false, true);
            return Some(Work::Submitted);
        }
        if let Some((user, request)) = state.waiting.take() {
            return Some(Work::Request(user, request));
        }
        if state.should_merge() {
            (state.needs_merge, state.is_merging) = (false, true);
            return Some(Work::Merge);
        }
        None
    }

    /// Records that a thread has committed the submitted batches.
    fn record_submitted_committed(&self) {
        lock(&self.state).is_committing_submitted = false;
        self.added.notify_all();
    }

    /// Records that a thread has merged tables.
    fn record_merged(&self) {
        lock(&self.state).is_merging = false;
        self.added.notify_all();
    }

    /// Records that a thread has executed a request of a user, of whom another request may wait.
    fn ended(&self, user: Option<u32>) {
        lock(&self.state).waiting.ended(user);
        self.added.notify_all();
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
        let threads = threads.max(1);
        let queue = Arc::new(CommitQueue::new(threads));
        let mut started = CommitThreads { store: store.clone(), queue, threads: Vec::new() };
        for _ in 0..threads {
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

    /// Refuses the requests that no thread has begun, and all later ones. They have changed
    /// nothing, so their clients can repeat them. A second call does nothing.
    pub(crate) fn refuse_waiting(&self) {
        for refused in self.queue.close() {
            refused.send(&self.store);
        }
    }

    /// Refuses the requests that no thread has begun, and waits for those that are being executed.
    /// A second call does nothing.
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
        self.request.reply.send(store.refuse_busy(self.reason));
    }
}

fn run(store: &ServedStore, queue: &CommitQueue) {
    while let Some(work) = queue.next() {
        match work {
            Work::Request(user, Taken { request, rights, reply }) => {
                reply.send(store.execute(&rights, &request.bytes, request.reply_bytes_max));
                queue.ended(user);
                // The request may have submitted a batch.
                if store.has_submitted() {
                    queue.commit_submitted();
                }
            }
            Work::Merge => {
                store.merge_tables();
                queue.record_merged();
            }
            // The next request that needs the image tries again, and gets the error.
            Work::Submitted => {
                let _ = store.commit_submitted();
                queue.record_submitted_committed();
            }
        }
        if store.needs_merge() {
            queue.merge_tables();
        }
    }
}
