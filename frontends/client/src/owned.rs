//! Values that belong to the process that created them. After a fork the child has a copy, which it
//! must neither use nor close.

use std::mem::ManuallyDrop;

use quell_vfs::{Error, ErrorKind, Result, errno};

/// A value that only the process that created it can use or drop.
pub struct Owned<T> {
    /// `None` after the value was dropped or abandoned.
    value: Option<T>,
    process: u32,
}

impl<T> std::fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owned").field("process", &self.process).finish_non_exhaustive()
    }
}

impl<T> Owned<T> {
    pub fn new(value: T) -> Owned<T> {
        Owned { value: Some(value), process: std::process::id() }
    }

    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the ID of the process that created the value.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Returns the value. Errors: `EBADF` in every other process.
    pub fn get(&self) -> Result<&T> {
        if let Some(value) = self.value.as_ref()
            && self.is_ours()
        {
            return Ok(value);
        }
        let refused = Error::new(ErrorKind::Os(errno::EBADF), "use", "a handle");
        Err(Error { source: Some("it was opened before the fork, by another process".into()), ..refused })
    }

    /// Drops the value in the process that created it; abandons it in others.
    pub fn close(&mut self) {
        let value = ManuallyDrop::new(self.value.take());
        if self.is_ours() {
            drop(ManuallyDrop::into_inner(value));
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.close();
    }
}
