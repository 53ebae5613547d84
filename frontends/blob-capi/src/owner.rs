//! The process to which a handle belongs.

use std::mem::ManuallyDrop;

use quell_vfs::{Error, ErrorKind, Result};

const EBADF: i32 = 9;

/// A value of the process that created it. A child of the process has neither the threads nor the
/// connection of the store, so it can neither use nor drop the value.
pub struct Owned<T> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    pub fn new(value: T) -> Owned<T> {
        Owned { process: std::process::id(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// EBADF in another process.
    pub fn get(&self) -> Result<&T> {
        match self.process == std::process::id() {
            true => Ok(&self.value),
            false => Err(closed("it was opened before the fork, by another process")),
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: the value is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Returns the error for a handle that cannot be used.
pub fn closed(reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Os(EBADF), "use the store", "") }
}
