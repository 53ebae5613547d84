//! The FUSE door: answers the kernel's questions about one mount from a [`quell_fs::FileSystem`], and where that has
//! the verbs ([`quell_fs::FileSystem::writable`]) passes on what changes it; otherwise the mount is read-only. It
//! translates and counts; it never decides about data, follows a path or retries.
//!
//! ```no_run
//! use std::{path::Path, sync::Arc};
//!
//! fn serve(fs: Arc<dyn quell_fs::FileSystem>) -> quell_fs::Result<()> {
//!     let session = quell_fuse::at(fs, Path::new("/mnt/view"), &quell_fuse::Options::default())?;
//!     session.join()?; // until somebody unmounts it
//!     for (name, value) in session.counters().snapshot().pairs() {
//!         println!("{name} {value}");
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # What the kernel keeps
//! Of a file system that says it is `immutable`, the kernel keeps every answer for as long as it
//! has memory: entries, negative entries, attributes, link targets, whole listings and file data.
//! Of any other, it keeps nothing and asks every time.
//!
//! # A tree that may be changed
//! Programs see each other's writes on a node at once, and those of other nodes after a close there and an open here
//! (how soon that is, the file system says). So the kernel keeps no bytes: every read and write of a program arrives as
//! it was asked for, cut into pieces of 1 MiB at most, and a close asks for [`publish`](quell_fs::WritableFile::publish)
//! and returns what came of it. It keeps no entries and attributes either, which costs a request for each name on the
//! way of an open or a stat and nothing for a read or a write: beside those it asks for nothing.
//! `cargo bench -p quell-fuse --bench writing` measures this door before a file system that does nothing (MiB/s, two cores
//! of a virtual machine, Linux 6.18):
//!
//! | | write 47,008 bytes | write 1 MiB | read 47,008 bytes | read 1 MiB | read 4 KiB |
//! |---|---|---|---|---|---|
//! | as it is: no bytes kept (`FOPEN_DIRECT_IO`) | 2,050 | 6,700 | 2,030 | 6,200 | 220 |
//! | bytes kept until the next open, attributes asked for at each read (`FUSE_AUTO_INVAL_DATA`) | 870 | 2,300 | 1,150 | 2,400 | 200 |
//! | bytes kept until the next open | 820 | 2,300 | 3,800 | 3,800 | 2,600 |
//!
//! The last row is faster for a program that reads a few bytes at a time, and wrong for two that share a file: records
//! of different writers meet in one page, and a page that one of them reads while the other writes may be kept as it was before.
//!
//! - Files can be mapped, private and shared; shared ones from Linux 6.6 on (`FUSE_DIRECT_IO_ALLOW_MMAP`), earlier ones
//!   answer ENODEV. A mapping shows what was written before it was made, and afterwards what this node writes. Its own writes
//!   are given to the file system by msync(2), munmap(2) or the last close, whose error nobody is left to hear.
//! - Writes within a file go on side by side; one that makes it longer has the file for itself, by the kernel's rule.
//! - Appending goes to the end that the file system knows, whatever the kernel believes; more than 1 MiB at once
//!   arrives in pieces, between which another node may append.
//! - The kernel takes the caller's mask away, decides who may do what, and keeps locks (flock(2), fcntl(2)), which
//!   hold on this node alone. Extended attributes cannot be set, nor second names made.
//! - A file that another node makes between the kernel's look and our making it is answered with ESTALE, for which the
//!   kernel looks once more, and then asks who may open it.
//! - Setting the access time alone changes nothing. fallocate(2) makes a file longer, and keeps no room free.
//!
//! # When something breaks
//! The process dies: the kernel answers what was under way with `ECONNABORTED` and everything later
//! with `ENOTCONN`. A worker panics: the session is over; requests that still reach a worker are
//! answered `EIO` (each ends that worker), then it is `ENOTCONN` for ever, and [`Session::join`]
//! returns the reason. What the kernel keeps can still be read in both cases.

mod callers;
mod counters;
mod door;
mod fusermount;
mod handles;
mod mount;
mod nodes;
mod options;
mod serve;
mod session;
mod words;

pub use counters::{Counters, Snapshot};
pub use mount::{at, detached};
pub use options::Options;
pub use session::Session;
