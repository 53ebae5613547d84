//! The description of a batch that an auxiliary server is to verify.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::batch::BatchRecord;
use crate::entry::Timestamp;
use crate::readable::ReadAccess;
use crate::table_ref::TableRef;

/// A batch, or a part of one, that an auxiliary server is to verify, and the image on which it is
/// verified. docs/formats/batch-protocol.md describes the encoding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerificationTask {
    /// The random number of the store.
    pub store: u128,
    /// The number in the names of entries in conflict: the number of the batch, also for a part.
    pub batch: u64,
    /// The record of the batch or of the part, with the tables of its snapshot.
    pub record: BatchRecord,
    /// The inode numbers of the parts of the batch whose changes `current` has.
    pub earlier: Vec<Range<u64>>,
    /// The number of conflicts of these parts.
    pub conflicts: u64,
    /// The tables of the current image, the newest first.
    pub current: Vec<TableRef>,
    /// The present time, by the clock of the primary server.
    pub now: Timestamp,
    /// The entries of the snapshot that the user may read, and therefore change.
    pub reads: ReadAccess,
}
