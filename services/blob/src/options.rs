//! The limits of a store, and the clock that is passed to it.

/// The limits of the memory and of the data that a store keeps.
#[derive(Debug, Clone)]
pub struct Options {
    /// The memory for values that only snapshots need, in bytes. If they need more, the oldest
    /// snapshots can no longer be read.
    pub history_bytes_max: u64,
    /// The size of all extents that the latest state does not need and that are not yet removed, in
    /// bytes. If a commit exceeds it, snapshots of earlier states can no longer be read.
    pub unused_extent_bytes_max: u64,
    /// The number of transactions whose results are kept for commits that are repeated.
    pub results_max: usize,
    /// The largest number of transactions in a group.
    pub group_max: usize,
    /// Whether the extents are listed when the store is opened, to remove the extents that the last
    /// process did not commit. If not, the caller must call
    /// [`OpenStore::remove_orphans`](crate::OpenStore::remove_orphans) later: listing all objects
    /// of a large pool takes long.
    pub lists_when_opened: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            history_bytes_max: 64 << 20,
            unused_extent_bytes_max: 1 << 30,
            results_max: 1 << 16,
            group_max: 1000,
            lists_when_opened: true,
        }
    }
}

/// The clock of the node.
pub trait Clock: Send + Sync {
    /// Returns the time of day, in nanoseconds since 1970.
    fn now_ns(&self) -> u64;

    /// Returns the time of a monotonic clock, in nanoseconds. The durations of requests are
    /// measured with it.
    fn monotonic_ns(&self) -> u64 {
        self.now_ns()
    }
}
