//! The log layer (PLFS): a file that many processes write at once is a container of append-only
//! logs, one pair for each writer. The file system below therefore sees every process write a file
//! of its own. A reader resolves which log holds which bytes of the file.
//!
//! The formats are described in docs/formats/log.md. A folder depends only on the folders above it:
//!
//! | folder | content |
//! |---|---|
//! | `format` | the formats: pure functions from bytes to values and back |
//! | `stores` | the stores of a mount, and the placement map |
//! | `container` | the directory in a store that holds one file, and its logs |
//! | `session` | an open file: writers, the order of their frames, the extents that a reader resolves |
//! | `fs` | the file system of the contract: names, nodes and handles |
//! | `tools` | work on stores without a mount: check, report, export, import, rebalance |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod container;
mod format;
mod fs;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod locks;
mod not_found;
mod session;
mod stores;
#[cfg(test)]
mod test_stores;
mod tools;

pub use container::Container;
pub use format::{FileOffset, Holder, LogDamage, Member, StoreMap, Truncation, is_own};
pub use fs::{Entry, Listing, LogFs, NameProblem, NameProblemKind, ResolvedPath, StoredDir, find};
pub use session::{Choices, Flattened, flatten};
pub use stores::{Host, Opener, Role, Root, Scratch, Stores, is_store};
pub use tools::fsck::{CheckOptions, CheckResult, Finding, Problem, ProblemKind, RepairOutcome, check};
pub use tools::progress::ToolProgress;
pub use tools::rebalance::{RebalanceResult, preview_rebalance, rebalance};
pub use tools::report::{
    ByteState, FileReport, FileSummary, LogLocation, LoggedRange, MappedRange, OpenWriter, ResolvedFile,
    WriterReport, report_file, summarize_file,
};
pub use tools::transfer::{ExportSource, ImportSource, TransferOptions, TransferResult, export, import};
