//! The interface of a name space for its frontends: the master image in this process, a primary
//! server on another node, or the private name space of a batch.

use std::sync::RwLock;

use quell_threads::{read_lock, write_lock};
use quell_vfs::{Kind, NewEntry, Rename, Result, Time};

use crate::change::InodeChange;
use crate::entries::Entries;
use crate::entry::Inode;
use crate::limits::Quota;
use crate::names::{FoundNode, Names, NewNode, Place, Removed, Renamed};

/// The operations of a name space, as [`Names`] describes them. All methods may be called by
/// several threads at the same time; each is atomic.
pub trait NameSpace: Send + Sync {
    /// Returns whether several clients may use the name space at the same time.
    fn is_shared(&self) -> bool;
    /// See [`Names::lookup`].
    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>>;
    /// Returns the same as `lookup`, for a name in a path after which other names follow. The size
    /// and the times of a directory may be out of date.
    fn lookup_on_path(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        self.lookup(dir, name)
    }
    /// See [`Names::find`].
    fn find(&self, number: u64, place: &Place) -> Result<FoundNode>;
    /// See [`Names::parent`].
    fn parent(&self, dir: u64) -> Result<(u64, Vec<u8>)>;
    /// See [`Names::list`]. `visit` must not call the name space.
    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], u64, Kind) -> bool) -> Result<()>;
    /// See [`Names::create`].
    fn create(&self, dir: u64, name: &[u8], node: NewNode, new: NewEntry, now: Time) -> Result<FoundNode>;
    /// See [`Names::link`].
    fn link(&self, node: (u64, &Place), dir: u64, name: &[u8], now: Time) -> Result<FoundNode>;
    /// See [`Names::remove`].
    fn remove(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed>;
    /// See [`Names::remove_dir`].
    fn remove_dir(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed>;
    /// See [`Names::rename`].
    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: Rename, now: Time) -> Result<Renamed>;
    /// See [`Names::change`].
    fn change(&self, node: (u64, &Place), change: &InodeChange, now: Time) -> Result<Inode>;
    /// Checks that the user may write to a file, as open(2) does. Each change is checked again.
    ///
    /// # Errors
    /// `PermissionDenied`, unless the kernel checks permissions; as for [`find`](Self::find).
    fn check_write(&self, _node: (u64, &Place)) -> Result<()> {
        Ok(())
    }
    /// Checks that data files may be written for this name space: the process that has it has not
    /// ended it.
    ///
    /// # Errors
    /// `Unavailable` after its end.
    fn check_open(&self) -> Result<()> {
        Ok(())
    }
    /// Returns the use and the limit of the store of which the name space is a part. `None` if no
    /// limit is checked before a batch is committed.
    ///
    /// # Errors
    /// The errors of requests to a server.
    fn quota(&self) -> Result<Option<Quota>>;
    /// Waits until all changes that have returned survive a power failure.
    ///
    /// # Errors
    /// The errors of fsync(2); then each later change fails.
    fn sync(&self) -> Result<()>;
}

/// Requests the names of directories that are not known yet, without the lock of the name space.
pub(crate) fn request_dirs<E: Entries>(names: &RwLock<Names<E>>, dirs: &[u64]) -> Result<()> {
    // Only the snapshot of a batch can be incomplete.
    if E::IS_SHARED {
        return Ok(());
    }
    for dir in dirs {
        let request = read_lock(names).0.dir_request(*dir);
        request.map_or(Ok(()), |request| request())?;
    }
    Ok(())
}

impl<E: Entries + Send + Sync> NameSpace for RwLock<Names<E>> {
    fn is_shared(&self) -> bool {
        E::IS_SHARED
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        request_dirs(self, &[dir])?;
        read_lock(self).lookup(dir, name)
    }

    fn find(&self, number: u64, place: &Place) -> Result<FoundNode> {
        read_lock(self).find(number, place)
    }

    fn parent(&self, dir: u64) -> Result<(u64, Vec<u8>)> {
        read_lock(self).parent(dir)
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], u64, Kind) -> bool) -> Result<()> {
        request_dirs(self, &[dir])?;
        read_lock(self).list(dir, after, visit)
    }

    fn create(&self, dir: u64, name: &[u8], node: NewNode, new: NewEntry, now: Time) -> Result<FoundNode> {
        request_dirs(self, &[dir])?;
        write_lock(self).create(dir, name, node, new, now)
    }

    fn link(&self, node: (u64, &Place), dir: u64, name: &[u8], now: Time) -> Result<FoundNode> {
        request_dirs(self, &[dir])?;
        write_lock(self).link(node, dir, name, now)
    }

    fn remove(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        request_dirs(self, &[dir])?;
        write_lock(self).remove(dir, name, now)
    }

    fn remove_dir(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        request_dirs(self, &[dir])?;
        write_lock(self).remove_dir(dir, name, now)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: Rename, now: Time) -> Result<Renamed> {
        request_dirs(self, &[from.0, to.0])?;
        write_lock(self).rename(from, to, mode, now)
    }

    fn change(&self, node: (u64, &Place), change: &InodeChange, now: Time) -> Result<Inode> {
        write_lock(self).change(node, change, now)
    }

    fn quota(&self) -> Result<Option<Quota>> {
        Ok(read_lock(self).0.quota())
    }

    fn sync(&self) -> Result<()> {
        let key_values = read_lock(self).0.key_values();
        key_values.map_or(Ok(()), |store| store.sync())
    }
}
