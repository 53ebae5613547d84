//! Files and metadata under one directory of a file system that exists already. Names are taken one
//! component at a time from open directories, so that no path is ever too long, and no symbolic link
//! is ever followed: nothing outside the directory can be reached.
//!
//! What only reads a tree holds a [`Dir`], which has no method that writes and leads to nothing that has. A store of
//! our own is a [`WritableDir`]: `Arc::new(PosixDir::open(path)?)` is either. A directory in which other users may change
//! names is opened with `PosixDir::open_shared`: see there what root does and refuses in it.

mod credentials;
mod dir;
mod posix;

pub use credentials::{Acting, assume, assumed, has_root_power};
pub use dir::{Dir, OpenFile, Stat, WritableDir, WritableFile};
pub use posix::PosixDir;
