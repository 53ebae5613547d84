//! Counts the child processes for whose end this process has waited. An open file that was used
//! before shows data that such a child has published.

use std::sync::atomic::{AtomicU64, Ordering};

static ENDED: AtomicU64 = AtomicU64::new(0);

/// Counts a child.
pub fn add() {
    ENDED.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of children.
pub fn count() -> u64 {
    ENDED.load(Ordering::Relaxed)
}
