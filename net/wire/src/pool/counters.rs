//! The counters of a member, which commands read and other programs plot. All numbers begin with 0
//! at the start of the daemon, and those without "current" in their description never decrease.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The kinds of operations that are counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Creates a file, a directory or a symbolic link.
    Create,
    /// Looks a name up.
    Lookup,
    /// Returns the attributes of a node, or extended ones.
    Stat,
    /// Removes an entry.
    Remove,
    /// Renames an entry.
    Rename,
    /// Changes attributes, also extended ones, or sets a size.
    Change,
    /// Lists a part of a directory.
    List,
    /// Reads from a chunk.
    Read,
    /// Writes to a chunk.
    Write,
    /// Records the size of a file after a write, or reserves the range of an append.
    Extend,
    /// Makes data survive a power failure.
    Sync,
    /// All others: references, placement, space, transactions, marks and counters.
    Other,
}

/// The number of [`OperationKind`]s.
pub const OPERATION_KINDS: usize = 12;

impl OperationKind {
    /// All kinds, in the order of their counters.
    pub const ALL: [OperationKind; OPERATION_KINDS] = [
        OperationKind::Create,
        OperationKind::Lookup,
        OperationKind::Stat,
        OperationKind::Remove,
        OperationKind::Rename,
        OperationKind::Change,
        OperationKind::List,
        OperationKind::Read,
        OperationKind::Write,
        OperationKind::Extend,
        OperationKind::Sync,
        OperationKind::Other,
    ];

    /// Returns the name in tables and metrics.
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Create => "create",
            OperationKind::Lookup => "lookup",
            OperationKind::Stat => "stat",
            OperationKind::Remove => "remove",
            OperationKind::Rename => "rename",
            OperationKind::Change => "change",
            OperationKind::List => "list",
            OperationKind::Read => "read",
            OperationKind::Write => "write",
            OperationKind::Extend => "extend",
            OperationKind::Sync => "sync",
            OperationKind::Other => "other",
        }
    }
}

/// The number of buckets of a [`Histogram`].
pub const BUCKETS: usize = 28;

/// The distribution of times. Bucket `i` counts times of at most 2^i microseconds that no lower
/// bucket counts: 1 us, 2 us, and so on up to 67 s. The last bucket counts all longer times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Histogram {
    /// The number of times in each bucket.
    pub counts: [u64; BUCKETS],
    /// The sum of all times, in nanoseconds.
    pub total_ns: u64,
}

impl Histogram {
    /// Counts a time.
    pub fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // The smallest i with ns <= 1000 * 2^i.
        let microseconds = ns.div_ceil(1000).max(1);
        let bucket = (u64::BITS - (microseconds - 1).leading_zeros()) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
    }

    /// Returns the largest time that a bucket counts, in microseconds, or `None` for the last
    /// bucket, which has no bound.
    pub fn bound_us(bucket: usize) -> Option<u64> {
        (bucket < BUCKETS - 1).then(|| 1 << bucket)
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the times that were counted since `earlier`, a state of the same histogram.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        Histogram {
            counts: std::array::from_fn(|i| self.counts[i].saturating_sub(earlier.counts[i])),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
        }
    }

    /// Returns the bound of the bucket with the time that at least `percent` of 100 times do not
    /// exceed, in microseconds. `None` if no time was counted; `u64::MAX` if the time is in the
    /// last bucket. The time itself is more than half of the bound.
    pub fn percentile_us(&self, percent: u64) -> Option<u64> {
        let count = u128::from(self.count());
        let wanted = (count * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut counted = 0_u128;
        for (bucket, in_bucket) in self.counts.iter().enumerate() {
            counted += u128::from(*in_bucket);
            if counted >= wanted {
                return Some(Histogram::bound_us(bucket).unwrap_or(u64::MAX));
            }
        }
        None
    }
}

/// The counters of one kind of sender: the clients of the node, or the other members.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RequestCounters {
    /// The complete requests by kind, in the order of [`OperationKind::ALL`].
    pub requests: [u64; OPERATION_KINDS],
    /// Those that have failed. Errors that programs expect, such as that of the creation of a file
    /// that exists, count, too; a look-up of a missing name is no error.
    pub errors: [u64; OPERATION_KINDS],
    /// The bytes of file data in replies.
    pub read_bytes: u64,
    /// The bytes of file data in successful writes.
    pub written_bytes: u64,
    /// The current number of requests that are being performed.
    pub in_flight: u64,
    /// The times from the begin of the performance of a request to its result.
    pub latency: Histogram,
}

/// The accesses of clients to the chunks of their node, without requests. The clients count them in
/// the memory that they share with the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DirectCounters {
    /// Reads, each of one range of consecutive chunks.
    pub reads: u64,
    /// The bytes that were read.
    pub read_bytes: u64,
    /// Writes, each of one range of consecutive chunks.
    pub writes: u64,
    /// The bytes that were written.
    pub written_bytes: u64,
}

/// An access of a client to the chunks of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectAccess {
    /// A read.
    Read,
    /// A write.
    Write,
}

impl DirectAccess {
    /// Returns the positions of the number of accesses and of their bytes in the counters of a
    /// client (docs/formats/local-channel.md).
    pub const fn positions(self) -> (usize, usize) {
        match self {
            DirectAccess::Read => (0, 1),
            DirectAccess::Write => (2, 3),
        }
    }
}

impl From<[u64; 4]> for DirectCounters {
    /// Reads the sum of the counters of clients.
    fn from(counters: [u64; 4]) -> DirectCounters {
        let ((reads, read_bytes), (writes, written_bytes)) =
            (DirectAccess::Read.positions(), DirectAccess::Write.positions());
        DirectCounters {
            reads: counters[reads],
            read_bytes: counters[read_bytes],
            writes: counters[writes],
            written_bytes: counters[written_bytes],
        }
    }
}

/// The connections of a daemon to the other daemons. The bytes are those of the messages with their
/// frames, without the headers of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NetworkCounters {
    /// The bytes that were sent.
    pub sent_bytes: u64,
    /// The bytes that were received.
    pub received_bytes: u64,
    /// The bytes that the compression of sent data has saved.
    pub sent_saved_bytes: u64,
    /// The bytes that the compression of received data has saved.
    pub received_saved_bytes: u64,
}

/// The counters of a member.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemberCounters {
    /// The time since the start of the member, in milliseconds.
    pub uptime_ms: u64,
    /// The current number of connections of clients. A command that reads the counters may have one
    /// of them.
    pub connections: u64,
    /// The operations of the clients of the node. They include operations that other members
    /// perform.
    pub clients: RequestCounters,
    /// The requests of other members.
    pub peers: RequestCounters,
    /// The accesses of clients without requests.
    pub direct: DirectCounters,
    /// The connections of the daemon that runs the member to other daemons. Several members may
    /// have the same ones.
    pub network: NetworkCounters,
    /// The current size of the file system with the data, in bytes.
    pub total_bytes: u64,
    /// The current space in it that users other than root may use, in bytes.
    pub available_bytes: u64,
    /// Identifies the file system. Several members may use the same one.
    pub file_system: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(time: Duration) -> usize {
        let mut histogram = Histogram::default();
        histogram.add(time);
        assert_eq!((histogram.count(), histogram.total_ns), (1, time.as_nanos() as u64));
        histogram.counts.iter().position(|count| *count == 1).unwrap()
    }

    #[test]
    fn a_time_is_counted_in_the_lowest_bucket_whose_bound_it_does_not_exceed() {
        assert_eq!(bucket_of(Duration::ZERO), 0);
        for bucket in 0..BUCKETS - 1 {
            let bound = Duration::from_micros(Histogram::bound_us(bucket).unwrap());
            assert_eq!(bucket_of(bound), bucket);
            assert_eq!(bucket_of(bound + Duration::from_nanos(1)), bucket + 1);
        }
        assert_eq!(bucket_of(Duration::from_secs(1 << 30)), BUCKETS - 1);
        let mut histogram = Histogram::default();
        histogram.add(Duration::MAX);
        assert_eq!((histogram.counts[BUCKETS - 1], histogram.total_ns), (1, u64::MAX));
        assert_eq!(Histogram::bound_us(BUCKETS - 2), Some(67_108_864));
        assert_eq!(Histogram::bound_us(BUCKETS - 1), None);
    }

    #[test]
    fn a_percentile_is_the_bound_of_the_bucket_that_reaches_it() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile_us(50), None);
        (0..98).for_each(|_| histogram.add(Duration::from_micros(7)));
        histogram.add(Duration::from_micros(100));
        histogram.add(Duration::from_secs(100));
        assert_eq!(histogram.percentile_us(0), Some(8));
        assert_eq!(histogram.percentile_us(50), Some(8));
        assert_eq!(histogram.percentile_us(98), Some(8));
        assert_eq!(histogram.percentile_us(99), Some(128));
        assert_eq!(histogram.percentile_us(100), Some(u64::MAX));
        let mut later = histogram;
        later.add(Duration::from_micros(2));
        assert_eq!(later.since(&histogram).percentile_us(50), Some(2));
        assert_eq!(later.since(&histogram).total_ns, 2000);
        let mut merged = histogram;
        merged.merge(&later.since(&histogram));
        assert_eq!(merged, later);
        // Values of another process do not overflow.
        let hostile = Histogram { counts: [u64::MAX; BUCKETS], total_ns: u64::MAX };
        assert_eq!(hostile.percentile_us(99), Some(1));
        assert_eq!(histogram.since(&hostile), Histogram::default());
    }

    #[test]
    fn the_kinds_are_in_the_order_of_their_counters() {
        for (position, kind) in OperationKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, position);
        }
    }

    #[test]
    fn the_largest_counters_fit_in_a_small_reply() {
        let requests = RequestCounters {
            requests: [u64::MAX; OPERATION_KINDS],
            errors: [u64::MAX; OPERATION_KINDS],
            read_bytes: u64::MAX,
            written_bytes: u64::MAX,
            in_flight: u64::MAX,
            latency: Histogram { counts: [u64::MAX; BUCKETS], total_ns: u64::MAX },
        };
        let network = NetworkCounters {
            sent_bytes: u64::MAX,
            received_bytes: u64::MAX,
            sent_saved_bytes: u64::MAX,
            received_saved_bytes: u64::MAX,
        };
        let counters = MemberCounters {
            clients: requests.clone(),
            peers: requests,
            network,
            ..MemberCounters::default()
        };
        let bytes = crate::encode(&counters);
        assert!(bytes.len() < 4096, "{}", bytes.len());
        assert_eq!(crate::decode::<MemberCounters>(&bytes).unwrap(), counters);
    }
}
