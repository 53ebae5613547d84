//! What belongs to the process that made it: after a fork the child has a copy, and must neither use nor close it.

use std::mem::ManuallyDrop;

use quell_fs::{Error, ErrorKind, Result, errno};

/// A value that no process but its maker uses or drops.
pub struct Owned<T> {
    /// Gone once it was dropped or given up.
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

    /// The process that made it.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Errors: `EBADF` in every other process.
    pub fn get(&self) -> Result<&T> {
        if let Some(value) = self.value.as_ref()
            && self.is_ours()
        {
            return Ok(value);
        }
        let refused = Error::new(ErrorKind::Os(errno::EBADF), "use", "a handle");
        Err(Error { source: Some("it was opened before the fork, by another process".into()), ..refused })
    }

    /// Drops the value, or leaves it alone if it is not ours.
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
