//! Errors for the caller: a negative number from the function, and a message per thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use quell_client::Error;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Stores the message for `quell_last_error` and returns the negative error number.
pub fn told(error: &Error) -> i64 {
    keep(error.to_string());
    -i64::from(error.errno())
}

/// Stores the message that `quell_last_error` returns in this thread.
pub fn keep(words: String) {
    let words = CString::new(words).unwrap_or_else(|_| c"an error whose words have a zero in them".into());
    // While the thread is being destroyed, no caller can read the message.
    let _ = LAST.try_with(|last| last.replace(words));
}

/// Returns the message of the last error in this thread; never NULL. It is valid until the next
/// error in this thread, or until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn quell_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
