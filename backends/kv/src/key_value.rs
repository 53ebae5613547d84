//! The interface of the stores.

use quell_vfs::Result;

use crate::{Batch, KeyRange, Value};

/// Entries ordered by their keys, byte by byte.
///
/// All methods may be called by several threads at the same time.
///
/// **Order.** Commits take effect one after the other. A `get` or `scan` that begins after a commit
/// has returned sees the commit. A `scan` sees each batch entirely or not at all; two calls of
/// `get` during a commit may see the states before and after it.
///
/// **Durability.** The data of a commit that returned `Ok` survives the end of the process,
/// including SIGKILL. Whether it also survives a power failure or a crash of the kernel depends on
/// the store: after [`sync`](KeyValue::sync) it does, if the store is on a disk.
///
/// **Failure.** There are two classes of errors of `commit`, which [`DiskStore`](crate::DiskStore)
/// describes:
/// - The store refused the batch before it wrote anything: nothing of the batch is stored, and the
///   store continues to work.
/// - A write failed: no entry of the batch is visible in this store, every later `commit` and
///   `sync` returns an error, and `get` and `scan` continue to return the state before the failure.
///   When the store is opened again, the batch is stored either entirely or not at all, and all
///   earlier commits are present.
pub trait KeyValue: Send + Sync {
    /// Returns the value of a key, or `None` if there is no such entry. A key that cannot be stored
    /// (see [`Batch`]) has no entry.
    ///
    /// # Errors
    /// `Damaged` if the stored bytes do not have their checksum or format; the errors of read(2).
    fn get(&self, key: &[u8]) -> Result<Option<Value>>;

    /// Applies all operations of a batch, in their order, atomically. A batch without operations
    /// has no effect.
    ///
    /// # Errors
    /// `InvalidInput` if the batch exceeds a limit of [`Batch`], and `NoSpace` if the space of the
    /// store does not suffice; in both cases nothing was written. The errors of write(2) if a write
    /// failed, and the same error for each later commit.
    fn commit(&self, batch: Batch) -> Result<()>;

    /// Passes the entries of a range to `visit`, in ascending order of the keys, until `visit`
    /// returns false. The scan sees the entries as they were at its beginning, so `visit` may
    /// commit to the same store.
    ///
    /// # Errors
    /// As for [`get`](KeyValue::get). The entries before the error have been passed to `visit`.
    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// Waits until the data of all commits that have returned survives a power failure. Has no
    /// effect for a store in memory.
    ///
    /// # Errors
    /// The errors of fdatasync(2); then, and after a failed commit, each later commit and sync
    /// fails.
    fn sync(&self) -> Result<()>;

    /// Returns the space that the store occupies, in bytes: of the disk, or the sum of the lengths
    /// of all keys and values in memory.
    ///
    /// # Errors
    /// The errors of stat(2) and readdir(3).
    fn size_bytes(&self) -> Result<u64>;
}
