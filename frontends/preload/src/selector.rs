//! The byte of a thread by which the kernel decides whether system calls outside of libc are
//! dispatched to this library; see `dispatch`.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

/// Values of the selector: all system calls pass, or those outside of libc are dispatched.
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

/// Records whether dispatch is on in this thread. All system calls pass until `resume`.
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

/// Lets all system calls of this thread pass, until `resume`.
pub fn pause() {
    select(ALLOW);
}

/// Ends a pause.
pub fn resume() {
    if IS_ON.get() {
        select(DISPATCH);
    }
}
