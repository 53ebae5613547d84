//! Sorted tables: immutable files with the entries of a part of a name space, in the order of their
//! keys (docs/formats/batch.md, "Tables").

mod block;
mod cache;
mod filter;
mod footer;
mod lookups;
mod reader;
mod writer;

pub use cache::BlockCache;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use footer::reseal;
pub(crate) use lookups::TableLookups;
pub use reader::{Table, TableEntries};
pub use writer::{TableSummary, TableWriter};
