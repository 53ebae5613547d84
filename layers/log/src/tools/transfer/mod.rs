//! Export and import without a mount: copies a tree in the stores to plain files, and back. A file
//! gets its name after it is complete. Holes are preserved.
//!
//! `existing` decides without I/O whether entries that exist at the destination are replaced.

mod existing;
mod export;
mod import;
mod snapshot;
mod state;

pub use export::{ExportSource, export};
pub use import::{ImportSource, import};
pub use state::{TransferOptions, TransferResult};

#[cfg(test)]
#[path = "transfer_test.rs"]
mod tests;
