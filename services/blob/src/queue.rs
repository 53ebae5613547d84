//! The transactions that wait for their commit. One thread at a time commits a group of them: the
//! thread of one of the transactions, or a thread of the server.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};

use quell_threads::{lock, wait_while};
use quell_wire::blob::{Committed, Refusal};

use crate::prepared::Prepared;

/// The result of a commit.
pub type CommitResult = Result<Committed, Refusal>;

/// A transaction that waits, and the receiver of its result.
pub(crate) struct PendingTransaction {
    pub(crate) prepared: Prepared,
    pub(crate) receiver: Receiver,
}

/// The receiver of a result.
pub(crate) enum Receiver {
    /// A thread waits for the result.
    Thread(Arc<Waiter>),
    /// A function is called, on the thread that commits.
    Function(Box<dyn FnOnce(CommitResult) + Send>),
}

impl Receiver {
    pub(crate) fn receive(self, result: CommitResult) {
        match self {
            Receiver::Thread(waiter) => waiter.set(WaiterState::Done(result)),
            Receiver::Function(function) => {
                // A panic is a fault of the function, and the panic hook reports it. Other
                // receivers wait for the thread that commits, so it continues.
                let _ = catch_unwind(AssertUnwindSafe(|| function(result)));
            }
        }
    }
}

/// A thread that waits for the result of its transaction, or for its turn to commit a group.
#[derive(Default)]
pub(crate) struct Waiter {
    state: Mutex<WaiterState>,
    changed: Condvar,
}

#[derive(Default)]
enum WaiterState {
    #[default]
    Waiting,
    /// The thread must commit the next group.
    Leads,
    Done(CommitResult),
}

impl Waiter {
    fn set(&self, state: WaiterState) {
        *lock(&self.state) = state;
        self.changed.notify_one();
    }

    /// Waits until there is a result, and returns it. `None` if the thread must commit the next
    /// group.
    pub(crate) fn wait(&self) -> Option<CommitResult> {
        let state = lock(&self.state);
        let mut state = wait_while(&self.changed, state, |state| matches!(state, WaiterState::Waiting));
        match std::mem::take(&mut *state) {
            WaiterState::Done(result) => Some(result),
            WaiterState::Leads | WaiterState::Waiting => None,
        }
    }

    /// Returns the result if there is one.
    pub(crate) fn take(&self) -> Option<CommitResult> {
        let mut state = lock(&self.state);
        match std::mem::take(&mut *state) {
            WaiterState::Done(result) => Some(result),
            other => {
                *state = other;
                None
            }
        }
    }
}

/// The queue of a store.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    pending: VecDeque<PendingTransaction>,
    /// Whether a thread commits, or is about to.
    has_leader: bool,
}

impl Queue {
    /// Adds a transaction. Returns whether the caller must commit, because no other thread commits.
    pub(crate) fn add(&self, pending: PendingTransaction) -> bool {
        let mut state = lock(&self.state);
        state.pending.push_back(pending);
        !std::mem::replace(&mut state.has_leader, true)
    }

    /// Adds a transaction that need not be committed at once.
    pub(crate) fn add_only(&self, pending: PendingTransaction) {
        lock(&self.state).pending.push_back(pending);
    }

    /// Returns whether the caller must commit: transactions wait, and no other thread commits.
    pub(crate) fn lead(&self) -> bool {
        let mut state = lock(&self.state);
        !state.pending.is_empty() && !std::mem::replace(&mut state.has_leader, true)
    }

    /// Takes the next transactions, at most `count`.
    pub(crate) fn take(&self, count: usize) -> Vec<PendingTransaction> {
        let mut state = lock(&self.state);
        let count = count.min(state.pending.len());
        state.pending.drain(..count).collect()
    }

    /// Adds transactions that were taken to the front of the queue again.
    pub(crate) fn put_back(&self, group: Vec<PendingTransaction>) {
        let mut state = lock(&self.state);
        for pending in group.into_iter().rev() {
            state.pending.push_front(pending);
        }
    }

    /// Ends the turn of the thread that commits, although transactions wait.
    pub(crate) fn step_down(&self) {
        lock(&self.state).has_leader = false;
    }

    /// Returns whether transactions wait.
    pub(crate) fn has_pending(&self) -> bool {
        !lock(&self.state).pending.is_empty()
    }

    /// Ends the turn of the thread that commits, whose own transaction has its result. Returns
    /// whether this thread must continue, because transactions wait but no thread waits with them.
    pub(crate) fn pass_on(&self) -> bool {
        let mut state = lock(&self.state);
        let waiter = state.pending.iter().find_map(|pending| match &pending.receiver {
            Receiver::Thread(waiter) => Some(waiter.clone()),
            Receiver::Function(_) => None,
        });
        match waiter {
            Some(waiter) => waiter.set(WaiterState::Leads),
            None if state.pending.is_empty() => state.has_leader = false,
            None => return true,
        }
        false
    }
}
