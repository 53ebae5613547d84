//! dlopen(3) and dlmopen(3).
//!
//! A library in a virtual directory is loaded from a copy in a memfd. RTLD_DEEPBIND is removed: a
//! library that is loaded with it would call the functions of libc instead of those of this
//! library. libc finds the caller's namespace and search path by the return address, so these
//! functions jump to the next definitions instead of calling them, except in a window.
//!
//! In a window, the system calls of the dynamic linker for the search are dispatched to this
//! library (`dispatch`), so that the dynamic linker finds libraries of indexed trees without
//! requests to the tree's file system. In a window, libc uses the search path of this library
//! instead of the caller's, so a window is opened only for callers without a search path of their
//! own.

use std::ffi::CString;

use libc::{c_char, c_long, c_void};
use quell_vfs::Kind;

use crate::errno::{Errno, Outcome};
use crate::guard::is_inside;
use crate::library_copies;
use crate::next::{find_all, next};
use crate::own_descriptors;
use crate::placeholder;
use crate::refusals::warn_once;
use crate::resolve::{Entry, LastLink, path_of};
use crate::view;
use crate::wrappers::programs::program_copy;
use crate::wrappers::{bytes, if_virtual};

/// The first arguments of a call, which `prepare` may change.
#[repr(C)]
struct Arguments {
    first: *const c_char,
    second: c_long,
    third: c_long,
    #[cfg(target_arch = "x86_64")]
    return_address: *const c_void,
}

/// Returns the name of a copy of a library.
fn copy_of(entry: &Entry) -> Outcome<*const c_char> {
    let found = entry.node()?;
    if entry.dir.is_tree() || found.kind != Kind::File {
        return Err(Errno(libc::EINVAL)); // libc opens the original
    }
    let identity = (view::generation(), path_of(entry), found.size_bytes, found.modified);
    let mut copies = library_copies::lock_table();
    if let Some(name) = copies.get(&identity) {
        return Ok(name.as_ptr());
    }
    let copy = placeholder::own(program_copy(entry, libc::R_OK)?);
    let number = placeholder::leak(own_descriptors::duplicate(&copy)?);
    let name = CString::new(format!("/proc/self/fd/{number}")).unwrap_or_default();
    Ok(copies.entry(identity).or_insert(name).as_ptr())
}

/// Prepares dlopen(3): replaces the path of a library in a virtual directory. If it cannot be
/// copied, libc reports that the path does not exist.
extern "C" fn prepare_open(arguments: &mut Arguments) -> *const c_void {
    next!(DLOPEN, c"dlopen");
    if !is_inside() && view::is_active() {
        find_all();
        let path = arguments.first;
        // SAFETY: the program has passed NULL or a string. A name without a slash is searched for
        // in native directories.
        unsafe {
            if !path.is_null()
                && bytes(path).contains(&b'/')
                && let Some(Ok(copy)) = if_virtual(libc::AT_FDCWD, path, LastLink::Follow, copy_of)
            {
                arguments.first = copy;
            }
        }
        arguments.second &= !c_long::from(libc::RTLD_DEEPBIND);
        #[cfg(target_arch = "x86_64")]
        if window::is_useful(arguments) {
            return window::open_library as *const c_void;
        }
    }
    DLOPEN.address()
}

#[cfg(target_arch = "x86_64")]
mod window {
    use libc::{Dl_info, c_char, c_int, c_void};

    use super::Arguments;
    use crate::dispatch;
    use crate::next::next;
    use crate::view;
    use crate::wrappers::bytes;

    /// Tags of entries in the dynamic section of a library.
    const DT_NULL: i64 = 0;
    const DT_RPATH: i64 = 15;
    const DT_RUNPATH: i64 = 29;

    /// The request of dladdr1(3) for the `link_map`.
    const RTLD_DL_LINKMAP: c_int = 2;

    /// The beginning of the structure `link_map` of <link.h>.
    #[repr(C)]
    struct LinkMap {
        address: usize,
        name: *const c_char,
        dynamic: *const [i64; 2],
        next: *const LinkMap,
        previous: *const LinkMap,
    }

    // SAFETY: the signature matches the function of libc.
    unsafe extern "C" {
        fn dladdr1(
            address: *const c_void,
            into: *mut Dl_info,
            extra: *mut *mut c_void,
            flags: c_int,
        ) -> c_int;
    }

    /// Returns whether the library is opened in a window.
    pub fn is_useful(arguments: &Arguments) -> bool {
        if arguments.first.is_null() || !view::dirs().iter().any(|dir| dir.is_tree()) {
            return false;
        }
        // SAFETY: the program has passed a string.
        let name = unsafe { bytes(arguments.first) };
        // `$ORIGIN` stands for the directory of the caller.
        !name.contains(&b'$') && has_no_search_path(arguments.return_address, name.contains(&b'/'))
    }

    /// Returns whether the caller has no RUNPATH or RPATH that applies to the search for a library
    /// and for the libraries that it needs. `has_slash`: the name of the library is a path; then
    /// only the RPATH applies, to the libraries that it needs.
    fn has_no_search_path(caller: *const c_void, has_slash: bool) -> bool {
        let mut object: *mut LinkMap = std::ptr::null_mut();
        // SAFETY: zero bytes are a valid structure, both pointers are valid, and dladdr1 writes the
        // `link_map` of a loaded object, which is loaded while its code calls dlopen(3).
        let object = unsafe {
            let mut found: Dl_info = std::mem::zeroed();
            let extra = (&raw mut object).cast::<*mut c_void>();
            if dladdr1(caller, &mut found, extra, RTLD_DL_LINKMAP) == 0 || object.is_null() {
                return false;
            }
            &*object
        };
        // The RPATH of the program itself is used for all callers.
        let is_program = object.previous.is_null();
        let mut entry = object.dynamic;
        while !entry.is_null() {
            // SAFETY: the section ends with DT_NULL.
            match unsafe { (*entry)[0] } {
                DT_NULL => break,
                DT_RPATH if !is_program => return false,
                DT_RUNPATH if !has_slash => return false,
                _ => {}
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        true
    }

    /// dlopen(3) in a window. An exception of a constructor passes through this function, and
    /// leaves the window open.
    pub extern "C-unwind" fn open_library(path: *const c_char, mode: c_int) -> *mut c_void {
        next!(DLOPEN, c"dlopen");
        // SAFETY: calling the pointer requires the arguments of dlopen(3).
        type Dlopen = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;
        let dlopen: Dlopen = DLOPEN.function();
        let is_open = dispatch::open_window();
        // SAFETY: the program has passed these arguments for its call.
        let handle = unsafe { dlopen(path, mode) };
        if is_open {
            dispatch::close_window();
        }
        handle
    }
}

/// Prepares dlmopen(3): a library in a new namespace has a libc of its own.
extern "C" fn prepare_new_namespace(arguments: &mut Arguments) -> *const c_void {
    if !is_inside() && view::is_active() {
        find_all();
    }
    next!(DLMOPEN, c"dlmopen");
    let is_new = arguments.first.addr() as c_long == libc::LM_ID_NEWLM;
    if is_new && !is_inside() && view::is_active() {
        warn_once(
            "dlmopen",
            "a library that the program loads with dlmopen(3) does not see the virtual directories",
        );
    }
    DLMOPEN.address()
}

/// Defines a function that calls `$prepare` with its first arguments, and then jumps to the
/// function that `$prepare` returns, with the changed arguments and the unchanged return address.
macro_rules! prepared {
    ($name:ident, $prepare:ident) => {
        /// Jumps to the next definition.
        ///
        /// # Safety
        ///
        /// The requirements of the function of libc apply.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rdi, rsp",
                "call {prepare}",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "jmp rax",
                prepare = sym $prepare,
            )
        }

        /// Jumps to the next definition.
        ///
        /// # Safety
        ///
        /// The requirements of the function of libc apply.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "add x0, sp, #16",
                "bl {prepare}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                "br x16",
                prepare = sym $prepare,
            )
        }
    };
}

prepared!(dlopen, prepare_open);
prepared!(dlmopen, prepare_new_namespace);
