//! Several threads that do tasks which make more tasks: the last one made is done first, so that what waits
//! stays as small as the tree is deep and wide, not as large as it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How far work on many files has come, told to who watches it, who may also end it.
#[derive(Debug, Default)]
pub struct Tally {
    files: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
}

impl Tally {
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Nothing new is begun from now on.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

struct Waiting<T> {
    tasks: Vec<T>,
    /// Threads that are at a task, which may make more.
    busy: usize,
}

/// A thread at a task: whatever becomes of it, the others are told.
struct Busy<'a, T>(&'a Mutex<Waiting<T>>, &'a Condvar);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Drop for Busy<'_, T> {
    fn drop(&mut self) {
        lock(self.0).busy -= 1;
        self.1.notify_all();
    }
}

/// Does `first` and all that `work` makes of it, with `threads` threads. `work` is told where to put new tasks.
pub(crate) fn run<T: Send>(
    threads: usize,
    first: Vec<T>,
    tally: &Tally,
    work: &(dyn Fn(T, &mut Vec<T>) + Sync),
) {
    let (waiting, changed) = (Mutex::new(Waiting { tasks: first, busy: 0 }), Condvar::new());
    let one = || {
        loop {
            let mut state = lock(&waiting);
            let task = loop {
                if tally.is_stopped() {
                    state.tasks.clear();
                }
                if let Some(task) = state.tasks.pop() {
                    state.busy += 1;
                    break task;
                }
                if state.busy == 0 {
                    return;
                }
                state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            let busy = Busy(&waiting, &changed);
            let mut made = Vec::new();
            work(task, &mut made);
            lock(&waiting).tasks.append(&mut made);
            drop(busy);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(one);
        }
        one();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_also_those_that_tasks_make() {
        for threads in [1, 2, 7] {
            let (tally, done) = (Tally::default(), AtomicU64::new(0));
            run(threads, vec![6u32], &tally, &|depth, more| {
                done.fetch_add(1, Ordering::Relaxed);
                more.extend(std::iter::repeat_n(depth.wrapping_sub(1), if depth > 0 { 3 } else { 0 }));
            });
            assert_eq!(done.into_inner(), (0..=6).map(|depth| 3u64.pow(depth)).sum::<u64>());
        }
    }

    #[test]
    fn nothing_is_begun_after_a_stop() {
        let (tally, done) = (Tally::default(), AtomicU64::new(0));
        run(3, (0..100).collect(), &tally, &|_: u32, _| {
            done.fetch_add(1, Ordering::Relaxed);
            tally.stop();
        });
        assert!(done.into_inner() <= 3);
    }
}
