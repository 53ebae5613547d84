//! The functions that wait for child processes. Data that a child wrote to an open file of this
//! process is visible here when the child has ended, as with a file that both have open in the
//! kernel.

use libc::{c_int, id_t, idtype_t, pid_t, rusage, siginfo_t};

use crate::ended_children;
use crate::next::wrap;

/// Records that a child has ended, or changed its state.
fn waited(result: pid_t) -> pid_t {
    if result > 0 {
        ended_children::add();
    }
    result
}

wrap! {
    fn wait(status: *mut c_int) -> pid_t, |next| {
        // SAFETY: the caller's argument is valid for wait(2).
        waited(unsafe { next(status) })
    }
}

wrap! {
    fn waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t, |next| {
        // SAFETY: the caller's arguments are valid for waitpid(2).
        waited(unsafe { next(pid, status, options) })
    }
}

wrap! {
    fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t, |next| {
        // SAFETY: the caller's arguments are valid for wait3(2).
        waited(unsafe { next(status, options, usage) })
    }
}

wrap! {
    fn wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t, |next| {
        // SAFETY: the caller's arguments are valid for wait4(2).
        waited(unsafe { next(pid, status, options, usage) })
    }
}

wrap! {
    fn waitid(kind: idtype_t, id: id_t, information: *mut siginfo_t, options: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for waitid(2).
        let result = unsafe { next(kind, id, information, options) };
        if result == 0 {
            ended_children::add();
        }
        result
    }
}
