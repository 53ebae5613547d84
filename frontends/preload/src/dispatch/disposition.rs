//! The program's own action for SIGSYS. The kernel has this library's handler instead.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use libc::{c_int, c_void, sigaction as Action, siginfo_t};
use quell_threads::lock;

use crate::guard::Entered;
use crate::next::next;

/// The action that the program has set; `None` until the handler of this library is installed.
static CHOSEN: Mutex<Option<Action>> = Mutex::new(None);

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

// SAFETY: calling the pointer requires the arguments of sigaction(2).
type Sigaction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

fn libc_sigaction() -> Sigaction {
    next!(SIGACTION, c"sigaction");
    SIGACTION.function()
}

/// Returns whether this library handles SIGSYS.
pub fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Acquire)
}

/// A handler with SA_SIGINFO.
pub type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The handler of this library; empty on architectures on which system calls are not dispatched.
static HANDLER: OnceLock<Handler> = OnceLock::new();

/// Sets the handler that `install` installs.
pub fn set_handler(handler: Handler) {
    let _ = HANDLER.set(handler);
}

/// Installs the handler, unless it is installed already. Returns whether it is installed.
pub fn install() -> bool {
    let Some(handler) = HANDLER.get() else { return false };
    if is_installed() {
        return true;
    }
    let _entered = Entered::new();
    let mut chosen = lock(&CHOSEN);
    if chosen.is_some() {
        return true;
    }
    let mut action = default_action();
    action.sa_sigaction = *handler as usize;
    // Signals are delivered while a dispatched call waits, as in a call of the kernel.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    let mut old = MaybeUninit::<Action>::uninit();
    // SAFETY: both pointers are valid, and sigaction initializes `old` if it succeeds.
    unsafe {
        if libc_sigaction()(libc::SIGSYS, &action, old.as_mut_ptr()) != 0 {
            return false;
        }
        *chosen = Some(old.assume_init());
    }
    IS_INSTALLED.store(true, Ordering::Release);
    true
}

fn default_action() -> Action {
    // SAFETY: zero bytes are a valid action: SIG_DFL with an empty mask.
    unsafe { MaybeUninit::<Action>::zeroed().assume_init() }
}

/// Replaces the program's own action, and returns the previous one.
pub fn change(new: Option<Action>) -> Action {
    let _entered = Entered::new();
    let mut chosen = lock(&CHOSEN);
    let old = chosen.unwrap_or_else(default_action);
    if let Some(new) = new {
        *chosen = Some(new);
    }
    old
}

/// Executes the program's own action for a SIGSYS that is not a dispatched call.
///
/// # Safety
///
/// The arguments are the ones that the kernel passed to the signal handler.
#[cfg(target_arch = "x86_64")]
pub unsafe fn deliver(signal: c_int, information: *mut siginfo_t, context: *mut c_void) {
    let action = change(None);
    match action.sa_sigaction {
        libc::SIG_DFL => {
            // SAFETY: the action is valid; NULL is allowed. The signal ends the process.
            unsafe {
                libc_sigaction()(signal, &default_action(), std::ptr::null_mut());
                libc::raise(signal);
            }
        }
        libc::SIG_IGN => {}
        // SAFETY: the program has installed a function of this type; calling it requires the
        // arguments of a signal handler, which the caller promises.
        handler => unsafe {
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: see above.
                type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
                std::mem::transmute::<usize, Handler>(handler)(signal, information, context);
            } else {
                // SAFETY: see above.
                type Handler = unsafe extern "C" fn(c_int);
                std::mem::transmute::<usize, Handler>(handler)(signal);
            }
        },
    }
}
