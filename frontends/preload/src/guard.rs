//! The state in which code of the library serves a virtual file.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{c_int, sigset_t};

use crate::errno::{self, Errno, Outcome};
use crate::selector;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The signals that the program itself has blocked, while the thread is inside.
    static BLOCKED: Cell<Option<sigset_t>> = const { Cell::new(None) };
}

// SAFETY: the signature matches the function of libc.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Returns whether the calling thread is serving a virtual file. The wrappers then pass every call
/// on to the next definition.
pub fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Returns the signals that the program has blocked, if the thread is serving a virtual file.
pub fn blocked_by_program() -> Option<sigset_t> {
    BLOCKED.get().filter(|_| is_inside())
}

/// Runs `work` with signals blocked and cancellation disabled: a signal handler that uses a virtual
/// file would wait for a lock that its own thread holds. `errno` is unchanged afterwards. A panic
/// is returned as EIO.
pub fn inside<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let number = errno::get();
    let entered = Entered::new();
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno(libc::EIO)));
    drop(entered);
    errno::set(number);
    outcome
}

/// A section that serves virtual files, until the value is dropped.
pub struct Entered {
    signals: Option<(sigset_t, c_int)>,
}

impl Entered {
    /// Blocks signals and disables cancellation.
    pub fn new() -> Entered {
        let depth = DEPTH.get();
        if depth > 0 {
            DEPTH.set(depth + 1);
            return Entered { signals: None };
        }
        let (mut all, mut old) = (MaybeUninit::<sigset_t>::uninit(), MaybeUninit::<sigset_t>::uninit());
        let mut state = 0;
        // SAFETY: the pointers are to sets of this function; sigfillset initializes the first one
        // before it is read, and pthread_sigmask the second one, because its arguments are valid.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut state);
            // Set after signals are blocked: otherwise the wrappers would pass on the calls of a
            // signal handler as calls of the library itself.
            DEPTH.set(1);
            BLOCKED.set(Some(old.assume_init()));
            selector::pause();
            Entered { signals: Some((old.assume_init(), state)) }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if let Some((signals, state)) = self.signals.take() {
            selector::resume();
            // SAFETY: the set was initialized by pthread_sigmask; NULL and `old` are allowed.
            unsafe {
                let mut old = 0;
                pthread_setcancelstate(state, &mut old);
                libc::pthread_sigmask(libc::SIG_SETMASK, &signals, std::ptr::null_mut());
            }
        }
    }
}

/// Cancellation is disabled until the value is dropped.
#[cfg(target_arch = "x86_64")]
pub struct CancellationDisabled(c_int);

#[cfg(target_arch = "x86_64")]
impl CancellationDisabled {
    /// Disables cancellation.
    pub fn new() -> CancellationDisabled {
        let mut state = 0;
        // SAFETY: the pointer is valid.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut state) };
        CancellationDisabled(state)
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for CancellationDisabled {
    fn drop(&mut self) {
        let mut old = 0;
        // SAFETY: the pointer is valid, and the state is the state before `new`.
        unsafe { pthread_setcancelstate(self.0, &mut old) };
    }
}
