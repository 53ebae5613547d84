//! The FUSE server: answers the kernel's requests for one mount from a [`quell_vfs::FileSystem`].
//! If the file system is writable ([`quell_vfs::FileSystem::writable`]), the server passes changes
//! on to it; otherwise the mount is read-only. The server translates and counts; it never makes
//! decisions about data, follows a path or retries.
//!
//! ```no_run
//! use std::{path::Path, sync::Arc};
//!
//! fn serve(fs: Arc<dyn quell_vfs::FileSystem>) -> quell_vfs::Result<()> {
//!     let session = quell_fuse::mount_at(fs, Path::new("/mnt/view"), &quell_fuse::Options::default())?;
//!     session.join()?; // returns after the unmount
//!     for (name, value) in session.counters().snapshot().pairs() {
//!         println!("{name} {value}");
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Kernel caches
//!
//! For a file system that claims to be `immutable`, the kernel caches every answer for as long as
//! it has memory: entries, negative entries, attributes, link targets, whole listings and file
//! data. For any other file system it caches no entries, attributes, link targets and listings, and
//! file data only until the next open of the file. For a writable file system, [`KernelCache`]
//! determines the entries, attributes and data that the kernel caches. If only requests of this
//! mount change the tree ([`Options::exclusive`]), the kernel caches every answer until such a
//! request changes it, except the data of files that are open for writing.
//!
//! # Writable trees
//!
//! Programs on one node see each other's writes immediately. They see the writes of another node
//! after a program closes the file there and opens it on this node; the file system defines the
//! delay. By default the kernel therefore caches no data: each read and write of a program arrives
//! with its own offset and length, divided into pieces of at most 1 MiB. A close calls
//! [`publish`](quell_vfs::WritableFile::publish) and returns its result. The kernel caches no
//! entries and attributes either, unless the owner of the session sets a lifetime
//! ([`KernelCache::set_lifetime`]) or the mount is [exclusive](Options::exclusive). While no other
//! process can change the tree ([`KernelCache::set_lifetime_until`]), Linux 6.18 and later also
//! caches data of files that are opened only for reading, and reads ahead; writes are still passed
//! on at once. Without a lifetime, an open or a stat costs one request for each component of its
//! path; a read or a write causes no additional requests. `cargo bench -p quell-fuse --bench
//! writing` measures this server with a file system that does nothing (MiB/s, two cores of a
//! virtual machine, Linux 6.18):
//!
//! | | write 47,008 bytes | write 1 MiB | read 47,008 bytes | read 1 MiB | read 4 KiB |
//! |---|---|---|---|---|---|
//! | default: no data cached (`FOPEN_DIRECT_IO`) | 2,050 | 6,700 | 2,030 | 6,200 | 220 |
//! | data cached until the next open, attributes requested at each read (`FUSE_AUTO_INVAL_DATA`) | 870 | 2,300 | 1,150 | 2,400 | 200 |
//! | data cached until the next open | 820 | 2,300 | 3,800 | 3,800 | 2,600 |
//!
//! The last row is faster for a program that reads a few bytes at a time, but incorrect for two
//! programs that share a file: records of different writers can share a page, and a page that one
//! of them reads while the other writes may stay cached with its old content. With direct writes,
//! Linux 6.18 avoids this; `lifetimes.rs` has the conditions under which data is kept there.
//!
//! - Files can be mapped, private and shared. Shared mappings need Linux 6.6
//!   (`FUSE_DIRECT_IO_ALLOW_MMAP`); earlier kernels return ENODEV. A mapping shows the data written
//!   before it was created, and later writes of this node. Writes to the mapping reach the file
//!   system at msync(2), munmap(2) or the last close; errors of the last close are not reported to
//!   any program.
//! - Writes within a file run in parallel. A write that extends the file has exclusive access to
//!   it; this is a rule of the kernel.
//! - An append goes to the end of the file as known to the file system, not to the kernel. An
//!   append of more than 1 MiB arrives in pieces, between which another node may append.
//! - The kernel applies the caller's umask and checks access. A file system without extended
//!   attributes or hard links refuses them with EOPNOTSUPP and EPERM.
//! - [`LockKeeper`] states where locks (flock(2), fcntl(2)) are kept. In the file system, a request
//!   that waits takes a thread of its own, and ends within 100 ms after a signal.
//! - If another node creates a file between the kernel's lookup and the create request, the server
//!   answers ESTALE. The kernel then repeats the lookup and checks access to the file.
//! - A change of only the access time has no effect. fallocate(2) makes a file longer but reserves
//!   no space.
//!
//! # Failures
//!
//! If the process dies, the kernel answers requests in flight with `ECONNABORTED` and all later
//! ones with `ENOTCONN`. If a worker panics, the session is over: requests that still reach a
//! worker are answered with `EIO`, each of which ends that worker, and all later ones with
//! `ENOTCONN`; [`Session::join`] returns the reason. In both cases data cached by the kernel can
//! still be read.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod callers;
mod convert;
mod counters;
mod frontend;
mod fusermount;
mod handles;
mod in_flight;
mod lifetimes;
mod location;
mod lock_call;
mod locks;
mod mount;
mod nodes;
mod options;
mod serve;
mod session;
mod session_state;
mod signals;

pub use counters::{Counters, Snapshot};
pub use in_flight::{RequestInFlight, RequestsInFlight};
pub use lifetimes::KernelCache;
pub use mount::{mount_at, mount_detached};
pub use options::{LockKeeper, Options};
pub use session::Session;
