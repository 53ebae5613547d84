//! The counters of a member, which commands read and other programs plot. All numbers begin with 0
//! at the start of the daemon, and those without "current" in their description never decrease.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

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

/// The counters of one kind of sender: the clients of the node, or the other members.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RequestCounters {
    /// The complete requests by kind, in the order of [`OperationKind::ALL`].
    pub requests: [u64; OPERATION_KINDS],
    /// The requests, by kind, that have failed. Errors that programs expect count, too, such as the
    /// creation of a file that exists; the lookup of a missing name is not an error.
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

/// The connections of a daemon to the other daemons. The bytes include the frames of the messages,
/// and not the headers of the network.
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
    use crate::histogram::BUCKETS;

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
