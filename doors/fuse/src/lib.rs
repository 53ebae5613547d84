//! The FUSE door: answers the kernel's questions about one read-only mount from a
//! [`quell_fs::FileSystem`]. It translates and counts; it never decides about data, follows a path
//! or retries.
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
//! # When something breaks
//! The process dies: the kernel answers what was under way with `ECONNABORTED` and everything later
//! with `ENOTCONN`. A worker panics: the session is over; requests that still reach a worker are
//! answered `EIO` (each ends that worker), then it is `ENOTCONN` for ever, and [`Session::join`]
//! returns the reason. What the kernel keeps can still be read in both cases.

mod counters;
mod fusermount;
mod handles;
mod mount;
mod nodes;
mod options;
mod serve;
mod session;

pub use counters::{Counters, Snapshot};
pub use mount::{at, detached};
pub use options::Options;
pub use session::Session;
