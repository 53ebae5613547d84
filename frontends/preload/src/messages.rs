//! Messages of the library to the user.

use libc::c_int;

use crate::placeholder;

/// The exit code of a program whose view is invalid.
const WRONG_USAGE: c_int = 2;

/// The exit code of a program that cannot be served in this environment.
const CANNOT: c_int = 3;

/// Ends a program whose view is invalid: without the view it would use other files.
pub fn refuse_start(error: &quell_vfs::Error) -> ! {
    warn(&error.to_string());
    // SAFETY: the process has done nothing yet that would need the functions of exit(3).
    unsafe { crate::next::system_call()(libc::SYS_exit_group, WRONG_USAGE) };
    unreachable!("exit_group does not return")
}

/// Ends a program whose view requests dispatch, if system calls cannot be dispatched.
pub fn refuse_dispatch() -> ! {
    warn(
        "system calls cannot be dispatched in this process: this needs Linux 5.11 or newer on x86-64, glibc 2.34 or \
         newer, and a sandbox that allows prctl(2); use --via preload, or `quell run` without --via",
    );
    // SAFETY: as above.
    unsafe { crate::next::system_call()(libc::SYS_exit_group, CANNOT) };
    unreachable!("exit_group does not return")
}

/// Prints a message to standard error.
pub fn warn(message: &str) {
    let line = format!("quell: {message}\n");
    // A failure of standard error cannot be reported.
    let _ = rustix::io::write(placeholder::borrow(libc::STDERR_FILENO), line.as_bytes());
}
