//! What went wrong, for who called: a negative number from the function, and words for the thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use quell_client::Error;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the words for `quell_last_error` and returns the number.
pub fn told(error: &Error) -> i64 {
    keep(error.to_string());
    -i64::from(error.errno())
}

/// Keeps what `quell_last_error` says on this thread.
pub fn keep(words: String) {
    let words = CString::new(words).unwrap_or_else(|_| c"an error whose words have a zero in them".into());
    // No thread is left that could ask while the thread ends.
    let _ = LAST.try_with(|last| last.replace(words));
}

/// What the last function that failed on this thread says about it: words for people, never NULL. They are there until
/// another function fails on this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn quell_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
