//! The messages by which the daemon that runs a member sends each change of the member's storage to
//! the daemons with backups of it.

use serde::{Deserialize, Serialize};

use super::entry::{FileId, MemberId, Stamp};

/// Identifies a daemon of a pool. Identifiers are not reused, also if a daemon is started again on
/// the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DaemonId(pub u16);

/// The beginning of each message between two daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Route {
    /// A [`PeerMessage`](super::PeerMessage) follows.
    Member {
        /// The member that has sent it.
        from: MemberId,
        /// The member that gets it.
        to: MemberId,
    },
    /// A [`ReplicaMessage`] with its changes follows.
    Backup,
}

/// The beginning of a message to a daemon with a backup. `count` encodings of [`Change`] follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaMessage {
    /// The member.
    pub member: MemberId,
    /// The stream of changes: the session of the member, and a number that the session does not
    /// reuse.
    pub stream: (u64, u32),
    /// The number of the configuration that has assigned the backup to the daemon. A stream begins
    /// after the daemon has this configuration or a later one.
    pub configuration: u64,
    /// The number of the message in its stream, from 0.
    pub number: u64,
    /// The number of changes.
    pub count: u32,
}

/// A change of the storage of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<'a> {
    /// Removes everything. This is the first change of each stream.
    Clear,
    /// Stores the values of keys, or removes the keys that have none, atomically and in this order.
    #[serde(borrow)]
    Commit(Vec<KeyChange<'a>>),
    /// Writes data of a file, and sets the time of its last write.
    Write {
        /// The file.
        id: FileId,
        /// The offset in the file, in bytes.
        offset: u64,
        /// The data.
        #[serde(borrow, with = "serde_bytes")]
        data: &'a [u8],
        /// The time.
        modified: Stamp,
    },
    /// Writes data of a file that a new backup gets, and reads it again to compare it. The time of
    /// the last write follows as `SetModified`.
    Copy {
        /// The file.
        id: FileId,
        /// The offset in the file, in bytes.
        offset: u64,
        /// The data.
        #[serde(borrow, with = "serde_bytes")]
        data: &'a [u8],
    },
    /// Removes the data of a file from an offset on.
    Truncate {
        /// The file.
        id: FileId,
        /// The offset, in bytes.
        end: u64,
        /// The time of the last write.
        modified: Stamp,
    },
    /// Removes all data of a file.
    Remove {
        /// The file.
        id: FileId,
    },
    /// Sets the time of the last write to a file.
    SetModified {
        /// The file.
        id: FileId,
        /// The time.
        time: Stamp,
    },
    /// Syncs the data of a file.
    SyncData {
        /// The file.
        id: FileId,
    },
    /// Syncs the key-value store.
    SyncStore,
    /// The backup has everything that the member has.
    Complete,
}

/// A key, and its new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyChange<'a> {
    /// The key.
    #[serde(borrow, with = "serde_bytes")]
    pub key: &'a [u8],
    /// The value, or `None` to remove the key.
    #[serde(borrow, with = "serde_bytes")]
    pub value: Option<&'a [u8]>,
}
