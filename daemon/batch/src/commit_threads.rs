//! The threads that verify and commit batches. A commit can last for minutes, so it must not occupy
//! a thread that executes the operations of mounts.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use quell_batch::ServedStore;
use quell_threads::lock;
use quell_transport::peer::Taken;

/// The largest number of commits that wait for a thread.
const WAITING_MAX: usize = 256;

/// The commits that wait for a thread.
#[derive(Default)]
pub(crate) struct CommitQueue {
    state: Mutex<State>,
    added: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Taken<()>>,
    is_ending: bool,
}

impl CommitQueue {
    /// Passes a commit to the threads. If too many wait already, or the threads have ended, it is
    /// returned.
    pub(crate) fn add(&self, commit: Taken<()>) -> Option<Taken<()>> {
        let mut state = lock(&self.state);
        if state.is_ending || state.waiting.len() >= WAITING_MAX {
            return Some(commit);
        }
        state.waiting.push_back(commit);
        drop(state);
        self.added.notify_one();
        None
    }

    /// Returns the next commit, when there is one. `None` after `end`, when all are taken.
    fn next(&self) -> Option<Taken<()>> {
        let is_waiting = |state: &mut State| state.waiting.is_empty() && !state.is_ending;
        let waited = self.added.wait_while(lock(&self.state), is_waiting);
        waited.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }
}

/// Running threads.
pub(crate) struct CommitThreads {
    queue: Arc<CommitQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl CommitThreads {
    /// Starts at least one thread.
    ///
    /// # Errors
    /// The error of the system if no thread can be created.
    pub(crate) fn start(store: &Arc<ServedStore>, threads: usize) -> io::Result<CommitThreads> {
        let mut started = CommitThreads { queue: Arc::default(), threads: Vec::new() };
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

    /// Ends the threads after they have executed the commits of the queue. A second call does
    /// nothing.
    pub(crate) fn end(&mut self) {
        lock(&self.queue.state).is_ending = true;
        self.queue.added.notify_all();
        for thread in self.threads.drain(..) {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn run(store: &ServedStore, queue: &CommitQueue) {
    while let Some(Taken { request, reply, .. }) = queue.next() {
        reply.send(store.execute(&request.bytes, request.reply_bytes_max));
    }
}
