//! Functions that create threads. The kernel does not dispatch the system calls of a new thread, so
//! the new thread switches dispatch on before it calls the program's function.

use libc::{c_int, c_void};

use crate::dispatch;
use crate::guard::is_inside;
use crate::next::wrap;

/// The function of a thread. An exception or pthread_exit(3) may leave it.
// SAFETY: a call requires the argument that the program passed with the function.
type Start<T> = unsafe extern "C-unwind" fn(*mut c_void) -> T;

/// The function that the program passed for a new thread, and its argument.
struct Beginning<T> {
    function: Start<T>,
    argument: *mut c_void,
}

/// Switches dispatch on in a new thread, and calls the program's function.
// SAFETY: a call requires a pointer to a `Beginning` from `Box::into_raw`.
unsafe extern "C-unwind" fn begin<T>(beginning: *mut c_void) -> T {
    // SAFETY: `create` passes a pointer to a value that no other code uses.
    let Beginning { function, argument } = *unsafe { Box::from_raw(beginning.cast::<Beginning<T>>()) };
    if !dispatch::switch_on_requested() {
        crate::refusals::warn_once("pthread_create", "the system calls of a thread are not served");
    }
    // SAFETY: the program passed both for this call.
    unsafe { function(argument) }
}

/// Creates a thread with `next`.
fn create<T>(
    function: Start<T>,
    argument: *mut c_void,
    next: impl FnOnce(Start<T>, *mut c_void) -> c_int,
) -> c_int {
    if !dispatch::is_requested() || is_inside() {
        return next(function, argument);
    }
    let beginning = Box::into_raw(Box::new(Beginning { function, argument })).cast();
    let result = next(begin::<T>, beginning);
    if result != 0 {
        // SAFETY: there is no thread, so no other code uses the value.
        drop(unsafe { Box::from_raw(beginning.cast::<Beginning<T>>()) });
    }
    result
}

wrap! {
    fn pthread_create(
        thread: *mut c_void,
        attributes: *const c_void,
        function: Start<*mut c_void>,
        argument: *mut c_void,
    ) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for pthread_create(3).
        create(function, argument, |function, argument| unsafe { next(thread, attributes, function, argument) })
    }
}

wrap! {
    fn thrd_create(thread: *mut c_void, function: Start<c_int>, argument: *mut c_void) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for thrd_create(3).
        create(function, argument, |function, argument| unsafe { next(thread, function, argument) })
    }
}
