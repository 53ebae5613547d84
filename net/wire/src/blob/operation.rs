//! The operations and reads of a transaction, and the results of its commit.

use serde::{Deserialize, Serialize};

use super::transform::Transform;
use crate::bounded::at_most;

/// The largest length of the name of a blob, in bytes. The smallest is 1.
pub const NAME_BYTES_MAX: usize = 1024;
/// The largest size of a blob, in bytes.
pub const SIZE_BYTES_MAX: u64 = i64::MAX as u64;
/// The largest number of operations of a transaction.
pub const OPERATIONS_MAX: usize = 16_384;
/// The largest number of parts that a transaction may have read.
pub const READS_MAX: usize = 16_384;

/// The attributes of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobStat {
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The time of the last commit that changed the content of the blob, in nanoseconds since 1970,
    /// or the time that was set afterwards.
    pub modified_ns: u64,
    /// The attributes of the blob as a file, if they were set.
    pub file: Option<FileAttributes>,
}

/// The attributes of a blob that is used as a file. The store keeps them, and does not interpret
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttributes {
    /// The type and the permissions, as `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The number of a state of a store. Each group of transactions that are committed together gets a
/// larger one. Numbers are not consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Version(pub u64);

/// The number of a snapshot that a client has. The server chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SnapshotId(pub u64);

/// The identity of a transaction, which the client chooses. A commit that is repeated with the same
/// identity has no second effect, and gets the result of the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TransactionId {
    /// A random number of the client.
    pub client: u128,
    /// The number of the transaction, which no other transaction of the client has.
    pub number: u64,
    /// The version of a state that the client knew before it sent the commit for the first time. If
    /// the server has removed results of later commits, it refuses a repetition.
    pub begun: Version,
}

/// One change of a blob. Offsets and sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Creates an empty blob. Fails with `Exists` if the name is in use, unless `may_exist` is set;
    /// then an existing blob is left unchanged.
    Create {
        /// The name.
        name: Vec<u8>,
        /// Whether the blob may exist.
        may_exist: bool,
    },
    /// Deletes a blob.
    Delete {
        /// The name.
        name: Vec<u8>,
    },
    /// Writes bytes. A blob that ends before `offset` is extended with zeros.
    Write {
        /// The name.
        name: Vec<u8>,
        /// The position of the first byte.
        offset: u64,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Writes bytes at the end of a blob. The result has their offset.
    Append {
        /// The name.
        name: Vec<u8>,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Sets the size of a blob: truncates it, or extends it with zeros, which need no space.
    Resize {
        /// The name.
        name: Vec<u8>,
        /// The new size.
        size_bytes: u64,
    },
    /// Replaces numbers in a blob by the results of an arithmetic operation on them. Numbers after
    /// the end of the blob are zeros, and the blob is extended.
    Transform {
        /// The name.
        name: Vec<u8>,
        /// The position of the first number. Any alignment is allowed.
        offset: u64,
        /// The operation on each number.
        transform: Transform,
    },
    /// Gives a blob another name. Its content is not copied. Fails with `Exists` if the other name
    /// is in use.
    Rename {
        /// The name.
        name: Vec<u8>,
        /// The new name.
        to: Vec<u8>,
    },
    /// Sets attributes of a blob, and changes nothing else.
    SetAttributes {
        /// The name.
        name: Vec<u8>,
        /// The attributes as a file; `None` leaves them unchanged.
        file: Option<FileAttributes>,
        /// The time of the last change, in nanoseconds since 1970; `None` leaves it unchanged.
        modified_ns: Option<u64>,
    },
}

impl Operation {
    /// Returns the name of the blob before the operation.
    pub fn name(&self) -> &[u8] {
        match self {
            Operation::Create { name, .. }
            | Operation::Delete { name }
            | Operation::Write { name, .. }
            | Operation::Append { name, .. }
            | Operation::Resize { name, .. }
            | Operation::Transform { name, .. }
            | Operation::Rename { name, .. }
            | Operation::SetAttributes { name, .. } => name,
        }
    }

    /// Returns the names of all blobs that the operation changes.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let to = match self {
            Operation::Rename { to, .. } => Some(&to[..]),
            _ => None,
        };
        std::iter::once(self.name()).chain(to)
    }
}

/// The result of an operation of a committed transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationResult {
    /// The operation has no result.
    Done,
    /// The data of an append begins at this offset.
    Appended(u64),
    /// The numbers before a transform that asked for them, in the encoding of its operands.
    Before(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// A part of the store that a transaction has read, or that a commit has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Part {
    /// Whether a blob of this name exists.
    Existence,
    /// The size of the blob.
    Size,
    /// The bytes from `start` up to `end`, exclusive. Bytes after the end of the blob are included:
    /// a read that returned fewer bytes than requested conflicts with an append.
    Range {
        /// The first byte.
        start: u64,
        /// The byte after the last one.
        end: u64,
    },
    /// The names that begin with the name of the [`Read`].
    NamesWithPrefix,
}

/// A part of a blob, or of the list of names, that a transaction has read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Read {
    /// The name of the blob, or the prefix of names.
    pub name: Vec<u8>,
    /// The part.
    pub part: Part,
}

/// A transaction, as it is passed to its commit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Transaction {
    /// The identity, if the commit may be repeated.
    pub id: Option<TransactionId>,
    /// Whether the commit was sent before, and may have been performed.
    pub is_repeated: bool,
    /// The state that was read; `None` if nothing was read.
    pub snapshot: Option<Version>,
    /// The reads. The transaction is refused if a later commit has changed a part of it.
    #[serde(deserialize_with = "at_most::<READS_MAX, _, _>")]
    pub reads: Vec<Read>,
    /// The operations, which are applied in their order.
    #[serde(deserialize_with = "at_most::<OPERATIONS_MAX, _, _>")]
    pub operations: Vec<Operation>,
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The state that the transaction has created, together with others of its group.
    pub version: Version,
    /// The results of the operations, in their order.
    #[serde(deserialize_with = "at_most::<OPERATIONS_MAX, _, _>")]
    pub results: Vec<OperationResult>,
}
