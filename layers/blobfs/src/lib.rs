//! Blob files layer: the blobs of a store as files (TyrFS, part 3 of the BigStorage report).
//!
//! A file is the blob whose name is its path after a prefix, so programs that use the library
//! `quell-blob` and programs that use files work on the same data. Writes are buffered until the
//! file is closed or synced, and committed as one transaction. docs/semantics.md states the
//! guarantees.
//!
//! | module | content |
//! |---|---|
//! | `names` | the names of blobs that are files and directories: pure functions |
//! | `attributes` | the attributes of files and blobs, converted |
//! | `failure` | the errors of stores as those of the contract |
//! | `shared` | the parts of a mount that its open files use as well |
//! | `nodes` | the nodes that callers have references to or have open |
//! | `content` | the bytes of a file: the store and the buffered writes |
//! | `listing` | the entries of a directory |
//! | `changes` | transactions that create, remove and rename entries |
//! | `file` | an open file |
//! | `file_system` | the file system of the contract |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attributes;
mod changes;
mod content;
mod failure;
mod file;
mod file_system;
mod listing;
mod names;
mod nodes;
mod removed;
mod shared;

pub use attributes::Owner;
pub use file_system::BlobFs;
