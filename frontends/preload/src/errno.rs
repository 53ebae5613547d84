//! Error numbers, as the functions of libc return them.

use libc::c_int;

/// An error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// The result of an operation on a virtual file.
pub type Outcome<T> = Result<T, Errno>;

impl From<quell_vfs::Error> for Errno {
    fn from(error: quell_vfs::Error) -> Errno {
        Errno(error.errno())
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno(error.raw_os_error())
    }
}

/// Returns the `errno` of this thread.
pub fn get() -> c_int {
    // SAFETY: libc returns a valid pointer to the variable of the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the `errno` of this thread.
pub fn set(number: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number }
}

/// Returns the value for C: the result, or -1 with `errno` set.
pub fn reply<T: From<i8>>(outcome: Outcome<T>) -> T {
    outcome.unwrap_or_else(|error| {
        set(error.0);
        T::from(-1)
    })
}

/// Returns the pointer for C: the result, or NULL with `errno` set.
pub fn reply_pointer<T>(outcome: Outcome<*mut T>) -> *mut T {
    outcome.unwrap_or_else(|error| {
        set(error.0);
        std::ptr::null_mut()
    })
}
