//! The runtime directory of a user on one node, and the pools that are registered in it. Commands
//! find pools here; daemons register and remove them. docs/formats/pool.md describes the directory.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod directory;
mod refusal;
mod registry;

pub use directory::{is_private, make_private, named_directory, runtime_directory};
pub use refusal::Refusal;
pub use registry::{Described, NAME_BYTES_MAX, Pool, Registration, Registry, Socket, check_pool_name};
