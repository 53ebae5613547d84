//! A partition server: the partitions that the primary server has assigned to it.

use std::sync::{Arc, Mutex, RwLock};

use quell_kv::KeyValue;
use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::Result;

use crate::entry::Timestamp;
use crate::files::TableFiles;
use crate::name_space::NameSpace;
use crate::names::Names;
use crate::partition::{NewAssignment, ReturnedChanges};
use crate::partition_entries::{
    EndedAssignment, PartitionEntries, count_assignments, remove_dir, remove_returned,
};

/// The partitions of a partition server.
pub struct PartitionStore {
    names: RwLock<Names<PartitionEntries>>,
    store: Arc<dyn KeyValue>,
    /// Held while assignments are received, returned and forgotten.
    changing: Mutex<()>,
}

impl std::fmt::Debug for PartitionStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionStore").finish_non_exhaustive()
    }
}

impl PartitionStore {
    /// Opens the partitions in the key-value store of the server. `tables` are those of the image.
    ///
    /// # Errors
    /// `Damaged`; the errors of the tables.
    pub fn open(store: Arc<dyn KeyValue>, tables: Arc<dyn TableFiles>) -> Result<PartitionStore> {
        let entries = PartitionEntries::open(store, tables)?;
        let store = entries.store().clone();
        Ok(PartitionStore { names: RwLock::new(Names(entries)), store, changing: Mutex::default() })
    }

    /// Returns the names of the partitions. An operation on other names fails with an
    /// [`Obstacle`](crate::Obstacle).
    pub fn name_space(&self) -> &dyn NameSpace {
        &self.names
    }

    /// Receives an assignment. An assignment that was received before is left as it is. The primary
    /// server has received the changes of all earlier assignments of the directory.
    ///
    /// # Errors
    /// `Stale` if it was taken back before; `Busy` if the directory has another assignment; the
    /// errors of tables and commits.
    pub fn assign(&self, new: NewAssignment) -> Result<()> {
        let _one = lock(&self.changing);
        if !read_lock(&self.names).0.is_new(&new)? {
            return Ok(());
        }
        remove_dir(&*self.store, new.dir.number)?;
        write_lock(&self.names).0.assign(new)
    }

    /// Ends an assignment, and returns its changes. A repetition returns the same. Operations on
    /// other names continue meanwhile.
    ///
    /// # Errors
    /// The errors of files and commits. Then the assignment has not ended.
    pub fn give_back(&self, number: u64) -> Result<ReturnedChanges> {
        let _one = lock(&self.changing);
        let ended = match write_lock(&self.names).0.end(number)? {
            EndedAssignment::Returned(returned) => return Ok(returned),
            EndedAssignment::Unwritten(ended) => ended,
        };
        let written = ended.write();
        let mut names = write_lock(&self.names);
        let recorded = written.and_then(|returned| {
            names.0.record_return(&ended, &returned)?;
            Ok(returned)
        });
        if recorded.is_err() {
            names.0.resume(ended);
        }
        recorded
    }

    /// Removes the entries of an assignment whose changes the primary server has received.
    ///
    /// # Errors
    /// `InvalidInput` if the assignment was not returned; the errors of commits.
    pub fn forget(&self, number: u64) -> Result<()> {
        let _one = lock(&self.changing);
        remove_returned(&*self.store, number)
    }

    /// Returns the time of the last change of names of an assignment of a directory; `None` if
    /// there was none.
    ///
    /// # Errors
    /// [`Obstacle::NotAssigned`](crate::Obstacle) if the server does not have the assignment.
    pub fn touched(&self, dir: u64, number: u64) -> Result<Option<Timestamp>> {
        read_lock(&self.names).0.touched(dir, number)
    }

    /// Returns the number of assignments that have not ended, or whose changes the primary server
    /// may not have received.
    ///
    /// # Errors
    /// The errors of reads.
    pub fn assignments(&self) -> Result<usize> {
        count_assignments(&*self.store)
    }

    /// Waits until all changes survive a power failure.
    ///
    /// # Errors
    /// The errors of fsync(2).
    pub fn sync(&self) -> Result<()> {
        self.store.sync()
    }
}
