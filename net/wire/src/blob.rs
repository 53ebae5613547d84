//! Blobs: the operations of transactions, their results, and the reasons for which a transaction is
//! refused; and the messages between clients and the server of a store.
//! docs/formats/blob-protocol.md describes the messages, docs/semantics.md the meaning.

mod counters;
mod joint;
mod key;
mod message;
mod operation;
mod refusal;
mod transform;

pub use counters::{REQUEST_KINDS, RequestKind, StoreCounters};
pub use joint::{
    GROUP_PROTOCOL, GROUPS_MAX, JOINT_BYTES_MAX, JointDecision, JointId, JointReply, JointRequest, Outcome,
    Preparation, Proof, UNDECIDED_MAX, group_of,
};
pub use key::{Access, GRANTS_MAX, Grant, KeyDescription, Right};
pub use message::{
    DATA_BYTES_MAX, Draft, ExtentPart, MESSAGE_BYTES_MAX, NAMES_MAX, PROTOCOL, ReadState, Reply, Request,
    TransferId, UPLOAD_BYTES_MAX, WrittenExtent,
};
pub use operation::{
    BlobStat, Committed, FileAttributes, NAME_BYTES_MAX, OPERATIONS_MAX, Operation, OperationResult, Part,
    READS_MAX, Read, SIZE_BYTES_MAX, SnapshotId, Transaction, TransactionId, Version,
};
pub use refusal::{Conflict, Refusal};
pub use transform::{CellType, Overflow, Transform, TransformKind};
