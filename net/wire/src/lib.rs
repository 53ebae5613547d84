//! The messages between clients and servers, and their encoding: no input or output, no threads, no
//! clock. docs/formats/pool.md describes the messages of pools; the modules name the documents of
//! the others.
//!
//! A decoder reads only the given bytes, allocates at most 1 MiB more than their length, and
//! refuses bytes after the end of a message.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod blob;
mod bounded;
mod encoding;
mod failure;
mod histogram;
pub mod job;
pub mod pool;

pub use encoding::{decode, decode_first, encode, encode_into};
pub use failure::Failure;
pub use histogram::{BUCKETS, Histogram};
