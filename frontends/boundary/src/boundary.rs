//! Checks and dereferences pointers of C programs, converts errors to numbers, and catches panics.
//!
//! Every function that dereferences a pointer of the caller is an `unsafe fn`. It checks for NULL,
//! alignment, and lengths that no object can have. All other requirements are stated in its `#
//! Safety` section, and passed on to the C program by the exported functions.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use quell_vfs::{Error, ErrorKind, Result};

use crate::errors;

const EIO: i64 = 5;

/// Returns the result of `call`, or the negative error number, after the error was stored as the
/// last one of this thread.
pub fn number(call: impl FnOnce() -> Result<i64>) -> i64 {
    guard(|| call().unwrap_or_else(|error| errors::store(&error)))
}

/// Returns the result of `call`. If it panics, stores a message and returns the negative number of
/// EIO.
pub fn guard(call: impl FnOnce() -> i64) -> i64 {
    // State changed before a panic is protected by locks of the layer, which tolerates panics; the
    // libraries have no other state.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(number) => number,
        Err(panic) => {
            let message = (panic.downcast_ref::<&str>().copied())
                .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("a panic without a message");
            errors::store_message(format!("a fault in libquell: {message}"));
            // Dropping the panic payload could panic again.
            let _ = ManuallyDrop::new(panic);
            -EIO
        }
    }
}

/// Does the same as `number`, for functions that return only success or an error.
pub fn status(call: impl FnOnce() -> Result<()>) -> c_int {
    number(|| call().map(|()| 0)) as c_int
}

/// Returns the error for an invalid argument.
pub fn invalid(operation: &'static str, reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::InvalidInput, operation, "") }
}

/// Returns the value of a pointer. NULL and misaligned pointers are errors.
///
/// # Safety
///
/// `pointer` is NULL, or points to a `T` that stays valid and unchanged while the result is used: a
/// handle from `return_handle` that was not passed to `take_handle`.
// SAFETY: the section above states the conditions.
pub unsafe fn handle<'a, T>(pointer: *const T, subject: &'static str) -> Result<&'a T> {
    let refused = |reason: &'static str| Error {
        source: Some(reason.into()),
        ..Error::new(ErrorKind::InvalidInput, "use", subject)
    };
    if !pointer.is_aligned() {
        return Err(refused("the pointer is not aligned"));
    }
    // SAFETY: it is aligned, and the caller guarantees that it is NULL or points to a `T`.
    unsafe { pointer.as_ref() }.ok_or_else(|| refused("the pointer is NULL"))
}

/// Takes ownership of a handle created by `return_handle`; `None` for NULL.
///
/// # Safety
///
/// `pointer` is NULL or came from `return_handle`, was not taken before, and is not used by another
/// thread during the call.
// SAFETY: the section above states the conditions.
pub unsafe fn take_handle<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: it came from `Box::into_raw` in `return_handle`, and only this call takes it back.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// Stores a value as a handle in the caller's variable, which `check_output` has checked.
///
/// # Safety
///
/// `check_output` has accepted `output`, and a pointer can still be written there.
// SAFETY: the section above states the conditions.
pub unsafe fn return_handle<T>(output: *mut *mut T, value: T) {
    // SAFETY: `check_output` has checked that it is not NULL and aligned; the caller guarantees the
    // rest.
    unsafe { output.write(Box::into_raw(Box::new(value))) };
}

/// Checks the caller's variable for a handle and sets it to NULL, so that a caller who ignores an
/// error finds no old handle in it.
///
/// # Safety
///
/// `output` is NULL, or a pointer can be written there.
// SAFETY: the section above states the conditions.
pub unsafe fn check_output<T>(output: *mut *mut T) -> Result<()> {
    // SAFETY: the caller guarantees the same.
    unsafe { write_output(output, std::ptr::null_mut()) }
}

/// Writes a result into the caller's variable.
///
/// # Safety
///
/// `output` is NULL, or a `T` can be written there.
// SAFETY: the section above states the conditions.
pub unsafe fn write_output<T>(output: *mut T, value: T) -> Result<()> {
    if output.is_null() || !output.is_aligned() {
        return Err(invalid("return the result", "the pointer for the result is NULL, or not aligned"));
    }
    // SAFETY: it is not NULL and aligned, and the caller guarantees that a `T` can be written
    // there.
    unsafe { output.write(value) };
    Ok(())
}

/// Returns a path or name without its terminating NUL.
///
/// # Safety
///
/// `pointer` is NULL, or points to bytes that end with a NUL and stay unchanged while the result is
/// used.
// SAFETY: the section above states the conditions.
pub unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(invalid("read a path", "the pointer is NULL"));
    }
    // SAFETY: it is not NULL, and the caller guarantees the terminating NUL.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// Does the same as `text`, and returns the bytes as a path.
///
/// # Safety
///
/// As for `text`.
// SAFETY: the section above states the conditions.
pub unsafe fn path<'a>(pointer: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller guarantees the same.
    Ok(Path::new(OsStr::from_bytes(unsafe { text(pointer) }?)))
}

/// Returns `count` consecutive values. If `count` is 0 the pointer may be NULL.
///
/// # Safety
///
/// If `count` is not 0 and `pointer` is not NULL, it points to `count` initialized values that stay
/// unchanged while the result is used.
// SAFETY: the section above states the conditions.
pub unsafe fn slice<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T]> {
    match check(pointer, count)? {
        // SAFETY: `check` has checked that it is aligned, not NULL and at most `isize::MAX` bytes
        // long; the caller guarantees the values.
        true => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
        false => Ok(&[]),
    }
}

/// Does the same as `slice`, for values that the call may change.
///
/// # Safety
///
/// As for `slice`; in addition, no other thread reads the values while the result is used.
// SAFETY: the section above states the conditions.
pub unsafe fn slice_mut<'a, T>(pointer: *mut T, count: usize) -> Result<&'a mut [T]> {
    match check(pointer, count)? {
        // SAFETY: as in `slice`, and the caller guarantees that no other thread uses them.
        true => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) }),
        false => Ok(&mut []),
    }
}

/// Returns whether there are any values. NULL, a misaligned pointer, and more bytes than an object
/// can have are errors.
fn check<T>(pointer: *const T, count: usize) -> Result<bool> {
    if count == 0 {
        return Ok(false);
    }
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(invalid("use a buffer", "the pointer is NULL, or not aligned"));
    }
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize);
    // Nor can an object extend beyond the end of the address space.
    match bytes.and_then(|bytes| pointer.addr().checked_add(bytes)) {
        Some(_) => Ok(true),
        None => Err(invalid("use a buffer", "no object is as long as that")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the pointer is to a string of this thread, which is valid until the thread's next
        // error.
        unsafe { path(errors::last_message()) }.unwrap().display().to_string()
    }

    #[test]
    fn a_panic_becomes_an_error_with_the_panics_message() {
        assert_eq!(number(|| panic!("the {} of the world", "end")), -EIO);
        assert_eq!(last(), "a fault in libquell: the end of the world");
        assert_eq!(status(|| std::panic::panic_any(5)), -EIO as c_int);
        assert_eq!(last(), "a fault in libquell: a panic without a message");
    }

    #[test]
    fn each_thread_has_its_own_last_error() {
        assert_eq!(status(|| Err(invalid("be", "it was wrong"))), -22);
        let here = last();
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert!(here.contains("it was wrong"), "{here}");
    }

    #[test]
    fn invalid_pointers_are_refused() {
        // SAFETY: each is NULL, has no element, or is rejected for its alignment or length before
        // it is dereferenced.
        unsafe {
            assert!(handle::<u8>(std::ptr::null(), "a file").is_err());
            assert!(handle::<u64>(std::ptr::without_provenance(9), "a file").is_err());
            assert!(take_handle::<u8>(std::ptr::null_mut()).is_none());
            assert!(check_output::<u8>(std::ptr::null_mut()).is_err());
            assert!(write_output::<u64>(std::ptr::null_mut(), 1).is_err());
            assert!(write_output::<u64>(std::ptr::without_provenance_mut(9), 1).is_err());
            assert!(slice::<u8>(std::ptr::null(), 1).is_err());
            assert!(slice::<u64>(std::ptr::without_provenance(9), 1).is_err());
            assert!(slice::<u64>(std::ptr::dangling(), usize::MAX).is_err());
            assert!(slice::<u8>(std::ptr::dangling(), isize::MAX as usize + 1).is_err());
            assert!(slice::<u64>(std::ptr::dangling(), isize::MAX as usize / 8 + 1).is_err());
            assert!(slice_mut::<u8>(std::ptr::without_provenance_mut(usize::MAX - 9), 100).is_err());
            assert!(slice_mut::<u8>(std::ptr::null_mut(), 0).unwrap().is_empty());
            assert!(text(std::ptr::null()).is_err());
            assert!(path(std::ptr::null()).is_err());
        }
    }

    #[test]
    fn a_variable_is_null_until_it_holds_a_handle() {
        let mut output = std::ptr::without_provenance_mut(9);
        // SAFETY: the output is a variable, and the handle is taken back once.
        unsafe {
            check_output::<u32>(&mut output).unwrap();
            assert!(output.is_null());
            return_handle(&mut output, 7);
            assert_eq!(*handle(output, "a number").unwrap(), 7);
            assert_eq!(take_handle(output).as_deref(), Some(&7));
        }
    }
}
