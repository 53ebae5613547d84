//! The interface between the rules of a name space and the storage of its entries.

use std::sync::Arc;

use quell_kv::KeyValue;
use quell_vfs::Result;

use crate::entry::Entry;
use crate::key::Key;
use crate::limits::Quota;

/// A change of one key: the new entry, or `None` to remove it.
pub type KeyChange = (Key, Option<Entry>);

/// A request for the entries of a directory to the server of a snapshot.
pub type DirRequest = Box<dyn FnOnce() -> Result<()>>;

/// The entries of a name space. The master image of a primary server and the private name space of
/// a batch implement it, so both have the same rules ([`crate::Names`]).
pub trait Entries {
    /// Whether several clients use the name space at the same time. Then the inode of a file stays
    /// in one place after the first rename, so that a client finds it when another one renames it.
    const IS_SHARED: bool;

    /// Returns the entry of a key.
    ///
    /// # Errors
    /// `Damaged`, and the errors of read(2).
    fn get(&self, key: &Key) -> Result<Option<Entry>>;

    /// Passes the names of a directory after `after`, in their order, to `visit`, until it returns
    /// false. The inode of the directory itself, at the empty name, is not passed.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], Entry) -> bool) -> Result<()>;

    /// Applies changes atomically.
    ///
    /// # Errors
    /// `NoSpace`; `Quota` if a limit of the use would be exceeded; the errors of write(2). Then
    /// nothing was changed.
    fn apply(&mut self, changes: Vec<KeyChange>) -> Result<()>;

    /// Returns an inode number that no other entry has had.
    ///
    /// # Errors
    /// `NoSpace` if the range of numbers is used up.
    fn new_inode(&mut self) -> Result<u64>;

    /// Returns the key-value store that has the changes. After its `sync`, which needs no lock of
    /// the name space, all earlier changes survive a power failure. `None` if this name space does
    /// not outlive its process.
    fn key_values(&self) -> Option<Arc<dyn KeyValue>> {
        None
    }

    /// Returns the request for the names of a directory, if they are not known. Without this
    /// call, the first use of the directory sends the request with the lock of the name space.
    fn dir_request(&self, _dir: u64) -> Option<DirRequest> {
        None
    }

    /// Returns the use and the limit of the store. `None` if these entries have no limits.
    fn quota(&self) -> Option<Quota> {
        None
    }
}
