//! The messages of a pool. A client sends an [`Operation`] to the daemon of its node, which
//! performs it or sends it to the member that it concerns. Members send each other
//! [`PeerRequest`]s.

mod counters;
mod data_files;
mod entry;
mod kinds;
mod operation;
mod partitions;
mod peer;
mod replica;
mod start;

pub use counters::{
    DirectAccess, DirectCounters, MemberCounters, NetworkCounters, OPERATION_KINDS, OperationKind,
    RequestCounters,
};
pub use data_files::{
    DATA_FILES_MAX, FIRST_DATA_FILE, ONLY_DATA_FILE, data_files, read_ahead, read_data_files,
};
pub use entry::{FileId, MemberId, Node, NodeKind, Stamp};
pub use operation::{
    Entries, Entry, HOLDS_MAX, Mark, Matching, NewKind, Operation, RenameMode, Reply, Settings, XattrMode,
};
pub use partitions::{PARTITIONS_MAX, Partitions};
pub use peer::{PeerMessage, PeerRequest, TransactionId};
pub use replica::{Change, DaemonId, KeyChange, ReplicaMessage, Route};
pub use start::{
    Complete, Compression, Configuration, Consistency, DaemonReport, DaemonSettings, KeeperMessage, LEASE_MS,
    LINE_BYTES_MAX, Listen, Listening, PoolDaemon, PoolMember, PoolSettings, Ready,
};

/// The largest number of bytes of file data in one message.
pub const DATA_BYTES_MAX: usize = 512 << 10;

/// The largest length of a message, in bytes: file data, and space for everything else.
pub const MESSAGE_BYTES_MAX: usize = DATA_BYTES_MAX + (16 << 10);

/// The largest length of the inline data of a file, in bytes. A member may have a smaller limit.
pub const INLINE_BYTES_MAX: usize = 8 << 10;

/// The largest size of a file, in bytes: the largest value of `off_t`.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The longest target of a symbolic link, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;

/// The space for the extended attributes of one node, in bytes: their names and values.
pub const XATTRS_BYTES_MAX: usize = 128 << 10;

/// The space for the names of the extended attributes of one node, each with a NUL, in bytes. It is
/// the limit of listxattr(2) in Linux.
pub const XATTR_NAMES_BYTES_MAX: usize = 64 << 10;
