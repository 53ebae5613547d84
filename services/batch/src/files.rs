//! The interface to the files of a store.

use std::fs::File;

use quell_vfs::Result;

/// The tables in one directory, which are named by their numbers.
pub trait TableFiles: Send + Sync {
    /// Returns a new empty file, open for reading and writing. A file of the same number, which an
    /// interrupted operation has left, is replaced.
    ///
    /// # Errors
    /// Those of open(2).
    fn create(&self, number: u64) -> Result<File>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Those of open(2).
    fn open(&self, number: u64) -> Result<File>;

    /// Removes a file. One that does not exist is no error.
    ///
    /// # Errors
    /// Those of unlink(2).
    fn remove(&self, number: u64) -> Result<()>;

    /// Returns the numbers of all files, in no particular order.
    ///
    /// # Errors
    /// Those of readdir(3).
    fn list(&self) -> Result<Vec<u64>>;

    /// Makes the names of created files survive a power failure.
    ///
    /// # Errors
    /// Those of fsync(2).
    fn sync(&self) -> Result<()>;
}
