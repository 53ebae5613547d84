//! The counters of a copy, which other threads may read while it runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counters of a copy, and the request to end it early.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    unchanged: AtomicU64,
    directories: AtomicU64,
    links: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    must_stop: AtomicBool,
}

impl Progress {
    /// Files that were copied and verified.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Files and links that existed at the destination and were not copied again.
    pub fn unchanged(&self) -> u64 {
        self.unchanged.load(Ordering::Relaxed)
    }

    /// Directories that exist at the destination now.
    pub fn directories(&self) -> u64 {
        self.directories.load(Ordering::Relaxed)
    }

    /// Symbolic links that were copied.
    pub fn links(&self) -> u64 {
        self.links.load(Ordering::Relaxed)
    }

    /// Entries that were not copied, or not completely.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Bytes of files that were processed, including holes and the bytes of files that fail later.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Requests the end of the copy. Files that are not complete are removed from the destination.
    pub fn stop(&self) {
        self.must_stop.store(true, Ordering::Relaxed);
    }

    /// Returns whether `stop` was called.
    pub fn is_stopped(&self) -> bool {
        self.must_stop.load(Ordering::Relaxed)
    }

    pub(crate) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_unchanged(&self) {
        self.unchanged.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_directory(&self) {
        self.directories.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_link(&self) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
