//! A C string in memory from the program's malloc, for code that runs outside of `guard::inside`: a
//! signal handler that interrupts this code may use the library's own allocator.

use libc::c_char;

use crate::errno::{Errno, Outcome};

/// A string that ends with a NUL and can grow.
pub struct CBytes {
    start: *mut u8,
    length: usize,
    capacity: usize,
}

impl CBytes {
    /// Returns an empty string.
    pub fn new() -> CBytes {
        CBytes { start: std::ptr::null_mut(), length: 0, capacity: 0 }
    }

    /// Appends bytes. Errors: ENOMEM.
    pub fn push(&mut self, bytes: &[u8]) -> Outcome<()> {
        let length = self.length + bytes.len();
        if length >= self.capacity {
            let capacity = (length + 1).next_power_of_two().max(256);
            // SAFETY: `start` points to the memory of this string, or is NULL.
            let grown = unsafe { libc::realloc(self.start.cast(), capacity) };
            if grown.is_null() {
                return Err(Errno(libc::ENOMEM));
            }
            (self.start, self.capacity) = (grown.cast(), capacity);
        }
        // SAFETY: the memory has more than `length` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(self.length), bytes.len());
            *self.start.add(length) = 0;
        }
        self.length = length;
        Ok(())
    }

    /// Shortens the string to `length` bytes. `length` is at most the present length.
    pub fn truncate(&mut self, length: usize) {
        assert!(length <= self.length, "a string is not made longer");
        if !self.start.is_null() {
            // SAFETY: the memory has more than `length` bytes.
            unsafe { *self.start.add(length) = 0 };
        }
        self.length = length;
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the bytes without the NUL.
    pub fn bytes(&self) -> &[u8] {
        match self.start.is_null() {
            true => &[],
            // SAFETY: the memory has this length.
            false => unsafe { std::slice::from_raw_parts(self.start, self.length) },
        }
    }

    /// Returns the string.
    pub fn as_ptr(&self) -> *const c_char {
        self.at(0)
    }

    /// Returns the part of the string from a position, which is at most the length.
    pub fn at(&self, position: usize) -> *const c_char {
        assert!(position <= self.length, "a position in the string");
        match self.start.is_null() {
            true => c"".as_ptr(),
            // SAFETY: the memory has more bytes than the length.
            false => unsafe { self.start.add(position).cast() },
        }
    }
}

impl Drop for CBytes {
    fn drop(&mut self) {
        // SAFETY: `start` points to the memory of this string, or is NULL.
        unsafe { libc::free(self.start.cast()) };
    }
}
