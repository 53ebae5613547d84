//! The record of a batch, which the primary server keeps and the verification trusts.

use std::ops::Range;

use quell_vfs::ErrorKind;
use serde::{Deserialize, Serialize};

use crate::table_ref::TableRef;

/// The user whose operations are in a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchCaller {
    /// The user.
    pub uid: u32,
    /// The group of new files.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// The record of a batch, or of a part of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// The number of the batch, which no other batch of the store has.
    pub number: u64,
    /// The name that the user has given the batch.
    pub name: String,
    /// The user whose permissions apply to the operations of the batch.
    pub caller: BatchCaller,
    /// The inode numbers that new entries of the batch can have; empty for a batch of several
    /// parts.
    pub inodes: Range<u64>,
    /// The tables of the snapshot of the image with which the batch began, the newest first.
    pub snapshot: Vec<TableRef>,
    /// The directory that the batch may change, with everything below it.
    pub subtree: u64,
    /// Whether the batch is atomic: either all of its operations are committed, or none.
    pub is_atomic: bool,
    /// The state of the batch.
    pub state: BatchState,
}

impl BatchRecord {
    /// Returns whether the batch consists of parts, and has no other changes.
    pub fn has_parts(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Returns the batch of which this is a part.
    pub fn part_of(&self) -> Option<u64> {
        match self.state {
            BatchState::Part { of, .. } => Some(of),
            _ => None,
        }
    }

    /// Returns whether this is a part that is neither committed nor discarded.
    pub(crate) fn is_open_part(&self) -> bool {
        matches!(self.state, BatchState::Part { state: PartState::Open, .. })
    }

    /// Returns the tables with the conflicts.
    pub(crate) fn conflict_tables(&self) -> &[TableRef] {
        match &self.state {
            BatchState::Committed { conflicts, .. } => &conflicts.tables,
            _ => &[],
        }
    }

    /// Returns the number of directories in the two lists of a prepared batch.
    pub(crate) fn reserved_dirs(&self) -> usize {
        match &self.state {
            BatchState::Prepared(prepared) => prepared.dirs.len() + prepared.changed_dirs.len(),
            _ => 0,
        }
    }

    /// Returns the tables that a verification has written for a prepared batch.
    pub(crate) fn prepared_tables(&self) -> &[TableRef] {
        match &self.state {
            BatchState::Prepared(prepared) => &prepared.tables,
            _ => &[],
        }
    }
}

/// The state of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchState {
    /// The batch is open: its private name space can be changed.
    Open,
    /// The changes of the batch are part of the image, except for conflicts.
    Committed {
        /// The number of new files, directories and links that were committed.
        entries: u64,
        /// The operations that were not committed, without those that were resolved since.
        conflicts: Conflicts,
    },
    /// The changes were discarded.
    Aborted,
    /// The tables and the certificate of the batch are complete. The batch is verified and
    /// committed before the image is used the next time.
    Submitted {
        /// Batches are committed in the order of these numbers.
        order: u64,
    },
    /// The batch was submitted, and could not be committed.
    Refused {
        /// The error of the commit.
        reason: String,
    },
    /// The record belongs to a part of another batch. The record of that batch lists the conflicts
    /// of all parts.
    Part {
        /// The number of the batch.
        of: u64,
        /// The state of the part.
        state: PartState,
    },
    /// The batch is verified without conflicts, and is published if the transaction of its marker
    /// is committed. The image refuses other changes of the directories on which the verification
    /// depends, so the batch can be published without another verification.
    Prepared(Box<Prepared>),
}

/// The blob that records the decision about a prepared batch. The transaction of blobs that is
/// committed together with the batch creates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The location of the store of blobs. This crate does not open it.
    pub location: String,
    /// The name of the blob. Each attempt to commit a batch has another name.
    pub blob: String,
}

/// A batch whose tables are verified and durable, and not part of the image yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The marker.
    pub marker: Marker,
    /// The number of new entries of the batch, or of each of its parts in their order.
    pub(crate) entries: Vec<u64>,
    /// The tables to add to the image, the newest first.
    pub(crate) tables: Vec<TableRef>,
    /// The directories of the existing entries that the tables replace, in ascending order.
    pub(crate) changed_dirs: Vec<u64>,
    /// The directories on which the verification depends, in ascending order.
    pub(crate) dirs: Vec<u64>,
}

/// The state of a part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartState {
    /// The part is neither committed nor discarded. The process that changes it may still run, may
    /// have closed the part, or may have been killed.
    Open,
    /// The changes of the part were committed together with the changes of the other parts.
    Committed {
        /// The number of new files, directories and links that were committed.
        entries: u64,
    },
    /// The changes were discarded.
    Aborted,
}

impl BatchState {
    /// Returns whether the batch, or the part, is aborted.
    pub fn is_aborted(&self) -> bool {
        matches!(self, BatchState::Aborted | BatchState::Part { state: PartState::Aborted, .. })
    }

    /// Returns whether the batch is committed or aborted.
    pub fn has_ended(&self) -> bool {
        match self {
            BatchState::Committed { .. } | BatchState::Aborted => true,
            BatchState::Open
            | BatchState::Submitted { .. }
            | BatchState::Refused { .. }
            | BatchState::Prepared(_) => false,
            BatchState::Part { state, .. } => *state != PartState::Open,
        }
    }
}

/// The list of the conflicts of a batch, in tables.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Conflicts {
    /// The number of conflicts.
    pub count: u64,
    /// The tables in the directory of the image. The keys are the numbers of the conflicts.
    pub tables: Vec<TableRef>,
}

/// The description of a batch for users, without its snapshot and its conflicts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSummary {
    /// The number of the batch.
    pub number: u64,
    /// The name that the user has given the batch.
    pub name: String,
    /// The user.
    pub uid: u32,
    /// The directory that the batch may change, with everything below it.
    pub subtree: u64,
    /// The state of the batch.
    pub state: SummaryState,
}

impl BatchSummary {
    /// Returns whether the batch is prepared.
    pub fn is_prepared(&self) -> bool {
        matches!(self.state, SummaryState::Prepared { .. })
    }

    /// Returns whether the batch is committed.
    pub fn is_committed(&self) -> bool {
        matches!(self.state, SummaryState::Committed { .. })
    }
}

/// The state of a batch, without its conflicts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SummaryState {
    /// The batch is open: its private name space can be changed.
    Open,
    /// The changes of the batch are part of the image, except for conflicts.
    Committed {
        /// The number of new files, directories and links that were committed.
        entries: u64,
        /// The number of operations that were not committed.
        conflicts: u64,
    },
    /// The changes were discarded.
    Aborted,
    /// The batch is verified and committed before the image is used the next time.
    Submitted,
    /// The batch was submitted, and could not be committed.
    Refused {
        /// The error of the commit.
        reason: String,
    },
    /// The batch is open, and consists of parts.
    OpenForParts,
    /// The record belongs to a part of another batch.
    Part {
        /// The number of the batch.
        of: u64,
        /// The state of the part.
        state: PartState,
    },
    /// The batch is verified, and is published if the transaction of its marker is committed.
    Prepared {
        /// The marker.
        marker: Marker,
    },
}

impl SummaryState {
    /// Returns the reason why a batch in this state cannot be committed, with the kind of the
    /// error. `None` if the batch can be committed.
    pub fn obstacle(&self) -> Option<(ErrorKind, String)> {
        let ended = |reason: &str| Some((ErrorKind::InvalidInput, reason.to_owned()));
        match self {
            SummaryState::Open
            | SummaryState::OpenForParts
            | SummaryState::Submitted
            | SummaryState::Refused { .. } => None,
            SummaryState::Committed { .. } => ended("it is committed already"),
            SummaryState::Aborted => ended("it was aborted"),
            SummaryState::Part { of, .. } => ended(&format!("it is a part of batch {of}, which commits it")),
            SummaryState::Prepared { .. } => Some((
                ErrorKind::Busy,
                "it is prepared, and is published only if its transaction of blobs is committed; use \"quell \
                 batch commit\" or \"quell batch abort\""
                    .to_owned(),
            )),
        }
    }
}

impl BatchRecord {
    /// Returns the description for users.
    pub fn summary(&self) -> BatchSummary {
        let state = match &self.state {
            BatchState::Open if self.has_parts() => SummaryState::OpenForParts,
            BatchState::Open => SummaryState::Open,
            BatchState::Committed { entries, conflicts } => {
                SummaryState::Committed { entries: *entries, conflicts: conflicts.count }
            }
            BatchState::Aborted => SummaryState::Aborted,
            BatchState::Submitted { .. } => SummaryState::Submitted,
            BatchState::Refused { reason } => SummaryState::Refused { reason: reason.clone() },
            BatchState::Part { of, state } => SummaryState::Part { of: *of, state: *state },
            BatchState::Prepared(prepared) => SummaryState::Prepared { marker: prepared.marker.clone() },
        };
        let (number, name, uid) = (self.number, self.name.clone(), self.caller.uid);
        BatchSummary { number, name, uid, subtree: self.subtree, state }
    }
}

/// An operation of a batch that was left out of the commit, or committed under another name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The directory of the name.
    pub dir: u64,
    /// The name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The reason.
    pub reason: ConflictReason,
    /// The new entry, or a file with the new content, which was committed instead.
    pub kept_as: Option<Kept>,
}

/// An entry that was committed under another name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The directory of the name.
    pub dir: u64,
    /// The name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The inode number.
    pub inode: u64,
}

/// The decision about a conflict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resolution {
    /// The entry of the batch replaces the other one.
    Mine,
    /// The entry of the batch is removed.
    Theirs,
    /// The entry of the batch gets this path in the store, at which no other entry exists.
    Rename(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// The result of a resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resolved {
    /// The number of conflicts that were resolved.
    pub resolved: u64,
    /// The number of conflicts for which no entry of the batch was kept, so that it cannot replace
    /// the other entry.
    pub not_kept: u64,
}

/// The reason for which an operation of a batch was not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConflictReason {
    /// The name was created since the snapshot.
    Exists,
    /// The entry was removed, renamed or replaced since the snapshot.
    Changed,
    /// The same attribute or the content was changed since the snapshot.
    AttributeChanged,
    /// The directory was removed since the snapshot.
    DirectoryRemoved,
    /// The directory got new entries since the snapshot, so it was not removed.
    NotEmpty,
    /// The user may not change the directory (any more).
    Denied,
    /// The directory would be below itself.
    Cycle,
}

impl ConflictReason {
    /// Returns the reason as the end of a sentence about a name.
    pub fn text(self) -> &'static str {
        match self {
            ConflictReason::Exists => "was created by others meanwhile",
            ConflictReason::Changed => "was removed, renamed or replaced by others meanwhile",
            ConflictReason::AttributeChanged => "was changed by others meanwhile",
            ConflictReason::DirectoryRemoved => "is in a directory that others have removed meanwhile",
            ConflictReason::NotEmpty => "got new entries meanwhile and was not removed",
            ConflictReason::Denied => "is in a directory that you may not change",
            ConflictReason::Cycle => "would be below itself, because others have moved a directory",
        }
    }
}
