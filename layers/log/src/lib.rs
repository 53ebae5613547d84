//! The log layer (PLFS): a file that many processes write at once is a container of append-only logs, one pair for
//! each of them, so that what the file system below sees is every process writing a file of its own. Where the
//! bytes of the file are is resolved by who reads.
//!
//! The formats are drawn in docs/formats/log.md.

mod bytes;
mod container;
mod damage;
mod data_log;
mod descriptors;
mod extents;
mod file_system;
mod flatten;
mod frames;
mod heads;
mod index_log;
mod log_file;
mod meta;
mod naming;
mod nodes;
mod placement;
mod runs;
mod stores;
mod view;
mod writer;

pub use damage::Damage;
pub use file_system::LogFs;
pub use log_file::Choices;
pub use meta::Holder;
pub use stores::{Host, Stores};
