//! daemon(3), login_tty(3) and forkpty(3), which replace the standard descriptors by calls inside
//! libc. If one of these descriptors is a virtual file, this library replaces the descriptors with
//! its own dup2(2), which stores the data of the file.

use libc::{c_char, c_int, pid_t, termios, winsize};

use crate::descriptors;
use crate::guard::is_inside;
use crate::next::wrap;

const STANDARD: std::ops::RangeInclusive<c_int> = libc::STDIN_FILENO..=libc::STDERR_FILENO;

fn is_standard_virtual() -> bool {
    !is_inside() && STANDARD.into_iter().any(descriptors::is_virtual)
}

/// Makes all standard descriptors copies of `fd`, and closes `fd` unless it is one of them. Returns
/// -1 with `errno` if that fails.
fn become_standard(fd: c_int) -> c_int {
    for number in STANDARD {
        // SAFETY: any numbers are valid. This calls the function of this library.
        if unsafe { libc::dup2(fd, number) } < 0 {
            return -1;
        }
    }
    if !STANDARD.contains(&fd) {
        // SAFETY: the caller does not use the descriptor afterwards.
        unsafe { libc::close(fd) };
    }
    0
}

wrap! {
    fn daemon(keeps_cwd: c_int, keeps_standard: c_int) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        unsafe {
            if keeps_standard != 0 || !is_standard_virtual() {
                return next(keeps_cwd, keeps_standard);
            }
            if next(keeps_cwd, 1) < 0 {
                return -1;
            }
            match libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) {
                -1 => -1,
                null => become_standard(null),
            }
        }
    }
}

wrap! {
    fn login_tty(fd: c_int) -> c_int, |next| {
        // SAFETY: any arguments are valid.
        unsafe {
            if !is_standard_virtual() {
                return next(fd);
            }
            libc::setsid(); // it fails for a process that leads its session already
            if libc::ioctl(fd, libc::TIOCSCTTY, 0) < 0 {
                return -1;
            }
        }
        become_standard(fd)
    }
}

wrap! {
    fn forkpty(
        primary: *mut c_int,
        name: *mut c_char,
        settings: *const termios,
        size: *const winsize,
    ) -> pid_t, |next| {
        // SAFETY: the caller's arguments are valid for forkpty(3). The pointers that openpty(3)
        // does not change are constant there, too.
        unsafe {
            if !is_standard_virtual() {
                return next(primary, name, settings, size);
            }
            let (mut first, mut second) = (-1, -1);
            if libc::openpty(&mut first, &mut second, name, settings, size) < 0 {
                return -1;
            }
            match libc::fork() {
                -1 => {
                    libc::close(first);
                    libc::close(second);
                    -1
                }
                0 => {
                    libc::close(first);
                    if login_tty(second) < 0 {
                        libc::_exit(1);
                    }
                    0
                }
                child => {
                    libc::close(second);
                    *primary = first;
                    child
                }
            }
        }
    }
}
