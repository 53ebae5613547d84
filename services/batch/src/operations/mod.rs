//! The operation log of a batch: the reduced operations of a job, from which the trusted process
//! makes the entries that a certificate has in tables (docs/formats/batch.md, "The operation log").
//!
//! A file of the log has the layout of a table. Only the form of its blocks differs, so the
//! verification reads both in the same way.

mod block;
mod columns;
mod execution;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod open;
mod writer;

pub(crate) use open::{open, open_unexecuted};
pub use writer::OperationsWriter;
