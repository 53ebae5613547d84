//! Files and metadata below one directory of an existing file system. Names are resolved one
//! component at a time from open directories, so that no path is too long, and no symbolic link is
//! ever followed: nothing outside the directory can be reached.
//!
//! Code that only reads a tree holds a [`Dir`], which has no method that writes, and whose methods
//! return no object that has one. A store is a [`WritableDir`]: `Arc::new(PosixDir::open(path)?)`
//! is both. A directory in which other users may change names is opened with
//! `PosixDir::open_shared`, whose documentation states the operations that root performs and
//! refuses there.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod credentials;
mod dir;
mod lock_support;
mod posix;
mod private_dir;
mod scope_bytes;
mod span;

pub use credentials::{Acting, assume, assumed, has_root_power};
pub use dir::{Dir, LockedRange, OFFSET_MAX, OpenFile, RangeLocks, Stat, WritableDir, WritableFile};
pub use posix::{PosixDir, move_descriptors, moved};
pub use private_dir::open_private_dir;
pub use scope_bytes::ScopeBytes;
