//! The name space of a store for batches of file operations (BatchFS).
//!
//! [`Names`] has the rules of a name space. [`Entries`] is the interface to the place where its
//! entries are stored. [`NameSpace`] is the interface for frontends.
//! docs/decisions/0038-batches.md has the design.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod change;
mod entries;
mod entry;
mod key;
mod memory;
mod name_space;
mod names;

pub use change::{DataChange, FileSize, InodeChange, XattrChange};
pub use entries::{Entries, KeyChange};
pub use entry::{Content, DataFile, Entry, INLINE_BYTES_MAX, Inode, ROOT, Timestamp, Xattr};
pub use key::{Key, split};
pub use memory::MemoryEntries;
pub use name_space::NameSpace;
pub use names::{Found, Names, NewNode, Place, Removed, Renamed};
