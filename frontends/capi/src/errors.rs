//! The message of the last error of a thread.

use std::ffi::c_char;

/// Returns the message of the last error in this thread; never NULL. It is valid until the next
/// error in this thread, or until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn quell_last_error() -> *const c_char {
    quell_boundary::last_message()
}
