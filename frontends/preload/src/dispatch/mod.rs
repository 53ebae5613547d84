//! Syscall User Dispatch (`PR_SET_SYSCALL_USER_DISPATCH` of prctl(2), Linux 5.11, x86-64): the
//! kernel sends SIGSYS for each system call of a thread whose instruction is not in the text of
//! libc. The handler, `wrappers::dispatched_calls`, calls the function of this library for it, as
//! for syscall(2).
//!
//! - A thread has it on for its whole life if the view asks for it (`--via preload+sud`), or during
//!   dlopen(3) in a process with an indexed tree (a window): the dynamic linker opens libraries by
//!   system calls of its own.
//! - The kernel reads a byte of the thread, the selector. It lets all calls pass while the library
//!   serves a virtual file, because the backends use system calls of their own.
//! - A system call while SIGSYS is blocked ends the process, so the signal stays unblocked:
//!   `wrappers::signals` removes it from the masks that a program sets.
//! - The kernel switches it off in a new thread, in a forked child and at an exec. New threads and
//!   children of fork(2) switch it on again.

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
