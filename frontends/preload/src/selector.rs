//! The byte of a thread by which the kernel decides whether system calls outside of libc are
//! dispatched to this library; see `dispatch`.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

/// Values of the selector: the kernel serves all system calls, or dispatches those outside of libc.
const ALLOW: u8 = 0;
const DISPATCH: u8 = 1;

thread_local! {
    /// Read by the kernel at each system call outside of libc.
    static SELECTOR: AtomicU8 = const { AtomicU8::new(ALLOW) };
    static IS_ON: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether dispatch is on in this thread.
pub fn is_on() -> bool {
    IS_ON.get()
}

/// Records whether dispatch is on in this thread. The kernel serves all system calls until
/// `resume`.
pub fn set_on(value: bool) {
    IS_ON.set(value);
    pause();
}

/// Returns the address of the selector of this thread.
pub fn address() -> *mut u8 {
    SELECTOR.with(AtomicU8::as_ptr)
}

fn select(value: u8) {
    SELECTOR.with(|selector| selector.store(value, Ordering::Relaxed));
    // The kernel reads the byte at the next system call.
    compiler_fence(Ordering::SeqCst);
}

/// Makes the kernel serve all system calls of this thread, until `resume`.
pub fn pause() {
    select(ALLOW);
}

/// Ends the effect of `pause`, if dispatch is on in this thread.
pub fn resume() {
    if IS_ON.get() {
        select(DISPATCH);
    }
}
