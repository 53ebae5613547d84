//! The C library of blobs: opaque handles, error numbers, and the last error of each thread. It
//! translates calls to `quell-blob`, which documents their meaning, as does the header, which is
//! generated from this crate.

// The pointers of C programs require unsafe code; each function states its requirements on them.
#![allow(unsafe_code)]
#![warn(missing_docs)]

mod callbacks;
mod errors;
mod owner;
mod results;
mod snapshots;
mod stores;
mod submissions;
mod transactions;
mod transforms;
