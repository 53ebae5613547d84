//! The interface to the files of a store.

use std::fs::File;

use quell_vfs::Result;

/// The tables in one directory, which are named by their numbers.
pub trait TableFiles: Send + Sync {
    /// Returns a new empty file, open for reading and writing. A file of the same number, which an
    /// interrupted operation has left, is replaced.
    ///
    /// # Errors
    /// The errors of open(2).
    fn create(&self, number: u64) -> Result<File>;

    /// Makes the content of a file that was created survive a power failure.
    ///
    /// # Errors
    /// The errors of fsync(2).
    fn sync_content(&self, number: u64, file: &File) -> Result<()>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The errors of open(2).
    fn open(&self, number: u64) -> Result<File>;

    /// Removes a file. It is not an error if the file does not exist.
    ///
    /// # Errors
    /// The errors of unlink(2).
    fn remove(&self, number: u64) -> Result<()>;

    /// Returns the numbers of all files, in no particular order.
    ///
    /// # Errors
    /// The errors of readdir(3).
    fn list(&self) -> Result<Vec<u64>>;

    /// Makes the names of created files survive a power failure.
    ///
    /// # Errors
    /// The errors of fsync(2).
    fn sync(&self) -> Result<()>;

    /// Replaces the copy of the description of the image, atomically, and makes it survive a power
    /// failure.
    ///
    /// # Errors
    /// The errors of write(2), rename(2) and fsync(2).
    fn put_copy(&self, bytes: &[u8]) -> Result<()>;

    /// Returns the copy of the description of the image; `None` if there is none.
    ///
    /// # Errors
    /// `Damaged` if the copy is too long; the errors of read(2).
    fn copy(&self) -> Result<Option<Vec<u8>>>;
}
