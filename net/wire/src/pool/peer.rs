//! The requests between members of a pool. All have results of [`Reply`](super::Reply).

use serde::{Deserialize, Serialize};

use super::entry::{FileId, MemberId, NodeKind, Stamp};
use super::operation::{Operation, RenameMode};

/// Identifies a transaction: the member that coordinates it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransactionId {
    /// The coordinator.
    pub coordinator: MemberId,
    /// The number, which the coordinator does not reuse.
    pub number: u64,
}

/// A request of one member to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerRequest<'a> {
    /// Performs an operation for a client of the sender.
    Perform(#[serde(borrow)] Operation<'a>),
    /// Returns the attributes of a node, and makes a reference of a member to it unless that is
    /// `None`: `Reply::Node`.
    Hold {
        /// The node.
        id: FileId,
        /// The member that gets the reference.
        holder: Option<MemberId>,
    },
    /// Returns references of the sender: `Reply::Done`.
    Return {
        /// The nodes, each with the number of references.
        references: Vec<(FileId, u64)>,
    },
    /// Returns the space of the member: `Reply::Space`.
    Space,
    /// Records that a node has lost its name: `Reply::Done`. The data is removed when the last
    /// reference is returned.
    LoseName {
        /// The node.
        id: FileId,
    },
    /// Records the new name of a node: `Reply::Done`.
    SetName {
        /// The node.
        id: FileId,
        /// The directory.
        dir: FileId,
        /// The name in it.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Returns the entries of a directory on this member: `Reply::Entries`.
    ListPart {
        /// The directory.
        dir: FileId,
        /// The cursor of the last entry that the sender has, or 0.
        after: u64,
        /// The largest number of entries.
        count_max: u32,
    },
    /// Lets no entry be created in a directory until `OpenDir`, and returns whether it has entries
    /// on this member: `Reply::HasEntries`.
    CloseDir {
        /// The directory.
        dir: FileId,
    },
    /// Ends `CloseDir`: `Reply::Done`.
    OpenDir {
        /// The directory.
        dir: FileId,
        /// Whether the directory was removed; then no entry can be created in it ever after.
        is_removed: bool,
    },
    /// Prepares the new name of a rename: `Reply::Prepared` with the entry that has the name. Fails
    /// with `Busy` if another transaction has prepared it.
    PrepareName {
        /// The transaction.
        transaction: TransactionId,
        /// The directory.
        dir: FileId,
        /// The name in it.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
        /// The node that gets the name.
        id: FileId,
        /// Its kind.
        kind: NodeKind,
        /// The effect if an entry of the name exists.
        mode: RenameMode,
    },
    /// Ends a prepared transaction: `Reply::Done`.
    EndTransaction {
        /// The transaction.
        transaction: TransactionId,
        /// Whether it is carried out.
        is_committed: bool,
    },
    /// Returns whether a transaction of this member was committed: `Reply::Committed`.
    Outcome {
        /// The transaction.
        transaction: TransactionId,
    },
    /// Sets the group that new entries of a directory get, or `None` for that of their creator:
    /// `Reply::Done`. Sent to all members.
    SetDirGroup {
        /// The directory.
        dir: FileId,
        /// The group.
        gid: Option<u32>,
    },
    /// Records that entries of a directory were changed: `Reply::Done`.
    Touch {
        /// The directory.
        dir: FileId,
        /// The time of the change.
        time: Stamp,
    },
    /// Waits for all renames of directories that others have begun, and lets no other begin until
    /// `UnlockRenames`: `Reply::Done`. Sent to the member of the root.
    LockRenames,
    /// Ends `LockRenames`: `Reply::Done`.
    UnlockRenames,
    /// Cuts the chunks of a file on this member: `Reply::Done`.
    TruncateChunks {
        /// The file.
        id: FileId,
        /// The size of the file in bytes.
        size_bytes: u64,
    },
    /// Removes the chunks of a file on this member: `Reply::Done`.
    RemoveChunks {
        /// The file.
        id: FileId,
    },
    /// Makes the chunks of a file on this member survive a power failure: `Reply::Done`.
    SyncChunks {
        /// The file.
        id: FileId,
    },
    /// Makes the clients of the member look directories up again, because one was renamed or its
    /// permissions or owners were changed: `Reply::Done`.
    ForgetDirs,
    /// Returns the marks of the member: `Reply::Marks`.
    Mark,
    /// Records that a copy of the whole pool has the changes up to a number: `Reply::Done`.
    RecordMark {
        /// The number.
        changes: u64,
    },
}
