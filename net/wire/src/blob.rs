//! Blobs: the operations of transactions, their results, and the reasons for which a transaction is
//! refused. docs/formats/blob.md describes the messages, docs/semantics.md the meaning.

mod operation;
mod refusal;
mod transform;

pub use operation::{
    Committed, NAME_BYTES_MAX, Operation, OperationResult, Part, Read, SIZE_BYTES_MAX, Transaction,
    TransactionId, Version,
};
pub use refusal::{Conflict, Refusal};
pub use transform::{CellType, Overflow, Transform, TransformKind};
