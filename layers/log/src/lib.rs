//! The log layer (PLFS): a file that many processes write at once is a container of append-only
//! logs, one pair for each writer. The file system below therefore sees every process write a file
//! of its own. A reader resolves which log holds which bytes of the file.
//!
//! The formats are described in docs/formats/log.md.

mod buffer;
mod bytes;
mod check;
mod collected;
mod container;
mod crew;
mod damage;
mod data_log;
mod descriptors;
mod extents;
mod file_system;
mod flat;
mod flatten;
mod flatten_queue;
#[cfg(test)]
mod flatten_test;
#[cfg(test)]
mod forged_test;
mod frames;
mod heads;
mod index_log;
mod log_check;
mod log_dirs;
mod log_file;
mod meta;
mod missing;
mod naming;
mod newer_map;
mod nodes;
#[cfg(test)]
mod others_test;
mod placement;
/// For fuzzers only.
#[doc(hidden)]
pub mod questions;
mod rebalance;
mod report;
mod runs;
mod scan;
mod scratch;
mod share;
mod store_map;
mod stores;
#[cfg(test)]
mod test_stores;
mod transfer;
mod tree;
mod view;
mod writer;

pub use check::{Checked, Checking, Finding, Outcome, Trouble, check};
pub use container::Container;
pub use crew::Tally;
pub use damage::Damage;
pub use file_system::LogFs;
pub use flatten::{Flattened, flatten};
pub use log_file::Choices;
pub use meta::{Cut, Holder};
pub use naming::is_own;
pub use rebalance::{Rebalanced, foretell, rebalance};
pub use report::{
    Brief, Fate, FileReport, Open, Resolved, Source, Stretch, WriterReport, Wrote, brief, of_file,
};
pub use scratch::Scratch;
pub use store_map::{Member, StoreMap};
pub use stores::{Host, Opener, Role, Root, Stores};
pub use transfer::{How, Moved, Offered, Snapshot, Wanted, export, import};
pub use tree::{Entry, Found, Listing, Odd, Oddity, StoredDir, find, is_store};
