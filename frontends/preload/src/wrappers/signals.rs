//! Signal masks and actions. SIGSYS stays unblocked in threads whose system calls are dispatched: a
//! dispatched call ends the process if SIGSYS is blocked. The handler of `dispatch` stays installed
//! for SIGSYS; sigaction(2) returns the action that the program has set.

use std::mem::MaybeUninit;

use libc::{c_int, c_ulong, c_void, epoll_event, nfds_t, pollfd, sighandler_t, sigset_t, timespec};

use crate::dispatch;
use crate::errno::{self, Errno};
use crate::next::wrap;
use crate::refusals::refused;
use crate::selector;

/// An argument of prctl(2). The libc crate does not define it for all targets.
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;

/// A mask as the program passed it, or a copy without SIGSYS.
struct Mask {
    given: *const sigset_t,
    changed: Option<sigset_t>,
}

impl Mask {
    /// # Safety
    ///
    /// `given` is NULL or points to a set.
    unsafe fn new(given: *const sigset_t, is_changed: bool) -> Mask {
        // SAFETY: the caller's promise.
        let changed = unsafe {
            let has_signal = is_changed && !given.is_null() && libc::sigismember(given, libc::SIGSYS) == 1;
            has_signal.then(|| {
                let mut copy = given.read();
                libc::sigdelset(&mut copy, libc::SIGSYS);
                copy
            })
        };
        Mask { given, changed }
    }

    fn as_ptr(&self) -> *const sigset_t {
        self.changed.as_ref().map_or(self.given, std::ptr::from_ref)
    }
}

macro_rules! masks {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int, |next| {
                // SAFETY: the caller's arguments are valid for sigprocmask(2).
                unsafe {
                    let set = Mask::new(set, selector::is_on() && how != libc::SIG_UNBLOCK);
                    next(how, set.as_ptr(), old)
                }
            }
        }
    )*};
}

masks!(sigprocmask, pthread_sigmask);

wrap! {
    fn sigsuspend(set: *const sigset_t) -> c_int, |next| {
        // SAFETY: the caller's argument is valid for sigsuspend(2).
        unsafe { next(Mask::new(set, selector::is_on()).as_ptr()) }
    }
}

wrap! {
    fn ppoll(polled: *mut pollfd, count: nfds_t, timeout: *const timespec, set: *const sigset_t) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for ppoll(2).
        unsafe { next(polled, count, timeout, Mask::new(set, selector::is_on()).as_ptr()) }
    }
}

wrap! {
    fn pselect(
        count: c_int,
        readable: *mut c_void,
        writable: *mut c_void,
        exceptional: *mut c_void,
        timeout: *const timespec,
        set: *const sigset_t,
    ) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for pselect(2).
        unsafe { next(count, readable, writable, exceptional, timeout, Mask::new(set, selector::is_on()).as_ptr()) }
    }
}

wrap! {
    fn epoll_pwait(
        fd: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout_ms: c_int,
        set: *const sigset_t,
    ) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for epoll_pwait(2).
        unsafe { next(fd, events, count, timeout_ms, Mask::new(set, selector::is_on()).as_ptr()) }
    }
}

wrap! {
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for sigaction(2).
        unsafe {
            if signal == libc::SIGSYS && dispatch::is_installed() {
                let previous = dispatch::change_disposition((!new.is_null()).then(|| new.read()));
                if !old.is_null() {
                    old.write(previous);
                }
                return 0;
            }
            if new.is_null() || !dispatch::is_requested() {
                return next(signal, new, old);
            }
            let mut changed = new.read();
            libc::sigdelset(&mut changed.sa_mask, libc::SIGSYS);
            next(signal, &changed, old)
        }
    }
}

/// signal(3) for SIGSYS.
fn set_handler(handler: sighandler_t) -> sighandler_t {
    // SAFETY: zero bytes are a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    dispatch::change_disposition(Some(action)).sa_sigaction
}

macro_rules! handlers {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t, |next| {
                if signal == libc::SIGSYS && dispatch::is_installed() {
                    return set_handler(handler);
                }
                // SAFETY: the caller's arguments are valid for signal(2).
                unsafe { next(signal, handler) }
            }
        }
    )*};
}

handlers!(signal, bsd_signal, ssignal, sysv_signal, __sysv_signal);

wrap! {
    fn prctl(operation: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int, |next| {
        if operation == libc::PR_SET_SECCOMP {
            dispatch::note_filter();
        }
        if operation == PR_SET_SYSCALL_USER_DISPATCH {
            if dispatch::is_requested() {
                return errno::reply(Err(refused("prctl", None, Errno(libc::EINVAL))));
            }
            dispatch::note_filter();
        }
        // SAFETY: the caller's arguments are valid for prctl(2).
        unsafe { next(operation, a, b, c, d) }
    }
}
