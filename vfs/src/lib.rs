//! The contract: the file-system interface that layers implement and frontends call. It consists of
//! types and traits only: no input or output, no threads, no clock, no unsafe code.
//!
//! A frontend resolves names to nodes, opens a node once, and from then on passes only buffers and
//! offsets:
//!
//! ```
//! use quell_vfs::{Context, FileSystem, Result};
//!
//! fn first_bytes(fs: &dyn FileSystem, name: &[u8]) -> Result<Option<Vec<u8>>> {
//!     let context = Context::OWN; // this process's permissions, no deadline
//!     let Some(found) = fs.lookup(&context, fs.root(), name)? else {
//!         return Ok(None); // a negative answer is an answer, not an error
//!     };
//!     let file = fs.open(&context, found.node())?;
//!     let mut buffer = vec![0; 16];
//!     let n = file.read_at(&mut buffer, 0)?;
//!     buffer.truncate(n);
//!     Ok(Some(buffer))
//! }
//! ```
//!
//! docs/decisions/0001-nodes-in-the-contract.md explains why the contract uses nodes instead of
//! paths.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod arguments;
mod attributes;
mod capability;
mod context;
mod error;
mod file;
mod file_state;
mod file_system;
mod lock;
mod name;
mod printable;
mod xattr;

pub use arguments::{Change, NewEntry, OpenMode, Rename, SetXattr, Space};
pub use attributes::{Attributes, FileIdentity, Kind, NodeId, Time};
pub use capability::Capabilities;
pub use context::{Caller, Context};
pub use error::{Error, ErrorKind, Result, errno};
pub use file::{File, ReadAt, WritableFile};
pub use file_state::{FileState, same_status_change};
pub use file_system::{
    Cursor, DirEntry, FileSystem, NodeRef, ParentAndName, Writable, resolve, resolve_parent,
};
pub use lock::{FileLocks, HeldLock, LockMode, LockOwner, LockScope, TO_END};
pub use name::{NAME_BYTES_MAX, check_name};
pub use printable::{is_unprintable, printable};
pub use xattr::{USER_XATTRS, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, check_user_xattr};
