//! The contract for an open file: reads and writes at offsets.

use std::os::fd::OwnedFd;

use crate::attributes::Attributes;
use crate::error::{Error, ErrorKind, Result, errno};
use crate::lock::FileLocks;

/// Bytes that can be read at any offset: an open file, or a part of one. Any number of threads may
/// read at the same time.
pub trait ReadAt: Send + Sync {
    /// Reads into `into` from `offset` (bytes) and returns the number of bytes read. It is less
    /// than the length of `into` only if the file ends there, and 0 at and beyond the end of the
    /// file.
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize>;
}

/// An open file of a tree.
pub trait File: ReadAt {
    /// Returns the descriptor, open for reading, of a file of the operating system that has exactly
    /// the content of this file. A frontend can give it to a program, whose reads then no longer
    /// pass through this object. `None`: there is no such file.
    fn into_descriptor(self: Box<Self>) -> Option<OwnedFd> {
        None
    }

    /// Returns the attributes of the file, as fstat(2) does: also after it was renamed or removed.
    fn attributes(&self) -> Result<Attributes>;

    /// Reads several ranges, each from its own offset, and returns the number of bytes read for
    /// each (see [`ReadAt::read_at`]).
    fn read_pieces(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<Vec<usize>> {
        pieces.iter_mut().map(|(offset, into)| self.read_at(into, *offset)).collect()
    }
}

/// An open file that may be written to. docs/semantics.md states when written data becomes visible
/// to other processes and nodes.
pub trait WritableFile: File {
    /// Closes the file: publishes the data that was written through it, and frees its resources.
    /// Later calls of this method have no effect; reads and writes return `Os(EBADF)`.
    ///
    /// A file that is dropped without it is closed as well, but errors are lost, so a frontend
    /// calls it.
    fn close(&self) -> Result<()>;

    /// Writes all of `from` at `offset` (bytes). After an error, any part of it may have been
    /// written. Errors: `InvalidInput` if the file would end beyond 2^63 - 1.
    fn write_at(&self, from: &[u8], offset: u64) -> Result<()>;

    /// Replaces `length` bytes from `offset` on by zeros, as far as they are within the file, whose
    /// size does not change. Errors: `Unsupported` if the implementation has no cheaper way than
    /// writing zeros.
    fn write_zeros(&self, offset: u64, _length: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "write zeros at", offset.to_string()))
    }

    /// Appends all of `from` to the file atomically and returns the offset at which it was written.
    fn append(&self, from: &[u8]) -> Result<u64>;

    /// Passes all data written so far to the file system below, where other processes can read it
    /// (close-to-open consistency).
    fn publish(&self) -> Result<()>;

    /// Publishes as [`publish`](Self::publish) does, and makes the data survive a power failure.
    fn sync(&self) -> Result<()>;

    /// Removes the set-user-ID bit, and the set-group-ID bit if the group may execute the file. A
    /// write or truncation by a process without `CAP_FSETID` has this effect. An implementation
    /// whose files never have these bits has nothing to do.
    fn drop_set_id(&self) -> Result<()>;

    /// Returns the locks of the file. Errors: `Os(ENOLCK)` if the implementation keeps no locks.
    fn locks(&self) -> Result<&dyn FileLocks> {
        Err(Error {
            source: Some("this file system keeps no locks".into()),
            ..Error::new(ErrorKind::Os(errno::ENOLCK), "lock", "")
        })
    }

    /// Writes several ranges in order, each at its own offset. Where two overlap, the later one
    /// remains.
    fn write_pieces(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        pieces.iter().try_for_each(|(offset, from)| self.write_at(from, *offset))
    }
}
