//! The client library: access to the files of a file system of the contract by path, in the
//! program's own process, without a mount and without a daemon. [`Client`] takes any such file
//! system; [`Store`] is the client of log stores, and [`Batch`] that of a batch.
//!
//! ```
//! use quell_client::{Choices, Create, OpenOptions, Store};
//!
//! # fn main() -> quell_client::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let directory = directory.path();
//! let store = Store::open(&[directory], Choices::default())?;
//! store.make_dir(b"run", 0o777)?;
//! let options = OpenOptions { create: Create::IfMissing, ..OpenOptions::READ_WRITE };
//! let file = store.open_file(b"run/checkpoint", options)?;
//! file.write_at(b"world", 6)?;
//! file.write_at(b"hello", 0)?;
//! file.publish()?; // visible to every later open
//! let mut bytes = [0; 11];
//! assert_eq!(file.read_at(&mut bytes, 0)?, 11);
//! assert_eq!(&bytes, b"hello\0world");
//! file.close()
//! # }
//! ```
//!
//! Every handle may be used from any number of threads. It belongs to the process that opened it:
//! after a `fork`, all operations of the child on it fail with `EBADF`, and the child opens a store
//! of its own. Closing a handle in the child writes nothing, so data that the parent has not
//! published stays with the parent.
//!
//! Written data becomes visible to other processes as on a mount: when they open the file, or call
//! [`ClientFile::sync`], after the writer has closed, published or synced it.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod client;
mod file;
mod log_store;
mod open_options;
mod owned;
mod virtual_paths;

pub use batch::{Batch, BatchOptions};
pub use client::{Client, Entry};
pub use file::ClientFile;
pub use log_store::Store;
pub use open_options::{Create, OpenOptions};
pub use quell_batch::{BatchSummary, SummaryState};
pub use quell_log::{Choices, Flattened};
pub use quell_vfs::{
    Attributes, Error, ErrorKind, FileLocks, HeldLock, Kind, LockMode, LockOwner, LockScope, Result, TO_END,
    Time,
};
pub use virtual_paths::VirtualPath;
