//! The door for programs that link us: the files of log stores by path, in the program's own process, without a
//! mount and without a daemon.
//!
//! ```
//! use quell_client::{Choices, Create, How, Store};
//!
//! # fn main() -> quell_client::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let directory = directory.path();
//! let store = Store::open(&[directory], Choices::default())?;
//! store.make_dir(b"run", 0o777)?;
//! let file = store.open_file(b"run/checkpoint", How { create: Create::IfMissing, ..How::READ_WRITE })?;
//! file.write_at(b"world", 6)?;
//! file.write_at(b"hello", 0)?;
//! file.publish()?; // who opens the file from now on sees it
//! let mut bytes = [0; 11];
//! assert_eq!(file.read_at(&mut bytes, 0)?, 11);
//! assert_eq!(&bytes, b"hello\0world");
//! file.close()
//! # }
//! ```
//!
//! Every handle may be used from any number of threads. It belongs to the process that opened it: after a `fork` the
//! child is refused (`EBADF`) whatever it asks of one, and opens a store of its own. Whoever closes one there writes
//! nothing, so what the parent has written and not yet published is the parent's alone.
//!
//! When what is written is seen by others is as on a mount: whoever opens the file, or calls [`StoreFile::sync`], after
//! the writer has closed, published or synced it.

mod file;
mod owned;
mod store;
mod walk;

pub use file::StoreFile;
pub use quell_fs::{Attributes, Error, ErrorKind, Kind, Result, Time};
pub use quell_log::{Choices, Flattened};
pub use store::{Create, Entry, How, Store};
