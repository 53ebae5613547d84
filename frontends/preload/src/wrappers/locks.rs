//! Locks of virtual files: fcntl(2), flock(2) and lockf(3).

use std::sync::Arc;

use libc::{c_int, c_ulong, off_t};

use crate::descriptors::Description;
use crate::errno::{Errno, Outcome};
use crate::next::wrap;
use crate::wrappers::with_descriptor;

/// The other commands of fcntl(2), those of locks among them.
pub fn control(_: &Arc<Description>, command: c_int, _: c_ulong) -> Outcome<c_int> {
    match command {
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => Err(Errno(libc::ENOLCK)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

wrap! {
    fn flock(fd: c_int, operation: c_int) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        with_descriptor(fd, || unsafe { next(fd, operation) }, |_| Err(Errno(libc::ENOLCK)))
    }
}

wrap! {
    fn lockf(fd: c_int, command: c_int, length: off_t) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        with_descriptor(fd, || unsafe { next(fd, command, length) }, |_| Err(Errno(libc::ENOLCK)))
    }
}

wrap! {
    fn lockf64(fd: c_int, command: c_int, length: off_t) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        with_descriptor(fd, || unsafe { next(fd, command, length) }, |_| Err(Errno(libc::ENOLCK)))
    }
}
