//! The counters of the server of a store, which commands read and other programs plot. All numbers
//! begin with 0 at the start of the server, and those without "current" in their description never
//! decrease.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// The kinds of requests that are counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Reads bytes, or finds data.
    Read,
    /// Asks for the attributes of a blob.
    Stat,
    /// Lists names.
    List,
    /// Commits a transaction.
    Commit,
    /// Begins or ends a snapshot.
    Snapshot,
    /// Transfers a part of an upload or of a long reply, or removes it.
    Transfer,
    /// All others: the first request of a client, the removal of unneeded data, and counters.
    Other,
}

/// The number of [`RequestKind`]s.
pub const REQUEST_KINDS: usize = 7;

impl RequestKind {
    /// All kinds, in the order of their counters.
    pub const ALL: [RequestKind; REQUEST_KINDS] = [
        RequestKind::Read,
        RequestKind::Stat,
        RequestKind::List,
        RequestKind::Commit,
        RequestKind::Snapshot,
        RequestKind::Transfer,
        RequestKind::Other,
    ];

    /// Returns the name in tables and metrics.
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Read => "read",
            RequestKind::Stat => "stat",
            RequestKind::List => "list",
            RequestKind::Commit => "commit",
            RequestKind::Snapshot => "snapshot",
            RequestKind::Transfer => "transfer",
            RequestKind::Other => "other",
        }
    }
}

/// The counters of the server of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StoreCounters {
    /// The time since the start of the server, in milliseconds.
    pub uptime_ms: u64,
    /// The current number of clients that have sent a request. A command that reads the counters is
    /// one of them.
    pub clients: u64,
    /// The complete requests by kind, in the order of [`RequestKind::ALL`].
    pub requests: [u64; REQUEST_KINDS],
    /// The requests, by kind, that have failed or were refused.
    pub failed: [u64; REQUEST_KINDS],
    /// Commits that were refused because of a conflict, or because the state that they had read is
    /// no longer kept.
    pub conflicts: u64,
    /// Requests that were refused because the key of the client does not have the right.
    pub denied: u64,
    /// The operations of committed transactions.
    pub operations: u64,
    /// The bytes of blobs in replies.
    pub read_bytes: u64,
    /// The bytes that committed transactions have written and appended.
    pub written_bytes: u64,
    /// The current number of requests that are being executed.
    pub in_flight: u64,
    /// The times from the begin of the execution of a read, stat or list to its result.
    pub reads: Histogram,
    /// The times from the begin of the execution of a commit to its result.
    pub commits: Histogram,
    /// The current number of snapshots of all clients.
    pub snapshots: u64,
    /// The current memory for uploads and long replies, in bytes.
    pub kept_bytes: u64,
    /// The current memory for the values that only snapshots need, in bytes.
    pub history_bytes: u64,
    /// The extents that were written.
    pub extents: u64,
    /// The bytes of these extents.
    pub extent_bytes: u64,
    /// The current number of extents that the latest state does not need, and that are not yet
    /// removed.
    pub unused_extents: u64,
    /// The current size of these extents, in bytes.
    pub unused_extent_bytes: u64,
}

impl StoreCounters {
    /// Adds the counters of another server of the same store. The clients use all servers, so the
    /// number of clients is the largest one. The time is that since the last start of a server.
    pub fn add(&mut self, other: &StoreCounters) {
        let StoreCounters { requests, failed, .. } = other;
        for (sum, more) in self.requests.iter_mut().zip(requests).chain(self.failed.iter_mut().zip(failed)) {
            *sum = sum.saturating_add(*more);
        }
        self.uptime_ms = self.uptime_ms.min(other.uptime_ms);
        self.clients = self.clients.max(other.clients);
        for (sum, more) in [
            (&mut self.conflicts, other.conflicts),
            (&mut self.denied, other.denied),
            (&mut self.operations, other.operations),
            (&mut self.read_bytes, other.read_bytes),
            (&mut self.written_bytes, other.written_bytes),
            (&mut self.in_flight, other.in_flight),
            (&mut self.snapshots, other.snapshots),
            (&mut self.kept_bytes, other.kept_bytes),
            (&mut self.history_bytes, other.history_bytes),
            (&mut self.extents, other.extents),
            (&mut self.extent_bytes, other.extent_bytes),
            (&mut self.unused_extents, other.unused_extents),
            (&mut self.unused_extent_bytes, other.unused_extent_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.reads.merge(&other.reads);
        self.commits.merge(&other.commits);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::histogram::BUCKETS;

    #[test]
    fn the_kinds_are_in_the_order_of_their_counters() {
        for (position, kind) in RequestKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, position);
        }
    }

    #[test]
    fn the_largest_counters_fit_in_a_small_reply() {
        let times = Histogram { counts: [u64::MAX; BUCKETS], total_ns: u64::MAX };
        let counters = StoreCounters {
            requests: [u64::MAX; REQUEST_KINDS],
            failed: [u64::MAX; REQUEST_KINDS],
            reads: times,
            commits: times,
            ..StoreCounters::default()
        };
        let encoded = crate::encode(&counters);
        assert!(encoded.len() < 2048, "{}", encoded.len());
        assert_eq!(crate::decode::<StoreCounters>(&encoded).unwrap(), counters);
    }

    #[test]
    fn counters_of_several_servers_are_added() {
        let mut one = StoreCounters { uptime_ms: 5, clients: 3, extents: 2, ..StoreCounters::default() };
        one.requests[1] = 7;
        one.reads.add(Duration::from_micros(3));
        let two = StoreCounters { uptime_ms: 9, clients: 4, extents: 1, ..one.clone() };
        let mut sum = one.clone();
        sum.add(&two);
        assert_eq!((sum.uptime_ms, sum.clients, sum.extents, sum.requests[1]), (5, 4, 3, 14));
        assert_eq!(sum.reads.count(), 2);
    }
}
