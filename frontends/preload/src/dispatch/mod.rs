//! Syscall User Dispatch (`PR_SET_SYSCALL_USER_DISPATCH` of prctl(2), Linux 5.11, x86-64): the
//! kernel sends SIGSYS for each system call of a thread whose instruction is not in the text of
//! libc. The handler, `wrappers::dispatched_calls`, calls the function of this library for it, as
//! for syscall(2).
//!
//! - Dispatch is on in all threads if the view requests it (`--via preload+sud`). Otherwise it is
//!   on in a thread during dlopen(3), if the process has an indexed tree (a *window*), because the
//!   dynamic linker opens libraries with system calls of its own.
//! - At each system call the kernel reads a byte of the thread, the *selector*. The selector allows
//!   all calls while the library serves a virtual file, because the backends use system calls of
//!   their own.
//! - A dispatched call ends the process if SIGSYS is blocked. `wrappers::signals` therefore removes
//!   SIGSYS from the masks that a program sets.
//! - The kernel switches dispatch off in a new thread, in a forked child and at an exec. A forked
//!   child switches it on again, and so do new threads and executed programs if the view requests
//!   it.

mod disposition;
mod text;
mod thread;

#[cfg(target_arch = "x86_64")]
pub use disposition::deliver;
pub use disposition::{change as change_disposition, is_installed, set_handler};
#[cfg(target_arch = "x86_64")]
pub use text::is_own as is_own_text;
pub use thread::{
    close_window, is_requested, note_filter, open_window, request, switch_on_again, switch_on_requested,
};
