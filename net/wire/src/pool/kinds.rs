//! The kinds under which operations and requests are counted.

use super::counters::OperationKind;
use super::operation::Operation;
use super::peer::PeerRequest;

impl Operation<'_> {
    /// Returns the kind under which the operation is counted.
    pub fn kind(&self) -> OperationKind {
        match self {
            Operation::Create { .. } => OperationKind::Create,
            Operation::Lookup { .. } => OperationKind::Lookup,
            Operation::Attributes { .. } | Operation::Xattr { .. } | Operation::XattrNames { .. } => {
                OperationKind::Stat
            }
            Operation::Remove { .. } => OperationKind::Remove,
            Operation::Rename { .. } => OperationKind::Rename,
            Operation::Change { .. } | Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => {
                OperationKind::Change
            }
            Operation::List { .. } | Operation::ListReachable { .. } => OperationKind::List,
            Operation::Read { .. } | Operation::ReadInline { .. } => OperationKind::Read,
            Operation::Write { .. } | Operation::WriteInline { .. } => OperationKind::Write,
            Operation::NoteData { .. } | Operation::Grow { .. } | Operation::Reserve { .. } => {
                OperationKind::Extend
            }
            Operation::Sync { .. } => OperationKind::Sync,
            _ => OperationKind::Other,
        }
    }

    /// Returns the number of bytes of file data in the operation.
    pub fn data_bytes(&self) -> u64 {
        match self {
            Operation::Write { data, .. } | Operation::WriteInline { data, .. } => data.len() as u64,
            _ => 0,
        }
    }
}

impl PeerRequest<'_> {
    /// Returns the kind under which the request is counted.
    pub fn kind(&self) -> OperationKind {
        match self {
            PeerRequest::Perform(operation) => operation.kind(),
            PeerRequest::Hold { .. } => OperationKind::Lookup,
            PeerRequest::ListPart { .. } => OperationKind::List,
            PeerRequest::TruncateChunks { .. } => OperationKind::Change,
            PeerRequest::RemoveChunks { .. } => OperationKind::Remove,
            PeerRequest::SyncChunks { .. } => OperationKind::Sync,
            _ => OperationKind::Other,
        }
    }

    /// Returns the number of bytes of file data in the request.
    pub fn data_bytes(&self) -> u64 {
        match self {
            PeerRequest::Perform(operation) => operation.data_bytes(),
            _ => 0,
        }
    }
}
