//! A partition server: the partitions that the primary server has assigned to it.

use std::sync::{Arc, Mutex, RwLock};

use quell_kv::KeyValue;
use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::Result;

use crate::entries::Entries;
use crate::entry::Timestamp;
use crate::files::TableFiles;
use crate::name_space::NameSpace;
use crate::names::Names;
use crate::partition::{NewAssignment, Returned};
use crate::partition_entries::{Ended, PartitionEntries};

/// The partitions of a partition server.
#[derive(Debug)]
pub struct PartitionStore {
    names: RwLock<Names<PartitionEntries>>,
    /// Held while the changes of an assignment are written to a table.
    returning: Mutex<()>,
}

impl PartitionStore {
    /// Opens the partitions in the key-value store of the server. `tables` are those of the image.
    ///
    /// # Errors
    /// `Damaged`; the errors of the tables.
    pub fn open(store: Arc<dyn KeyValue>, tables: Arc<dyn TableFiles>) -> Result<PartitionStore> {
        let names = RwLock::new(Names(PartitionEntries::open(store, tables)?));
        Ok(PartitionStore { names, returning: Mutex::default() })
    }

    /// Returns the names of the partitions. An operation on other names fails with an
    /// [`Obstacle`](crate::Obstacle).
    pub fn name_space(&self) -> &dyn NameSpace {
        &self.names
    }

    /// Receives an assignment. An assignment that was received before is left as it is.
    ///
    /// # Errors
    /// `Stale` if it was taken back before; the errors of tables and commits.
    pub fn assign(&self, new: NewAssignment) -> Result<()> {
        write_lock(&self.names).0.assign(new)
    }

    /// Ends an assignment, and returns its changes. A repetition returns the same. Operations on
    /// other names continue meanwhile.
    ///
    /// # Errors
    /// The errors of files and commits. Then the assignment has not ended.
    pub fn give_back(&self, number: u64) -> Result<Returned> {
        let _one = lock(&self.returning);
        let ended = match write_lock(&self.names).0.end(number)? {
            Ended::Returned(returned) => return Ok(returned),
            Ended::Unwritten(ended) => ended,
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
        write_lock(&self.names).0.forget(number)
    }

    /// Returns the time of the last change of the names of a directory by this server; `None` if it
    /// has changed none.
    ///
    /// # Errors
    /// [`Obstacle::NotAssigned`](crate::Obstacle) if it has no partition of the directory.
    pub fn touched(&self, dir: u64) -> Result<Option<Timestamp>> {
        read_lock(&self.names).0.touched(dir)
    }

    /// Returns the number of assignments that have not ended, or whose changes the primary server
    /// may not have received.
    ///
    /// # Errors
    /// The errors of reads.
    pub fn assignments(&self) -> Result<usize> {
        Ok(read_lock(&self.names).0.numbers()?.len())
    }

    /// Waits until all changes survive a power failure.
    ///
    /// # Errors
    /// The errors of fsync(2).
    pub fn sync(&self) -> Result<()> {
        write_lock(&self.names).0.sync()
    }
}
