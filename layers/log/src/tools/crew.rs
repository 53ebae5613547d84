//! Runs a task for each of many files on several threads, and counts the progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The progress of work on many files. A thread that displays the progress can also stop the work.
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

    /// Prevents tasks that have not started from starting.
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

/// Calls `work` on `threads` threads with each task of `first` and with each task that `work` adds.
/// After the tally is stopped, no further task starts.
pub(crate) fn run<T: Send>(
    threads: usize,
    first: Vec<T>,
    tally: &Tally,
    work: &(dyn Fn(T, &mut Vec<T>) + Sync),
) {
    quell_threads::run(threads, first, |task, tasks| {
        if tally.is_stopped() {
            return;
        }
        let mut more = Vec::new();
        work(task, &mut more);
        tasks.push(more);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

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
