//! The marks of a member, and the operations that change a pool. The module `changes` has the
//! rules.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use quell_wire::pool::{FileId, Operation};
use serde::{Deserialize, Serialize};

use crate::chunks::ChunkState;

/// The marks of a member.
#[derive(Debug, Default)]
pub struct Marks {
    pub changes: Cell<u64>,
    pub saved: Cell<u64>,
    /// Whether `changes` was increased and recorded since it was last read.
    pub is_counted: Cell<bool>,
    /// The files of this member that clients may be writing without requests, with the state of the
    /// data at the last comparison.
    pub written: RefCell<HashMap<FileId, Option<ChunkState>>>,
}

/// The record of the marks.
#[derive(Serialize, Deserialize)]
pub struct MarksRecord {
    pub changes: u64,
    pub saved: u64,
}

/// Returns whether an operation changes names, attributes or data.
pub fn is_change(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Create { .. }
        | Operation::Remove { .. }
        | Operation::Rename { .. }
        | Operation::Change { .. }
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. }
        | Operation::Write { .. }
        | Operation::WriteInline { .. }
        | Operation::NoteData { .. }
        | Operation::Grow { .. }
        | Operation::Reserve { .. } => true,
        Operation::Lookup { .. }
        | Operation::Attributes { .. }
        | Operation::Name { .. }
        | Operation::ReadLink { .. }
        | Operation::Xattr { .. }
        | Operation::XattrNames { .. }
        | Operation::List { .. }
        | Operation::ListReachable { .. }
        | Operation::Read { .. }
        | Operation::ReadInline { .. }
        | Operation::Sync { .. }
        | Operation::Release { .. }
        | Operation::Space
        | Operation::OwnPartitions
        | Operation::Placement
        | Operation::Consistency
        | Operation::MemberSpace { .. }
        | Operation::Counters { .. }
        | Operation::StopMember { .. }
        | Operation::Marks
        | Operation::RecordMarks { .. }
        | Operation::Hold { .. } => false,
    }
}
