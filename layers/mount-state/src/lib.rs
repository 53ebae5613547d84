//! State that several layers over a store keep for a mount, in memory only.
//!
//! [`Cursors`] are the positions in listings, for a store that lists a directory by its names.
//! [`Extents`] are the bytes that were written to a file and are not yet stored.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cursors;
mod extents;

pub use cursors::Cursors;
pub use extents::Extents;
