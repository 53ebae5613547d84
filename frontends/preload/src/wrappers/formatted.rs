//! Formatted output to a descriptor: dprintf(3), which libc writes with an internal call.

use libc::{FILE, c_char, c_int, size_t};

use crate::errno;
use crate::next::wrap;
use crate::variadic::{ArgumentList, variadic};
use crate::wrappers::opened;

// SAFETY: the signatures match the functions of libc.
unsafe extern "C" {
    fn open_memstream(text: *mut *mut c_char, length: *mut size_t) -> *mut FILE;
    fn vfprintf(stream: *mut FILE, format: *const c_char, list: *mut ArgumentList) -> c_int;
    fn __vfprintf_chk(
        stream: *mut FILE,
        flag: c_int,
        format: *const c_char,
        list: *mut ArgumentList,
    ) -> c_int;
    fn fclose(stream: *mut FILE) -> c_int;
    fn free(memory: *mut libc::c_void);
}

/// Calls `format` with a stream in memory, and writes the text of the stream to `fd`. Returns the
/// result of `format`, or -1 with `errno`.
fn print(fd: c_int, format: impl FnOnce(*mut FILE) -> c_int) -> c_int {
    let (mut text, mut length) = (std::ptr::null_mut::<c_char>(), 0);
    // SAFETY: the variables outlive the stream, which is closed here; the text exists after that.
    unsafe {
        let memory = open_memstream(&mut text, &mut length);
        if memory.is_null() {
            return -1;
        }
        let mut count = format(memory);
        let mut number = errno::get();
        fclose(memory);
        let mut written = 0;
        while count >= 0 && written < length {
            match libc::write(fd, text.add(written).cast(), length - written) {
                bytes if bytes > 0 => written += bytes as usize,
                _ => {
                    number = errno::get();
                    count = -1;
                }
            }
        }
        free(text.cast());
        errno::set(number);
        count
    }
}

wrap! {
    fn vdprintf(fd: c_int, format: *const c_char, list: *mut ArgumentList) -> c_int, |next| {
        match opened(fd) {
            // SAFETY: the caller's arguments are valid for vdprintf(3).
            None => unsafe { next(fd, format, list) },
            // SAFETY: as above; the list is used once.
            Some(_) => print(fd, |memory| unsafe { vfprintf(memory, format, list) }),
        }
    }
}

wrap! {
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut ArgumentList) -> c_int, |next| {
        match opened(fd) {
            // SAFETY: the caller's arguments are valid for vdprintf(3).
            None => unsafe { next(fd, flag, format, list) },
            // SAFETY: as above; the list is used once.
            Some(_) => print(fd, |memory| unsafe { __vfprintf_chk(memory, flag, format, list) }),
        }
    }
}

variadic!(
    /// Writes formatted text to a descriptor.
    #[unsafe(no_mangle)]
    dprintf, 2, "rdx", "x2", vdprintf
);
variadic!(
    /// Writes formatted text to a descriptor.
    #[unsafe(no_mangle)]
    __dprintf_chk, 3, "rcx", "x3", __vdprintf_chk
);
