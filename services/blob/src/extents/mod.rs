//! Extents: immutable pieces of data that are written before the transactions that refer to them.

mod directory;
mod memory;

pub use directory::ExtentDir;
pub use memory::MemoryExtents;

use quell_vfs::Result;

pub use crate::keys::ExtentId;

/// The smallest piece of data that is written as an extent, in bytes. Smaller pieces are written
/// into pages.
pub const EXTENT_BYTES_MIN: usize = 32 << 10;
/// The largest length of an extent, in bytes.
pub const EXTENT_BYTES_MAX: usize = 64 << 20;

/// An extent that is being written. The memory that it needs does not grow with the extent. If the
/// value is dropped before the end, [`Extents::remove`] removes the part that was written.
pub trait ExtentWriter: Send {
    /// Appends data. An extent has at most [`EXTENT_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The errors of [`Extents::write`]. No data is appended after an error.
    fn append(&mut self, data: &[u8]) -> Result<()>;

    /// Ends the extent. When the call returns, the data survives all failures that a commit of the
    /// store survives.
    ///
    /// # Errors
    /// The errors of [`Extents::write`].
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Storage of extents. Any number of threads may use it.
pub trait Extents: Send + Sync {
    /// Writes an extent of at most [`EXTENT_BYTES_MAX`] bytes, with a number that no other extent
    /// has had. When the call returns, the data survives all failures that a commit of the store
    /// survives.
    ///
    /// # Errors
    /// `NoSpace`, and the errors of write(2). The extent may exist.
    fn write(&self, id: ExtentId, data: &[u8]) -> Result<()>;

    /// Begins to write an extent whose data is passed in parts, if these extents support it. No
    /// other extent has had the number.
    fn begin(&self, _id: ExtentId) -> Option<Box<dyn ExtentWriter>> {
        None
    }

    /// Reads a part of an extent, exactly as many bytes as `into` has.
    ///
    /// # Errors
    /// `Damaged` if the extent does not exist, is shorter, or has data that does not agree with its
    /// checksum; the errors of read(2).
    fn read(&self, id: ExtentId, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Removes an extent, if it exists. Its length need not be known.
    ///
    /// # Errors
    /// The errors of unlink(2).
    fn remove(&self, id: ExtentId) -> Result<()>;

    /// Removes extents with these lengths in bytes as [`remove`](Extents::remove) does.
    ///
    /// # Errors
    /// The errors of [`remove`](Extents::remove); any of the extents may exist then.
    fn remove_all(&self, extents: &[(ExtentId, u64)]) -> Result<()> {
        extents.iter().try_for_each(|(id, _)| self.remove(*id))
    }

    /// Passes the extents whose numbers are at least `first` to `visit`, in any order.
    ///
    /// # Errors
    /// The errors of readdir(3).
    fn list(&self, first: ExtentId, visit: &mut dyn FnMut(ExtentId)) -> Result<()>;
}
