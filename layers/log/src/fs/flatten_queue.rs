//! Flattening in the background. Files whose last writer has ended are queued here, and one thread
//! creates their flat indices, so that close(2) does not wait. A flat index is an optimization:
//! files beyond the queue's capacity are skipped, queued files may be dropped at any time, and
//! running work may be cancelled. `file_system` defines the file type and how it is flattened.
//!
//! The thread exists only while the queue is not empty or a file is being flattened.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, MutexGuard};
use std::time::Duration;

use crate::locks::{Rank, RankedGuard, RankedMutex};

/// Capacity of the queue. Each queued file keeps a few directories open.
const WAITING_MAX: usize = 128;

/// Flattens a file. Returns early after the flag was set.
type Flatten<T> = Box<dyn Fn(&T, &AtomicBool) + Send + Sync>;

/// The files that are to be flattened.
pub struct FlattenQueue<T> {
    state: RankedMutex<QueueState<T>>,
    /// Signalled when the thread ends.
    ended: Condvar,
    is_stopped: AtomicBool,
    flatten: Flatten<T>,
}

struct QueueState<T> {
    waiting: VecDeque<Arc<T>>,
    has_thread: bool,
}

impl<T: Send + Sync + 'static> FlattenQueue<T> {
    /// Creates a queue whose files are passed to `flatten`, one after the other.
    pub fn new(flatten: impl Fn(&T, &AtomicBool) + Send + Sync + 'static) -> FlattenQueue<T> {
        FlattenQueue {
            state: RankedMutex::new(Rank::Leaf, QueueState { waiting: VecDeque::new(), has_thread: false }),
            ended: Condvar::new(),
            is_stopped: AtomicBool::new(false),
            flatten: Box::new(flatten),
        }
    }

    fn lock(&self) -> RankedGuard<MutexGuard<'_, QueueState<T>>> {
        self.state.lock()
    }

    /// Adds `file`, unless it is already queued, the queue is full, or the queue was stopped. A
    /// file that is being flattened is queued again, because it may have been written since.
    pub fn add(self: &Arc<Self>, file: Arc<T>) {
        let mut state = self.lock();
        let is_left = self.is_stopped.load(Ordering::Relaxed)
            || state.waiting.len() >= WAITING_MAX
            || state.waiting.iter().any(|waiting| Arc::ptr_eq(waiting, &file));
        if is_left {
            drop(state);
            return; // `file` is dropped without the lock
        }
        state.waiting.push_back(file);
        if !state.has_thread {
            let queue = Arc::clone(self);
            let begun = std::thread::Builder::new().name("quell-flatten".into()).spawn(move || queue.work());
            state.has_thread = begun.is_ok();
        }
    }

    /// Removes `file` from the queue, because it was removed from the store.
    pub fn forget(&self, file: &Arc<T>) {
        let mut state = self.lock();
        let place = state.waiting.iter().position(|waiting| Arc::ptr_eq(waiting, file));
        let forgotten = place.and_then(|place| state.waiting.remove(place));
        drop(state);
        drop(forgotten);
    }

    /// Returns true if the queue is empty and no file is being flattened.
    pub fn is_idle(&self) -> bool {
        !self.lock().has_thread
    }

    /// Clears the queue, refuses further files, and cancels the running work. Waits until this work
    /// has ended, but at most for `timeout`.
    pub fn stop(&self, timeout: Duration) {
        let mut state = self.lock();
        // Set while the lock is held, so that nothing is added afterwards.
        self.is_stopped.store(true, Ordering::Relaxed);
        let dropped = std::mem::take(&mut state.waiting);
        drop(state);
        drop(dropped);
        let waited = self.lock().wait_timeout_while(&self.ended, timeout, |state| state.has_thread);
        drop(waited);
    }

    fn work(&self) {
        let _thread = Thread(self);
        loop {
            let mut state = self.lock();
            let Some(file) = state.waiting.pop_front() else {
                // The lock is held, so a caller that adds a file later sees that there is no thread
                // and starts one.
                state.has_thread = false;
                return;
            };
            drop(state);
            (self.flatten)(&file, &self.is_stopped);
        }
    }
}

/// Records that the thread has ended, even after a panic.
struct Thread<'a, T>(&'a FlattenQueue<T>);

impl<T> Drop for Thread<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.lock().has_thread = false;
        }
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use super::*;

    /// Returns a queue of numbers that sends each number when its task starts, and then waits for
    /// a message.
    fn waiting_queue() -> (Arc<FlattenQueue<u32>>, Receiver<u32>, Sender<()>) {
        let (starts, started) = channel();
        let (continues, continued) = channel();
        let continued = Mutex::new(continued);
        let queue = FlattenQueue::new(move |number: &u32, _: &AtomicBool| {
            starts.send(*number).unwrap();
            let _ = continued.lock().unwrap().recv();
        });
        (Arc::new(queue), started, continues)
    }

    fn wait_until_idle(queue: &FlattenQueue<u32>) {
        let begun = Instant::now();
        while !queue.is_idle() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    #[test]
    fn adding_a_file_does_not_wait_and_each_file_is_queued_once() {
        let (queue, started, continues) = waiting_queue();
        let [first, second] = [1, 2].map(Arc::new);
        queue.add(Arc::clone(&first));
        assert_eq!(started.recv().unwrap(), 1);
        // The first is being flattened and is queued again, once; the second is queued once.
        for file in [&second, &first, &second, &first] {
            queue.add(Arc::clone(file));
        }
        assert!(!queue.is_idle());
        (0..3).for_each(|_| continues.send(()).unwrap());
        assert_eq!(started.iter().take(2).collect::<Vec<_>>(), [2, 1]);
        wait_until_idle(&queue);
        assert!(started.try_recv().is_err());
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 1));
        // A later file starts a new thread.
        queue.add(second);
        assert_eq!(started.recv().unwrap(), 2);
    }

    #[test]
    fn a_full_queue_skips_files_and_forgotten_files_are_dropped() {
        let (queue, started, continues) = waiting_queue();
        let files: Vec<Arc<u32>> = (0..1000).map(Arc::new).collect();
        queue.add(Arc::clone(&files[0]));
        assert_eq!(started.recv().unwrap(), 0);
        files[1..].iter().for_each(|file| queue.add(Arc::clone(file)));
        assert_eq!(queue.lock().waiting.len(), WAITING_MAX);
        queue.forget(&files[1]);
        assert_eq!(Arc::strong_count(&files[1]), 1);
        drop(continues);
        wait_until_idle(&queue);
        assert_eq!(started.try_iter().collect::<Vec<_>>(), (2..=WAITING_MAX as u32).collect::<Vec<_>>());
    }

    #[test]
    fn stopping_drops_queued_files_and_takes_a_bounded_time() {
        let (queue, started, continues) = waiting_queue();
        let files: Vec<Arc<u32>> = (0..9).map(Arc::new).collect();
        files.iter().for_each(|file| queue.add(Arc::clone(file)));
        assert_eq!(started.recv().unwrap(), 0);
        let begun = Instant::now();
        queue.stop(Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(Arc::strong_count(&files[1]), 1);
        queue.add(Arc::clone(&files[1]));
        drop(continues);
        queue.stop(Duration::from_secs(60));
        assert!(queue.is_idle() && started.try_recv().is_err());
    }

    #[test]
    fn stopping_waits_for_a_task_that_ends_early() {
        let queue = Arc::new(FlattenQueue::new(|_: &u32, is_cancelled: &AtomicBool| {
            while !is_cancelled.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }));
        queue.add(Arc::new(1));
        queue.stop(Duration::from_secs(60));
        assert!(queue.is_idle());
    }
}
