//! Errors for the caller: a negative number from the function, and a message per thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use quell_vfs::Error;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Stores the message of an error as the last one of this thread, and returns the negative error
/// number.
pub fn store(error: &Error) -> i64 {
    store_message(error.to_string());
    -i64::from(error.errno())
}

/// Stores the message that `last_message` returns in this thread.
pub fn store_message(message: String) {
    let message =
        CString::new(message).unwrap_or_else(|_| c"an error message that contains a zero byte".into());
    // While the thread is being destroyed, no caller can read the message.
    let _ = LAST.try_with(|last| last.replace(message));
}

/// Returns the message of the last error in this thread; never NULL. It is valid until the next
/// error in this thread, or until the thread ends.
pub fn last_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
