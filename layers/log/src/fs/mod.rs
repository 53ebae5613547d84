//! The file system of the contract: names, nodes and handles.

mod file_system;
mod flatten_queue;
mod handle;
mod nodes;
mod open_files;
#[cfg(test)]
mod others_test;
#[cfg(test)]
mod requests_test;
mod store_dirs;
mod tree;

pub use file_system::LogFs;
pub use tree::{Entry, Found, Listing, Odd, Oddity, StoredDir, find};
