//! A worker pool for tasks that create more tasks, such as the directories of a tree.
//!
//! Tasks are taken last in, first out: the queue then grows with the depth of a tree and the length
//! of its directories, and not with the number of its entries.

use std::sync::{Condvar, Mutex, MutexGuard};

use crate::locks::{lock, wait};

/// The tasks of one call of [`run`].
#[derive(Debug)]
pub struct Tasks<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue<T> {
    waiting: Vec<T>,
    /// Number of tasks that wait or are being processed. When it is zero, all work is done.
    unfinished: usize,
}

impl<T> Tasks<T> {
    /// Adds tasks; waiting threads start them at once.
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

    /// Waits for a task. Returns `None` when no task is left and none is being processed.
    fn next(&self) -> Option<T> {
        let mut queue = self.lock();
        loop {
            if let Some(task) = queue.waiting.pop() {
                return Some(task);
            }
            if queue.unfinished == 0 {
                return None;
            }
            queue = wait(&self.changed, queue);
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

    /// Locks the queue. A poisoned lock means that another thread panicked; the scope of the
    /// threads reports its panic, and the queue is unchanged.
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        lock(&self.queue)
    }
}

/// A task that a thread processes. It is finished even if the work panics; otherwise the other
/// threads would wait forever.
struct Working<'a, T>(&'a Tasks<T>);

impl<T> Drop for Working<'_, T> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Calls `work` with each task of `first` and with each task that `work` pushes, on `threads`
/// threads including the calling one, and returns when all tasks are done. If the system allows
/// fewer threads, fewer are used.
///
/// There is no cancellation: to stop early, `work` checks its own flag and returns at once, which
/// empties the queue.
///
/// Panics if `work` panics on any thread, after all threads have ended.
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
        // 4^8 tasks in total.
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
            // The other threads process the remaining tasks.
            assert_eq!(done.into_inner(), if threads == 1 { 0 } else { 99 });
        }
    }
}
