//! Transactional blobs for programs that share state (Týr, part 3 of the BigStorage report).
//!
//! ```
//! # fn main() -> Result<(), quell_blob::Error> {
//! # let directory = tempfile::tempdir().expect("a directory");
//! # let location = format!("dir:{}", directory.path().join("results").display());
//! use quell_blob::{CellType, Retries, Store, Transform};
//!
//! let store = Store::open(&location)?;
//! store.transact(&Retries::default(), |transaction| {
//!     transaction.create("events")?;
//!     transaction.create("total")?;
//!     transaction.append("events", b"temperature 21\n")?;
//!     transaction.transform("total", 0, Transform::add_i64(21))
//! })?;
//! let mut total = [0; 8];
//! store.read("total", 0, &mut total)?;
//! assert_eq!(i64::from_le_bytes(total), 21);
//! # Ok(())
//! # }
//! ```
//!
//! Names are bytes, sizes and offsets are in bytes. docs/semantics.md states the guarantees.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod check;
mod directory;
mod embedded;
mod error;
mod finder;
mod future;
mod grouped;
mod groups;
mod key;
mod location;
mod marker;
mod rados;
mod readers;
mod remote;
mod retries;
mod serving;
mod store;
mod transaction;

pub use check::check;
pub use directory::{open_for_server, open_rados_directory};
pub use error::{Error, Result};
pub use future::CommitFuture;
pub use groups::{RadosGroups, RadosServer};
pub use key::{create_key, derive_key};
pub use location::Location;
pub use marker::MarkerOutcome;
pub use quell_blob_service::{BlobStat, CheckedStore, Group, OpenStore, Problem, ProblemKind};
pub use quell_wire::blob::{
    Access, CellType, Committed, Conflict, FileAttributes, Grant, KeyDescription, NAME_BYTES_MAX,
    OPERATIONS_MAX, Operation, OperationResult, Overflow, Part, Read, Refusal, Right, SIZE_BYTES_MAX,
    StoreCounters, Transform, TransformKind, Version,
};
pub use rados::OrphanRemoval;
pub use retries::Retries;
pub use serving::{Delay, ServingLease, Start, Takeover};
pub use store::{SUBMITTED_READ_BYTES_MAX, Snapshot, Store};
pub use transaction::Transaction;
