//! The contract for an open file: bytes at offsets, nothing else.

use crate::Result;

/// An open file. Any number of threads may read at once.
pub trait File: Send + Sync {
    /// Reads into `into` from `offset` (bytes). Fewer bytes than asked only at the end of the file;
    /// 0 there and beyond.
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize>;
}
