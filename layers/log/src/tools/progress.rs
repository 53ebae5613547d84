//! Runs the tasks of a tool on several threads, counts its progress, and lets another thread stop
//! it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The progress of work on many files. A thread that displays the progress can also stop the work.
#[derive(Debug, Default)]
pub struct ToolProgress {
    files: AtomicU64,
    bytes: AtomicU64,
    is_stopped: AtomicBool,
}

impl ToolProgress {
    /// Returns the number of completed files.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that were read or copied.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Prevents tasks that have not started from starting, and ends running ones soon.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns true after `stop` was called.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Calls `work` on `threads` threads with each task of `first` and with each task that `work` adds.
/// After `progress` is stopped, no further task starts.
pub(crate) fn run_tasks<T: Send>(
    threads: usize,
    first: Vec<T>,
    progress: &ToolProgress,
    work: &(dyn Fn(T, &mut Vec<T>) + Sync),
) {
    quell_threads::run(threads, first, |task, tasks| {
        if progress.is_stopped() {
            return;
        }
        let mut added = Vec::new();
        work(task, &mut added);
        tasks.push(added);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_task_starts_after_a_stop() {
        let (progress, done) = (ToolProgress::default(), AtomicU64::new(0));
        run_tasks(3, (0..100).collect(), &progress, &|_: u32, _| {
            done.fetch_add(1, Ordering::Relaxed);
            progress.stop();
        });
        assert!(done.into_inner() <= 3);
    }
}
