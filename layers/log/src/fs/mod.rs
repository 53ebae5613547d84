//! The file system of the contract: names, nodes and handles.
//!
//! `file_system` implements the contract in short methods. Each operation is a module of functions
//! that get the state of the mount (`mount`) as an argument. A module uses only the modules that
//! are listed before it: `new_dirs`, `nodes`, `store_dirs` (changes of a directory in every store),
//! `flatten_queue`, `open_files`, `open_dirs`, `name_changes`, `missing_names`, `mount`, `handle`,
//! `search` (finds names in the stores), `files` (opens the files of nodes), `attributes`,
//! `lookup`, `listing`, `remove`, `create`, `rename`. `tree` reads the stores without a mount.

mod attributes;
mod create;
mod file_system;
mod files;
mod flatten_queue;
mod handle;
mod listing;
#[cfg(test)]
mod locks_test;
mod lookup;
mod missing_names;
mod mount;
mod name_changes;
mod new_dirs;
mod nodes;
#[cfg(test)]
mod only_user_test;
mod open_dirs;
mod open_files;
#[cfg(test)]
mod ownership_test;
mod remove;
mod rename;
#[cfg(test)]
mod requests_test;
mod search;
#[cfg(test)]
mod served_users_test;
mod store_dirs;
mod tree;

pub use file_system::LogFs;
pub use tree::{Entry, Listing, NameProblem, NameProblemKind, ResolvedPath, StoredDir, find};
