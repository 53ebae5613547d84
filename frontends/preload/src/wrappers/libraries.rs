//! dlopen(3) and dlmopen(3).
//!
//! A library in a virtual directory is loaded from a copy in a memfd. RTLD_DEEPBIND is removed: a
//! library that is loaded with it would call the functions of libc instead of those of this
//! library. libc finds the caller's namespace by the return address, so these functions continue in
//! the next definitions.

use std::ffi::CString;

use libc::{c_char, c_long, c_void};
use quell_vfs::Kind;

use crate::errno::{Errno, Outcome};
use crate::guard::is_inside;
use crate::library_copies;
use crate::next::Next;
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
    static DLOPEN: Next = Next::new(c"dlopen");
    if !is_inside() && view::is_active() {
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
    }
    DLOPEN.address()
}

/// Prepares dlmopen(3): a library in a new namespace has a libc of its own.
extern "C" fn prepare_new_namespace(arguments: &mut Arguments) -> *const c_void {
    static DLMOPEN: Next = Next::new(c"dlmopen");
    let is_new = arguments.first.addr() as c_long == libc::LM_ID_NEWLM;
    if is_new && !is_inside() && view::is_active() {
        warn_once(
            "dlmopen",
            "a library that the program loads with dlmopen(3) does not see the virtual directories",
        );
    }
    DLMOPEN.address()
}

/// Defines a function that calls `$prepare` with its first arguments, and then continues in the
/// function that this returns, with the changed arguments and its own return address.
macro_rules! prepared {
    ($name:ident, $prepare:ident) => {
        /// Continues in the next definition.
        ///
        /// # Safety
        ///
        /// The requirements are those of the function of libc.
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

        /// Continues in the next definition.
        ///
        /// # Safety
        ///
        /// The requirements are those of the function of libc.
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
