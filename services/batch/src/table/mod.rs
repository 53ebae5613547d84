//! Sorted tables: immutable files with the entries of a part of a name space, in the order of their
//! keys (docs/formats/batch.md, "Tables").

mod block;
mod block_file;
mod cache;
mod filter;
mod footer;
mod lookups;
mod reader;
mod writer;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use block::entries_of_block;
pub(crate) use block::{BLOCK_BYTES_MAX, BlockBuilder, KEY_BYTES_MAX};
pub(crate) use block_file::BlockFile;
pub use block_file::TableSummary;
pub use cache::BlockCache;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use footer::reseal;
pub(crate) use lookups::TableLookups;
pub(crate) use reader::BlockDecoder;
pub use reader::{Table, TableEntries};
pub use writer::TableWriter;
