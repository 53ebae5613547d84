//! Switches the dispatch of system calls on and off in a thread.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_ulong, sigset_t};

use super::{disposition, text};
use crate::guard::is_inside;
use crate::next::{next, system_call};
use crate::selector;

/// Arguments of prctl(2). The libc crate does not define these for all targets.
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const PR_SYS_DISPATCH_OFF: c_ulong = 0;
const PR_SYS_DISPATCH_ON: c_ulong = 1;

thread_local! {
    /// The number of calls of dlopen(3) that have not returned, if the outermost one switched
    /// dispatch on.
    static WINDOWS: Cell<u32> = const { Cell::new(0) };
}

/// Whether the view requests dispatch in all threads.
static IS_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether the program has installed a filter of seccomp(2) or uses dispatch itself. No window is
/// opened then.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);

/// Requests dispatch in all threads.
pub fn request() {
    IS_REQUESTED.store(true, Ordering::Relaxed);
}

/// Returns whether the view requests dispatch in all threads.
pub fn is_requested() -> bool {
    IS_REQUESTED.load(Ordering::Relaxed)
}

/// Records that a filter of seccomp(2) may refuse the calls that a window needs.
pub fn note_filter() {
    IS_FILTERED.store(true, Ordering::Relaxed);
}

fn switch(mode: c_ulong, start: usize, length: usize) -> bool {
    let selector = selector::address();
    // SAFETY: the selector exists as long as the thread executes instructions outside of libc.
    unsafe {
        system_call()(
            libc::SYS_prctl,
            PR_SET_SYSCALL_USER_DISPATCH,
            mode,
            start,
            length,
            if mode == PR_SYS_DISPATCH_ON { selector } else { std::ptr::null_mut() },
        ) == 0
    }
}

/// Switches dispatch on in this thread. The caller must have unblocked SIGSYS.
fn switch_on() -> bool {
    let Some(libc_text) = text::of_libc().filter(|_| disposition::install()) else { return false };
    if !switch(PR_SYS_DISPATCH_ON, libc_text.start, libc_text.len()) {
        return false;
    }
    selector::set_on(true);
    if !is_inside() {
        selector::resume();
    }
    true
}

fn switch_off() {
    selector::set_on(false);
    switch(PR_SYS_DISPATCH_OFF, 0, 0);
}

/// Switches dispatch on in this thread until the thread ends, if the view requests it. Returns
/// false if the view requests it and this is impossible.
pub fn switch_on_requested() -> bool {
    if !is_requested() {
        return true;
    }
    // The mask is inherited at an exec and by new threads, and may contain SIGSYS.
    let mut unblocked = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the set before it is read; NULL is allowed.
    unsafe {
        libc::sigemptyset(unblocked.as_mut_ptr());
        libc::sigaddset(unblocked.as_mut_ptr(), libc::SIGSYS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, unblocked.as_ptr(), std::ptr::null_mut());
    }
    switch_on()
}

/// Switches dispatch on in a forked child if it was on in the thread that called fork(2).
pub fn switch_on_again() {
    if selector::is_on() && !switch_on() {
        selector::set_on(false);
    }
}

fn is_blocked() -> bool {
    next!(SIGMASK, c"pthread_sigmask");
    // SAFETY: calling the pointer requires the arguments of pthread_sigmask(3).
    type Sigmask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;
    let sigmask: Sigmask = SIGMASK.function();
    let mut mask = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: pthread_sigmask initializes the set if it succeeds; NULL is allowed.
    unsafe {
        sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr()) != 0
            || libc::sigismember(mask.as_ptr(), libc::SIGSYS) != 0
    }
}

/// Opens a window: switches dispatch on for a call of dlopen(3). Returns false if that is
/// impossible; `close_window` must then not be called.
pub fn open_window() -> bool {
    if WINDOWS.get() == 0 {
        let is_impossible = is_requested()
            || IS_FILTERED.load(Ordering::Relaxed)
            || text::of_libc().is_none()
            || is_blocked();
        if is_impossible || !switch_on() {
            return false;
        }
    }
    WINDOWS.set(WINDOWS.get() + 1);
    true
}

/// Closes a window.
pub fn close_window() {
    WINDOWS.set(WINDOWS.get() - 1);
    if WINDOWS.get() == 0 {
        switch_off();
    }
}
