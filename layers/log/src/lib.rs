//! The log layer (PLFS): a file that many processes write at once is a container of append-only
//! logs, one pair for each writer. The file system below therefore sees every process write a file
//! of its own. A reader resolves which log holds which bytes of the file.
//!
//! The formats are described in docs/formats/log.md.

#![forbid(unsafe_code)]

mod container;
mod format;
mod fs;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod session;
mod stores;
#[cfg(test)]
mod test_stores;
mod tools;

pub use container::container_dir::Container;
pub use container::scratch::Scratch;
pub use format::damage::Damage;
pub use format::meta::{Cut, Holder};
pub use format::naming::is_own;
pub use format::store_map::{Member, StoreMap};
pub use fs::file_system::LogFs;
pub use session::flatten::{Flattened, flatten};
pub use session::log_file::Choices;
pub use stores::store_set::{Host, Opener, Role, Root, Stores};
pub use stores::tree::{Entry, Found, Listing, Odd, Oddity, StoredDir, find, is_store};
pub use tools::fsck::{
    ByteRange, CheckOptions, CheckResult, Finding, Problem, ProblemKind, RepairOutcome, check,
};
pub use tools::progress::Progress;
pub use tools::rebalance::{RebalanceResult, preview_rebalance, rebalance};
pub use tools::report::{
    ByteState, FileReport, FileSummary, LogLocation, LoggedRange, MappedRange, OpenWriter, ResolvedFile,
    WriterReport, report_file, summarize_file,
};
pub use tools::transfer::{ExportSource, ImportSource, TransferOptions, TransferResult, export, import};
