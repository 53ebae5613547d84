//! A writable directory in memory that can simulate failures: no space, a read-only or
//! unavailable store, failing operations, a clock that is set back, killed processes and power
//! failures.
//!
//! It gives the same results as a local file system of Linux. Permissions are stored but not
//! enforced; there are no extended attributes and no hard links.
//!
//! # Power failures
//!
//! [`MemoryStore::crash`] creates a store in a state that a power failure could leave. The
//! simulation is strict but realistic: everything that a program must not rely on can happen, and
//! nothing that no file system does.
//!
//! - **Data and size of a file** are as of its last `sync`. Each later write independently may be
//!   present, lost, present up to some byte or from some byte on, present in some of its blocks, or
//!   have made the file longer without its data (zeros instead). Thus later writes may be present
//!   without earlier ones. A new size may be present or not.
//! - **Names** are as of the last `sync` of their directory. Each later change independently may
//!   have happened or not, but the changes of one name happen in order. A rename is atomic: it has
//!   happened to both names or to neither, and is durable when the directory of the new name is
//!   synced. A removed directory was emptied before; a directory that was moved to another one was
//!   moved after all earlier changes: no file system loses the content of a directory through the
//!   order of its journal.
//! - **A sync of a file does not make its name durable**, unless
//!   [`CrashRules::file_sync_keeps_name`] is set, as with ext4 and XFS.
//! - **Mode, owner and time** are old or new if they were changed after the last sync of the
//!   directory that contains the file. The sync of the file itself does not include them
//!   (`fdatasync`).
//! - **A failed sync** may have lost the data that it was to write, even if the next sync succeeds,
//!   as on Linux.
//! - Old changes are written back without a sync: at most about 64 MiB of a file and 10,000 changes
//!   of names are unsynced at any time. Tests with fewer changes are not affected.
//!
//! [`MemoryStore::kill`] creates the state after all processes were killed: all written data is
//! present, and no file is open. Both return another store; the original and its open files remain
//! usable.

mod crash;
mod handles;
mod inode;
mod journal;
mod state;
mod store;
mod unsynced;

pub use crash::Writeback;
pub use state::{CrashRules, Refusal};
pub use store::MemoryStore;
