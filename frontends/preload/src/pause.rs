//! Pauses of a thread that waits for a lock, which signals interrupt as they interrupt a system
//! call that waits.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, sigset_t};

/// The first pause, and the longest one.
const FIRST_MS: c_int = 1;
const LONGEST_MS: c_int = 50;

/// The end of a pause.
pub enum Waited {
    /// The time is over, or a signal whose handler restarts system calls was handled.
    Continue,
    /// A signal was handled whose handler interrupts system calls.
    Interrupted,
}

/// Pauses of growing length. Signals are blocked while the value exists, except at the end of a
/// pause, when pending signals are delivered: otherwise a signal that arrives between two pauses
/// would not be noticed.
pub struct Pauses {
    original: sigset_t,
    arrivals: Option<OwnedFd>,
    next_ms: c_int,
}

impl Pauses {
    /// Blocks signals.
    pub fn new() -> Pauses {
        let mut all = MaybeUninit::<sigset_t>::uninit();
        let mut original = MaybeUninit::<sigset_t>::uninit();
        // SAFETY: the pointers are to sets of this function; sigfillset initializes the first one
        // before it is read, and pthread_sigmask the second one, because its arguments are valid.
        let (original, arrivals) = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), original.as_mut_ptr());
            let original = original.assume_init();
            let mut awaited = all.assume_init();
            for signal in 1..=libc::SIGRTMAX() {
                if libc::sigismember(&original, signal) == 1 {
                    libc::sigdelset(&mut awaited, signal);
                }
            }
            (original, libc::signalfd(-1, &awaited, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
        };
        // SAFETY: the descriptor is new.
        let arrivals = (arrivals >= 0).then(|| unsafe { OwnedFd::from_raw_fd(arrivals) });
        Pauses { original, arrivals, next_ms: FIRST_MS }
    }

    /// Waits for a while, or until a signal arrives, and then handles the signal.
    pub fn pause(&mut self) -> Waited {
        let number = self.arrivals.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let mut waiting = libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one structure. A negative descriptor is ignored.
        let arrived = unsafe { libc::poll(&mut waiting, 1, self.next_ms) } > 0;
        self.next_ms = (self.next_ms * 2).min(LONGEST_MS);
        if !arrived {
            return Waited::Continue;
        }
        let interrupts = self.pending_interrupts();
        // SAFETY: the sets are valid; NULL is allowed.
        unsafe {
            let mut blocked = MaybeUninit::<sigset_t>::uninit();
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.original, blocked.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), std::ptr::null_mut());
        }
        if interrupts { Waited::Interrupted } else { Waited::Continue }
    }

    /// Returns whether a signal is pending whose handler interrupts system calls.
    fn pending_interrupts(&self) -> bool {
        is_pending(&self.original, is_interrupting)
    }
}

/// Returns whether a signal is pending that interrupts a system call or ends the process.
/// `blocked`: the signals that the program has blocked.
pub fn is_interrupted(blocked: &sigset_t) -> bool {
    const HARMLESS: [c_int; 7] = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGURG,
        libc::SIGWINCH,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    is_pending(blocked, |signal, action| {
        let ends = action.sa_sigaction == libc::SIG_DFL && !HARMLESS.contains(&signal);
        ends || is_interrupting(signal, action)
    })
}

fn is_pending(blocked: &sigset_t, is_wanted: impl Fn(c_int, &libc::sigaction) -> bool) -> bool {
    let mut pending = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: the pointer is valid.
    if unsafe { libc::sigpending(pending.as_mut_ptr()) } != 0 {
        return false;
    }
    (1..=libc::SIGRTMAX()).any(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: sigpending has initialized its set, and sigaction initializes its structure
        // if it succeeds.
        unsafe {
            libc::sigismember(pending.as_ptr(), signal) == 1
                && libc::sigismember(blocked, signal) == 0
                && libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
                && is_wanted(signal, &action.assume_init())
        }
    })
}

fn is_interrupting(_: c_int, action: &libc::sigaction) -> bool {
    let has_handler = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
    has_handler && action.sa_flags & libc::SA_RESTART == 0
}

impl Drop for Pauses {
    fn drop(&mut self) {
        self.arrivals = None;
        // SAFETY: the set is valid; NULL is allowed.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.original, std::ptr::null_mut()) };
    }
}
