//! The boundary between the C libraries and their callers: checks of pointers, error numbers, the
//! message of the last error of each thread, and panics. It exports no symbols.

// The pointers of C programs require unsafe code; each function states its requirements on them.
#![allow(unsafe_code)]
#![warn(missing_docs)]

mod boundary;
mod errors;

pub use boundary::{
    check_output, guard, handle, invalid, number, path, return_handle, slice, slice_mut, status, take_handle,
    text, write_output,
};
pub use errors::{last_message, store, store_message};
