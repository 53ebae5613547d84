//! The requests between members of a pool. The result of each is a [`Reply`](super::Reply).

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

/// A message of one member to another: a request, and the state of the sender's requests to the
/// receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMessage<'a> {
    /// The session of the sender: larger after each start.
    pub session: u64,
    /// The number of the request, which the session does not reuse.
    pub number: u64,
    /// The sender does not wait for replies to requests with smaller numbers.
    pub first_waiting: u64,
    /// Larger numbers of requests that the sender has abandoned.
    pub abandoned: Vec<u64>,
    /// The request.
    #[serde(borrow)]
    pub request: PeerRequest<'a>,
}

/// A request of one member to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerRequest<'a> {
    /// Performs an operation for a client of the sender.
    Perform(#[serde(borrow)] Operation<'a>),
    /// Returns the attributes of a node: `Reply::Held` with a reference of the sender if `holds` is
    /// true, otherwise `Reply::Node`. The number of the message names the reference.
    Hold {
        /// The node.
        id: FileId,
        /// Whether a reference is made.
        holds: bool,
    },
    /// Returns references of the sender: `Reply::Done`.
    Return {
        /// The nodes, each with the number of one reference.
        references: Vec<(FileId, u64)>,
        /// Numbers of requests without a reply, which may have made references.
        unanswered: Vec<u64>,
    },
    /// Declares references of the sender that the receiver may have dropped: `Reply::Done`.
    Declare {
        /// The nodes, each with the number of one reference.
        references: Vec<(FileId, u64)>,
    },
    /// Asks the receiver to keep the references of the sender: `Reply::Lease`.
    Renew,
    /// Returns the directory that has a node: `Reply::Name`. Fails with `Busy` if the node is being
    /// moved.
    Above {
        /// The node.
        id: FileId,
    },
    /// Returns the space of the member: `Reply::Space`.
    Space,
    /// Returns the entries of a directory on this member: `Reply::Entries`.
    ListPart {
        /// The directory.
        dir: FileId,
        /// The cursor of the last entry that the sender has, or 0.
        after: u64,
        /// The largest number of entries.
        count_max: u32,
    },
    /// Prepares the removal of a directory: `Reply::HasEntries` with whether it has entries on this
    /// member. No entry can be created in it until the transaction has ended, and never after if it
    /// was committed. Fails with `Busy` if another transaction has prepared the removal.
    PrepareRemoval {
        /// The transaction.
        transaction: TransactionId,
        /// The directory.
        dir: FileId,
    },
    /// Prepares the new name of a node: `Reply::Done`. Fails with `Busy` if another transaction has
    /// prepared one.
    PrepareNode {
        /// The transaction.
        transaction: TransactionId,
        /// The node.
        id: FileId,
        /// The directory and the new name in it, or `None` if the node loses its name.
        #[serde(borrow)]
        name: Option<(FileId, &'a [u8])>,
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
        /// Whether the transaction is committed.
        is_committed: bool,
    },
    /// Returns whether a transaction of this member was committed: `Reply::Committed`.
    Outcome {
        /// The transaction.
        transaction: TransactionId,
    },
    /// Sets the group that new entries of a directory get, or `None` for the group of their
    /// creator: `Reply::Done`. Sent to all members.
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
    /// Records that files have chunks on the sender, and returns the files that do not exist:
    /// `Reply::Missing`.
    NoteChunks {
        /// The files.
        files: Vec<FileId>,
    },
    /// Truncates the chunks of a file on this member: `Reply::Done`.
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
    /// Invalidates the cached directories of the member's clients, because a directory was renamed
    /// or its permissions or owners were changed: `Reply::Done`.
    ForgetDirs,
    /// Returns the marks of the member: `Reply::Marks`.
    Mark,
    /// Records that a copy of the whole pool contains the changes up to a number: `Reply::Done`.
    RecordMark {
        /// The number.
        changes: u64,
    },
}
