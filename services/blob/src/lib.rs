//! Transactional blobs (Týr, part 3 of the BigStorage report): a store of named byte sequences with
//! random writes, transactions over several blobs, arithmetic in place, and snapshots.
//!
//! The names, small data and references of a store are keys and values of a `KeyValue`; large data
//! is in immutable extents. A group of transactions is one commit of the key-value store. This
//! crate opens no socket, starts no thread and reads no clock: callers pass the storage and the
//! clock. docs/formats/blob.md describes the keys and values, docs/semantics.md states the
//! guarantees.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod apply;
mod check;
mod check_groups;
mod commuting;
mod content;
mod counters;
mod engine;
mod epoch;
mod extent_upload;
mod extents;
mod garbage;
mod group;
mod joint;
mod keys;
mod leader;
mod options;
mod permissions;
mod prepared;
mod queue;
mod recent;
mod session;
mod snapshot;
mod store;
mod tables;
mod transfers;
mod transform;
mod versions;
mod waiters;

pub use check::{CheckedStore, Problem, ProblemKind, check};
pub use check_groups::{JointRecords, compare_joint_records, read_joint_records};
pub use extents::{
    EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, ExtentDir, ExtentId, ExtentWriter, Extents, MemoryExtents,
};
pub use group::Group;
pub use options::{Clock, Options};
pub use permissions::Permissions;
pub use quell_wire::blob::{BlobStat, OPERATIONS_MAX, READS_MAX};
pub use queue::CommitResult;
pub use session::{ClientId, Replied, SessionLimits, Sessions};
pub use snapshot::Snapshot;
pub use store::OpenStore;
