//! A pool of threads for tasks that make more tasks, such as the directories of a tree.
//!
//! Tasks are taken in the order last in, first out: the queue then grows with the depth of a tree and the length of its
//! directories, not with the number of its entries.

#![forbid(unsafe_code)]

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The tasks of one call of [`run`].
#[derive(Debug)]
pub struct Tasks<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue<T> {
    waiting: Vec<T>,
    /// Tasks that wait or that a thread works on. At zero all work is done.
    unfinished: usize,
}

impl<T> Tasks<T> {
    /// Adds tasks; threads that wait begin with them at once.
    pub fn push(&self, tasks: impl IntoIterator<Item = T>) {
        let mut queue = self.lock();
        let before = queue.waiting.len();
        queue.waiting.extend(tasks);
        let added = queue.waiting.len() - before;
        queue.unfinished += added;
        drop(queue);
        match added {
            0 => {}
            1 => self.changed.notify_one(),
            _ => self.changed.notify_all(),
        }
    }

    /// Waits for a task; `None` once none is left and none is being worked on.
    fn next(&self) -> Option<T> {
        let mut queue = self.lock();
        loop {
            if let Some(task) = queue.waiting.pop() {
                return Some(task);
            }
            if queue.unfinished == 0 {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self) {
        let mut queue = self.lock();
        queue.unfinished -= 1;
        if queue.unfinished == 0 {
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// A thread that panicked has poisoned the lock. The scope of the threads reports its panic; the queue is as it was.
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that a thread works on. It is finished also when the work panics; otherwise the other threads would wait for ever.
struct Working<'a, T>(&'a Tasks<T>);

impl<T> Drop for Working<'_, T> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Calls `work` with each task of `first` and with each that `work` pushes, on `threads` threads, the calling one included, and
/// returns when all are done. Fewer threads than asked for do the work where the system allows no more.
///
/// There is no way to cancel: `work` looks at a flag of its own and returns at once, which empties the queue.
///
/// Panics: if `work` panics on any thread, once all threads have ended.
pub fn run<T: Send>(threads: usize, first: impl IntoIterator<Item = T>, work: impl Fn(T, &Tasks<T>) + Sync) {
    let queue = Queue { waiting: Vec::new(), unfinished: 0 };
    let tasks = Tasks { queue: Mutex::new(queue), changed: Condvar::new() };
    tasks.push(first);
    let worker = || {
        while let Some(task) = tasks.next() {
            let _working = Working(&tasks);
            work(task, &tasks);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            if std::thread::Builder::new().spawn_scoped(scope, worker).is_err() {
                break;
            }
        }
        worker();
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_task_is_done_once_also_those_that_tasks_push() {
        for threads in [0, 1, 2, 7] {
            let done = AtomicU64::new(0);
            run(threads, [6u32], |depth, tasks| {
                done.fetch_add(1, Ordering::Relaxed);
                tasks.push(std::iter::repeat_n(depth.wrapping_sub(1), if depth > 0 { 3 } else { 0 }));
            });
            assert_eq!(done.into_inner(), (0..=6).map(|depth| 3u64.pow(depth)).sum::<u64>());
        }
    }

    #[test]
    fn the_last_task_is_taken_first() {
        let (waiting_max, waiting) = (AtomicUsize::new(0), AtomicUsize::new(1));
        run(1, [8u32], |depth, tasks| {
            waiting.fetch_sub(1, Ordering::Relaxed);
            if depth > 0 {
                waiting_max.fetch_max(waiting.fetch_add(4, Ordering::Relaxed) + 4, Ordering::Relaxed);
                tasks.push([depth - 1; 4]);
            }
        });
        // 4^8 tasks in all.
        assert_eq!(waiting_max.into_inner(), 3 * 8 + 1);
    }

    #[test]
    fn pushed_tasks_are_begun_before_the_task_that_pushed_them_ends() {
        let pushed = (Mutex::new(false), Condvar::new());
        run(2, [true], |is_first, tasks| {
            let mut is_done = pushed.0.lock().unwrap();
            if is_first {
                tasks.push([false]);
                while !*is_done {
                    is_done = pushed.1.wait(is_done).unwrap();
                }
            } else {
                *is_done = true;
                pushed.1.notify_all();
            }
        });
    }

    #[test]
    fn a_panic_ends_the_run_and_reaches_the_caller() {
        for threads in [1, 3] {
            let done = AtomicU64::new(0);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run(threads, 0..100u64, |number, _| {
                    assert_ne!(number, 99, "a task that panics, as the test wants");
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert!(outcome.is_err());
            // The other threads do the rest.
            assert_eq!(done.into_inner(), if threads == 1 { 0 } else { 99 });
        }
    }
}
