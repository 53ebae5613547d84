//! Pool layer: the file system of a job, on the local storage of its nodes (GekkoFS, section 2 of
//! the BigStorage report). This crate is the client: it sends operations to the daemon of its
//! machine, and reads and writes the chunks on its machine itself.
//!
//! A write is visible in the whole pool when it returns. docs/semantics.md has the details.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod client;
mod connection;
mod daemon;
mod dir_cache;
mod file;
mod file_system;
mod nodes;
mod requests;

pub use connection::Daemons;
pub use daemon::{Daemon, LocalData, Unanswered, ask, done, space};
pub use file_system::PoolFs;
