//! The work that waits for the threads of a copy. The thread that walks through the source waits
//! while the queue is full, so the memory use does not grow with the size of a tree.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

use quell_threads::{lock, wait, wait_while};

/// The largest number of waiting entries. Each may keep its directory open.
const WAITING_MAX: usize = 256;

/// Entries from the walk, and ranges of large files, which are taken first.
pub struct Queue<E, R> {
    state: Mutex<State<E, R>>,
    changed: Condvar,
}

struct State<E, R> {
    entries: VecDeque<E>,
    /// Ranges of the files in progress: at most one file for each thread.
    ranges: VecDeque<Divided<R>>,
    /// Whether the walk has not ended yet.
    is_walking: bool,
    /// The number of threads that process something, and may add ranges.
    active: usize,
    /// Whether a thread has panicked. The walk then no longer waits, because its entries may never
    /// be taken.
    has_panicked: bool,
}

/// Work on the ranges of one file.
struct Divided<R> {
    work: R,
    next: usize,
    count: usize,
}

/// A unit of work for a thread.
pub enum Work<E, R> {
    Entry(E),
    Range(R, usize),
}

impl<E, R: Clone> Queue<E, R> {
    pub fn new() -> Queue<E, R> {
        let state = State {
            entries: VecDeque::new(),
            ranges: VecDeque::new(),
            is_walking: true,
            active: 0,
            has_panicked: false,
        };
        Queue { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds an entry. If the queue is full, waits until entries were taken.
    pub fn push_entry(&self, entry: E) {
        let state = lock(&self.state);
        let mut state = wait_while(&self.changed, state, |state| {
            state.entries.len() >= WAITING_MAX && !state.has_panicked
        });
        state.entries.push_back(entry);
        drop(state);
        self.changed.notify_all();
    }

    /// Adds `count` ranges of one file.
    pub fn push_ranges(&self, work: R, count: usize) {
        lock(&self.state).ranges.push_back(Divided { work, next: 0, count });
        self.changed.notify_all();
    }

    /// Records that no more entries will be added.
    pub fn end_walk(&self) {
        lock(&self.state).is_walking = false;
        self.changed.notify_all();
    }

    /// Calls `work` until all threads have no more work.
    pub fn run(&self, mut work: impl FnMut(Work<E, R>)) {
        while let Some(next) = self.next() {
            let _active = Active(self);
            work(next);
        }
    }

    fn next(&self) -> Option<Work<E, R>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = state.take() {
                state.active += 1;
                drop(state);
                self.changed.notify_all();
                return Some(found);
            }
            if !state.is_walking && state.active == 0 {
                return None;
            }
            state = wait(&self.changed, state);
        }
    }
}

impl<E, R: Clone> State<E, R> {
    fn take(&mut self) -> Option<Work<E, R>> {
        if let Some(divided) = self.ranges.front_mut() {
            let range = Work::Range(divided.work.clone(), divided.next);
            divided.next += 1;
            if divided.next == divided.count {
                self.ranges.pop_front();
            }
            return Some(range);
        }
        self.entries.pop_front().map(Work::Entry)
    }
}

/// A thread that processes something. It is counted until the work ends, even with a panic;
/// otherwise the other threads would wait forever.
struct Active<'a, E, R>(&'a Queue<E, R>);

impl<E, R> Drop for Active<'_, E, R> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.active -= 1;
        state.has_panicked |= std::thread::panicking();
        drop(state);
        self.0.changed.notify_all();
    }
}
