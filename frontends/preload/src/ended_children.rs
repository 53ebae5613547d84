//! Counts the waits of this process that have returned a child, which has ended or changed its
//! state. After such a wait, an open file that was used before shows data that the child has
//! published.

use std::sync::atomic::{AtomicU64, Ordering};

static ENDED: AtomicU64 = AtomicU64::new(0);

/// Counts a wait that has returned a child.
pub fn add() {
    ENDED.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of these waits.
pub fn count() -> u64 {
    ENDED.load(Ordering::Relaxed)
}
