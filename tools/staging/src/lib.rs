//! Copies trees into pools and out of them. A file gets its name at the destination only after its
//! content was read back and its BLAKE3 checksum was compared with the checksum of the data read
//! from the source. docs/guides/pool-staging.md describes the copies and the treatment of existing
//! files.
//!
//! Both sides are directories of `quell-posix`; [`TreeDir`] makes one of a file system of the
//! contract. The crate opens no path, prints nothing, and keeps no list of the files of a tree: a
//! failure is passed to the caller at once.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod context;
mod copy;
mod digest;
mod directories;
mod file;
mod links;
mod options;
mod progress;
mod queue;
mod tree_dir;
mod walk;
mod xattrs;

pub use context::TEMPORARY_PREFIX;
pub use copy::copy;
pub use directories::DEPTH_MAX;
pub use options::{CopiedFile, Options, Owners, Part, Report, Source};
pub use progress::Progress;
pub use tree_dir::TreeDir;
