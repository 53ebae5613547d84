//! The C library: opaque handles, error numbers, and an error message per thread. It translates
//! calls to `quell-client`, which documents their meaning, as does the header, which is generated
//! from this crate.

// The pointers of C programs require unsafe code; each function states its requirements on them.
#![allow(unsafe_code)]
#![warn(missing_docs)]

mod batches;
mod directories;
mod errors;
mod files;
mod locking;
mod shares;
mod stores;
mod virtual_paths;
