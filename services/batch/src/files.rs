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

    /// Makes the content of a file that was created survive a power failure.
    ///
    /// # Errors
    /// Those of fsync(2).
    fn sync_content(&self, number: u64, file: &File) -> Result<()>;

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

    /// Replaces the copy of the description of the image, atomically, and makes it survive a power
    /// failure.
    ///
    /// # Errors
    /// Those of write(2), rename(2) and fsync(2).
    fn put_copy(&self, bytes: &[u8]) -> Result<()>;

    /// Returns the copy of the description of the image; `None` if there is none.
    ///
    /// # Errors
    /// `Damaged` if it is too long; those of read(2).
    fn copy(&self) -> Result<Option<Vec<u8>>>;
}
