//! The contract for an open file: reads at offsets.

use crate::Result;

/// An open file. Any number of threads may read at the same time.
pub trait File: Send + Sync {
    /// Reads into `into` from `offset` (bytes) and returns the number of bytes read. It is less
    /// than the length of `into` only if the file ends there, and 0 at and beyond the end of the
    /// file.
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize>;
}
