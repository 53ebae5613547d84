//! The next definitions of the wrapped functions: the functions that the program would call without
//! this library.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::c_void;

/// The next definition of a function, found at the first call.
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the definition as a pointer of the type `F`.
    pub fn function<F: Copy>(&self) -> F {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a pointer to a function");
        let address = self.address();
        // SAFETY: `F` has the size of a pointer, and the macro passes the type of a pointer to an
        // unsafe function, for which any address that is not NULL is valid.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// Returns the address. A function that no library defines ends the process: the program could
    /// not have been started without this library either.
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a string, and RTLD_NEXT is valid in a loaded library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // SAFETY: abort has no preconditions.
            unsafe { libc::abort() }
        }
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

// SAFETY: the linker defines both symbols for the section in which `next!` places its pointers.
unsafe extern "C" {
    #[link_name = "__start_quell_next"]
    static FIRST: [usize; 0];
    #[link_name = "__stop_quell_next"]
    static END: [usize; 0];
}

/// Finds all definitions, before a call of dlopen(3). dlsym(3) waits while another thread is in
/// dlopen(3). If a constructor in that thread waits for a thread whose wrapper calls dlsym(3), both
/// would wait forever.
pub fn find_all() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if IS_DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: the section consists of references.
    let all = unsafe {
        let (first, end) =
            ((&raw const FIRST).cast::<&'static Next>(), (&raw const END).cast::<&'static Next>());
        std::slice::from_raw_parts(first, end.offset_from_unsigned(first))
    };
    for next in all {
        // The pointer stays NULL if this libc does not define the function: then no program calls
        // it.
        // SAFETY: as in `address`.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, next.name.as_ptr()) };
        next.address.store(found, Ordering::Relaxed);
    }
}

/// Defines a static `Next` that `find_all` finds.
macro_rules! next {
    ($static:ident, $name:expr) => {
        static $static: $crate::next::Next = $crate::next::Next::new($name);
        const _: () = {
            #[used]
            #[unsafe(link_section = "quell_next")]
            static ENTRY: &$crate::next::Next = &$static;
        };
    };
}

/// The function syscall(2) of libc.
// SAFETY: a call requires the arguments of the system call.
pub type SystemCall = unsafe extern "C" fn(libc::c_long, ...) -> libc::c_long;

/// Returns libc's own syscall(2). The wrapper of this library does not let a program close the
/// library's own descriptors.
pub fn system_call() -> SystemCall {
    next!(NEXT, c"syscall");
    NEXT.function()
}

/// Defines a function of libc. `|next|` names the next definition in the body.
macro_rules! wrap {
    ($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty,
     |$next:ident| $body:block) => {
        $(#[$attribute])*
        // SAFETY: the function has the name, the signature and the requirements of the function of
        // libc that it replaces.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            $crate::next::next!(
                NEXT,
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                }
            );
            // A variadic function takes its arguments in the same registers. Calling the pointer is
            // unsafe, and requires the arguments of the function.
            type Function = // SAFETY: see above.
                unsafe extern "C" fn($($type),*) -> $result;
            #[allow(unused_variables)]
            let $next: Function = NEXT.function();
            $body
        }
    };
}

pub(crate) use {next, wrap};
