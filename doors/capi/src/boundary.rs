//! The line between C and us: pointers become references or are refused, errors become numbers, and no panic gets
//! across.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use quell_client::{Error, ErrorKind, Result};

use crate::errors;

const EIO: i64 = 5;

/// What `call` says, as a number: its own, or the negative error number.
pub fn number(call: impl FnOnce() -> Result<i64>) -> i64 {
    // What a panic leaves behind is behind locks that do not mind: the layer's promise, and nothing is ours.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(number)) => number,
        Ok(Err(error)) => errors::told(&error),
        Err(panic) => {
            let words = (panic.downcast_ref::<&str>().copied())
                .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("a panic without words");
            errors::keep(format!("a fault in libquell: {words}"));
            // Dropping what was thrown might throw again.
            let _ = ManuallyDrop::new(panic);
            -EIO
        }
    }
}

/// As `number`, for what has no other answer than that it went well.
pub fn done(call: impl FnOnce() -> Result<()>) -> c_int {
    number(|| call().map(|()| 0)) as c_int
}

/// A call with what it must not be called with.
pub fn invalid(operation: &'static str, why: &'static str) -> Error {
    Error { source: Some(why.into()), ..Error::new(ErrorKind::InvalidInput, operation, "") }
}

/// What a pointer points to, unless it is NULL.
pub fn handle<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T> {
    // SAFETY: the caller of every function here passes NULL or what one of them gave it and is not closed yet.
    unsafe { pointer.as_ref() }.ok_or_else(|| Error {
        source: Some("the pointer is NULL".into()),
        ..Error::new(ErrorKind::InvalidInput, "use", what)
    })
}

/// Takes back what `give` gave out.
pub fn take<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller passes NULL, or what `give` gave it and has not been taken back yet.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// Puts a value where the caller wants it. Before the call it is checked with `place_for`.
pub fn give<T>(place: *mut *mut T, value: T) {
    // SAFETY: `place_for` found it not NULL; the caller says that a pointer can be written there.
    unsafe { place.write(Box::into_raw(Box::new(value))) };
}

/// Refuses NULL, and says NULL to who does not look at what a function returns.
pub fn place_for<T>(place: *mut *mut T) -> Result<()> {
    if place.is_null() {
        return Err(invalid("open", "there is no place for the handle: the pointer is NULL"));
    }
    // SAFETY: it is not NULL, and the caller says that a pointer can be written there.
    unsafe { place.write(std::ptr::null_mut()) };
    Ok(())
}

/// Writes what the caller asked for.
pub fn put<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(invalid("answer", "there is no place for the answer: the pointer is NULL"));
    }
    // SAFETY: it is not NULL, and the caller says that a `T` can be written there.
    unsafe { place.write(value) };
    Ok(())
}

/// A path or name, without the zero at its end.
pub fn text<'a>(pointer: *const c_char) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(invalid("read a path", "the pointer is NULL"));
    }
    // SAFETY: it is not NULL, and the caller says that bytes lie there up to a zero, for the time of the call.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// As `text`, as a path of the system's own.
pub fn path<'a>(pointer: *const c_char) -> Result<&'a Path> {
    Ok(Path::new(OsStr::from_bytes(text(pointer)?)))
}

/// `count` values that lie one after another. Without any the pointer may be NULL.
pub fn many<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T]> {
    match check(pointer, count)? {
        // SAFETY: it is not NULL and no longer than an object can be; the caller says that so many lie there.
        true => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
        false => Ok(&[]),
    }
}

/// As `many`, to be changed.
pub fn many_mut<'a, T>(pointer: *mut T, count: usize) -> Result<&'a mut [T]> {
    match check(pointer, count)? {
        // SAFETY: as in `many`, and nobody else uses them during the call.
        true => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) }),
        false => Ok(&mut []),
    }
}

/// Whether there is something to point to.
fn check<T>(pointer: *const T, count: usize) -> Result<bool> {
    if count == 0 {
        return Ok(false);
    }
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(invalid("use a buffer", "the pointer is NULL, or not aligned"));
    }
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(true),
        _ => Err(invalid("use a buffer", "nothing can be as long as that")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        path(errors::quell_last_error()).unwrap().display().to_string()
    }

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        assert_eq!(number(|| panic!("the {} of the world", "end")), -EIO);
        assert_eq!(last(), "a fault in libquell: the end of the world");
        assert_eq!(done(|| std::panic::panic_any(5)), -EIO as c_int);
        assert_eq!(last(), "a fault in libquell: a panic without words");
    }

    #[test]
    fn words_are_of_the_thread_that_failed() {
        assert_eq!(done(|| Err(invalid("be", "it was wrong"))), -22);
        let here = last();
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert!(here.contains("it was wrong"), "{here}");
    }

    #[test]
    fn what_points_nowhere_is_refused() {
        assert!(handle::<u8>(std::ptr::null(), "a file").is_err());
        assert!(many::<u8>(std::ptr::null(), 1).is_err());
        assert!(many::<u64>(std::ptr::dangling(), usize::MAX).is_err());
        assert!(many_mut::<u8>(std::ptr::null_mut(), 0).unwrap().is_empty());
        assert!(text(std::ptr::null()).is_err());
    }
}
