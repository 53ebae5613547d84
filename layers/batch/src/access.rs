//! The access of this process to a store: it has the store open, or it is a client of the server
//! that has it open.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_batch_service::{
    AuxiliarySummary, BatchCaller, BatchRecord, BatchSummary, Conflict, LimitChange, Marker, NameSpace,
    NewBatch, NewPart, Quota, QuotaSubject, Resolution, Resolved, SnapshotServer, SnapshotSummary,
};
use quell_vfs::{Error, ErrorKind, Result};

use crate::conflicts::path_of_name;
use crate::file_system::BatchFs;
use crate::partition_clients::PartitionedClient;
use crate::partition_servers::{PartitionServerSummary, summaries};
use crate::remote::Remote;
use crate::served_names::ServedNames;
use crate::shared_names::SharedNames;
use crate::store::BatchStore;
use crate::store_dir::{RETRY, StoreDir};
use crate::store_lock::StoreLock;
use crate::subtree::{dir_at, existing_part, path_of, tree_below};

/// The access to a store.
#[derive(Debug)]
pub struct StoreAccess {
    // The store is closed before its directory.
    kind: Kind,
    dir: StoreDir,
}

#[derive(Debug)]
enum Kind {
    /// This process has the store open.
    Own(BatchStore),
    /// Another process serves the store.
    Served(Arc<Remote>, Arc<PartitionedClient>),
}

/// A batch, or a part of one, that has begun.
pub(crate) struct Begun {
    pub(crate) record: BatchRecord,
    /// The random number of the store.
    pub(crate) store_number: u128,
    pub(crate) dir: StoreDir,
    /// The server from which the entries of the snapshot are requested. `None` if this process
    /// reads the tables of the snapshot itself.
    pub(crate) snapshot: Option<Arc<dyn SnapshotServer>>,
}

impl StoreAccess {
    /// Opens a store, or connects to the server that has it open. While another process has the
    /// store open and does not serve it, the call waits, at most for `wait`.
    ///
    /// # Errors
    /// As for [`BatchStore::open`]; for a server over TCP, the errors of the file with the key of
    /// the store.
    pub fn open(path: &Path, wait: Duration) -> Result<StoreAccess> {
        StoreAccess::open_of(path, &[], wait)
    }

    /// Opens a store as [`open`](Self::open) does. It may also belong to one of the users
    /// `trusted`, and is then used only through its server.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_of(path: &Path, trusted: &[u32], wait: Duration) -> Result<StoreAccess> {
        let access = StoreAccess::open_for_batches_of(path, trusted, wait)?;
        if let Kind::Own(store) = &access.kind {
            store.commit_submitted()?;
        }
        Ok(access)
    }

    /// Opens a store as [`open`](Self::open) does, only to end and to list batches. Submitted
    /// batches are not committed first, so the master image must not be used.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_for_batches(path: &Path, wait: Duration) -> Result<StoreAccess> {
        StoreAccess::open_for_batches_of(path, &[], wait)
    }

    /// As [`open_for_batches`](Self::open_for_batches), for a store that may also belong to one of
    /// the users `trusted`.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_for_batches_of(path: &Path, trusted: &[u32], wait: Duration) -> Result<StoreAccess> {
        StoreAccess::open_dir(StoreDir::open_of(path, trusted)?, wait)
    }

    pub(crate) fn open_dir(dir: StoreDir, wait: Duration) -> Result<StoreAccess> {
        dir.check_format()?;
        let end = Instant::now() + wait;
        loop {
            if dir.owner().is_some() {
                match Remote::connect(dir.duplicate()?) {
                    Err(error) if error.kind == ErrorKind::Unavailable && Instant::now() < end => {
                        std::thread::sleep(RETRY);
                        continue;
                    }
                    connected => return StoreAccess::of_server(connected?, dir),
                }
            }
            let busy = match dir.open_keys() {
                Err(error) if error.kind == ErrorKind::Busy => error,
                keys => {
                    let store = BatchStore::with_keys(dir.duplicate()?, keys?, 0)?;
                    return Ok(StoreAccess { kind: Kind::Own(store), dir });
                }
            };
            match Remote::connect(dir.duplicate()?) {
                // The process has just ended, or does not serve the store.
                Err(error) if error.kind == ErrorKind::Unavailable => {}
                connected => return StoreAccess::of_server(connected?, dir),
            }
            if Instant::now() >= end {
                return Err(busy);
            }
            std::thread::sleep(RETRY);
        }
    }

    fn of_server(remote: Remote, dir: StoreDir) -> Result<StoreAccess> {
        let remote = Arc::new(remote);
        let clients = Arc::new(PartitionedClient::new(remote.clone())?);
        Ok(StoreAccess { kind: Kind::Served(remote, clients), dir })
    }

    /// Returns whether no other process can change the master image while this value exists.
    pub fn is_exclusive(&self) -> bool {
        matches!(self.kind, Kind::Own(_))
    }

    /// Returns the master image.
    pub fn name_space(&self) -> Arc<dyn NameSpace> {
        match &self.kind {
            Kind::Own(store) => store.primary().name_space(),
            Kind::Served(_, clients) => Arc::new(ServedNames::new(clients.clone())),
        }
    }

    /// Returns the path of a directory of the master image, which begins with a slash unless it is
    /// the root directory, whose path is empty.
    ///
    /// # Errors
    /// `Stale` if the directory was removed.
    pub fn path_of(&self, dir: u64) -> Result<Vec<u8>> {
        path_of(&*self.name_space(), dir)
    }

    /// Returns the tree below the directory at `path` of the master image as a file system. It must
    /// not be used after this value is dropped.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` if there is no such directory; the errors of files.
    pub fn file_system(&self, path: &[u8]) -> Result<BatchFs> {
        let names = self.name_space();
        let top = dir_at(&*names, path)?;
        self.dir.file_system(tree_below(names, top), 0)
    }

    /// Returns the tree below the directory at `path` of the master image, to be served to
    /// processes of this node. It must not be used after this value is dropped.
    ///
    /// # Errors
    /// As for [`file_system`](Self::file_system).
    pub fn shared_names(&self, path: &[u8]) -> Result<SharedNames> {
        let names = self.name_space();
        let top = dir_at(&*names, path)?;
        let number = self.store_number();
        Ok(SharedNames::new(tree_below(names, top), number, self.is_exclusive(), self.dir.open_dir(".")?))
    }

    /// Returns the path of a name in a directory. If the directory was removed, the path has the
    /// number of the directory in place of its path.
    pub fn path_of_name(&self, dir: u64, name: &[u8]) -> Vec<u8> {
        path_of_name(self.path_of(dir), dir, name)
    }

    /// Begins a batch of the user of this process in the tree below the directory at `path`.
    pub(crate) fn begin(&self, path: &[u8], name: &str, is_atomic: bool) -> Result<Begun> {
        let subtree = dir_at(&*self.name_space(), path)?;
        let new = NewBatch { name: name.to_owned(), caller: caller()?, subtree, is_atomic };
        self.begun(match &self.kind {
            Kind::Own(store) => store.begin(new)?,
            Kind::Served(remote, _) => remote.begin(new)?,
        })
    }

    fn begun(&self, record: BatchRecord) -> Result<Begun> {
        let snapshot = match &self.kind {
            Kind::Own(_) => None,
            Kind::Served(remote, _) => remote.snapshot_of(record.number),
        };
        Ok(Begun { record, store_number: self.store_number(), dir: self.dir.duplicate()?, snapshot })
    }

    /// Begins a batch for parts.
    pub(crate) fn begin_batch_for_parts(&self, new: NewBatch) -> Result<BatchRecord> {
        self.refuse_parts_of_others()?;
        match &self.kind {
            Kind::Own(store) => store.primary().begin_for_parts(new),
            Kind::Served(remote, _) => remote.begin_for_parts(new),
        }
    }

    /// Adds a part to a batch.
    pub(crate) fn join(&self, new: NewPart) -> Result<Begun> {
        self.refuse_parts_of_others()?;
        self.begun(match &self.kind {
            Kind::Own(store) => store.join(new)?,
            Kind::Served(remote, _) => remote.join(new)?,
        })
    }

    /// Refuses a batch with parts if the user, which may be root, is not the owner of the store:
    /// the server does not copy the files of parts from the directories of other users.
    fn refuse_parts_of_others(&self) -> Result<()> {
        match self.dir.owner() {
            None => Ok(()),
            Some(_) => {
                let source = Some("only the owner of the store can use batches with parts".into());
                let subject = self.dir.subject();
                Err(Error { source, ..Error::new(ErrorKind::PermissionDenied, "use parts in", subject) })
            }
        }
    }

    /// Returns the inode number of the directory at a path of the master image.
    pub(crate) fn dir_at(&self, path: &[u8]) -> Result<u64> {
        dir_at(&*self.name_space(), path)
    }

    /// Returns the directory of the store.
    pub(crate) fn directory(&self) -> &StoreDir {
        &self.dir
    }

    /// Returns the length of the part of a path that names an existing directory of the master
    /// image.
    ///
    /// # Errors
    /// The errors of files.
    pub fn existing_part(&self, path: &[u8]) -> Result<usize> {
        existing_part(&*self.name_space(), path)
    }

    /// Publishes a batch whose process has ended after it had written the certificate, or a batch
    /// of which all parts are closed. If the batch is committed already, its summary is returned.
    ///
    /// # Errors
    /// As for [`BatchStore::commit`]; `Busy` if a process uses one of the parts; `NotFound` if one
    /// of the parts is lost.
    pub fn commit(&self, number: u64) -> Result<BatchSummary> {
        let _locks = self.lock_with_parts(number)?;
        self.check_parts_closed(number)?;
        self.commit_locked(number)
    }

    /// As [`commit`](Self::commit), for a process that uses the batch.
    pub(crate) fn commit_locked(&self, number: u64) -> Result<BatchSummary> {
        match &self.kind {
            Kind::Own(store) => {
                store.commit_submitted()?;
                Ok(store.commit_locked(number)?.summary())
            }
            Kind::Served(remote, _) => self.without_files(number, remote.commit(number)),
        }
    }

    /// Returns the random number of the store.
    pub(crate) fn store_number(&self) -> u128 {
        match &self.kind {
            Kind::Own(store) => store.primary().store_number(),
            Kind::Served(remote, _) => remote.store_number(),
        }
    }

    /// Verifies and prepares a batch, for a process that uses it.
    pub(crate) fn prepare_locked(&self, number: u64, marker: &Marker) -> Result<BatchSummary> {
        match &self.kind {
            Kind::Own(store) => {
                store.commit_submitted()?;
                Ok(store.prepare_locked(number, marker)?.summary())
            }
            Kind::Served(remote, _) => remote.prepare(number, marker.clone()),
        }
    }

    /// Publishes a prepared batch, for a process that uses it.
    pub(crate) fn publish_locked(&self, number: u64, marker: &Marker) -> Result<BatchSummary> {
        match &self.kind {
            Kind::Own(store) => Ok(store.publish_locked(number, &marker.blob)?.summary()),
            Kind::Served(remote, _) => self.without_files(number, remote.publish(number, &marker.blob)),
        }
    }

    /// Makes a prepared batch an open one again, for a process that uses it.
    pub(crate) fn roll_back_locked(&self, number: u64, marker: &Marker) -> Result<BatchSummary> {
        match &self.kind {
            Kind::Own(store) => Ok(store.roll_back_locked(number, &marker.blob)?.summary()),
            Kind::Served(remote, _) => remote.roll_back(number, &marker.blob),
        }
    }

    /// Marks a batch whose process has ended after it had written the certificate, or of which all
    /// parts are closed, as submitted: it is verified and committed when the master image is used
    /// the next time.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit), except for the errors of the verification.
    pub fn submit(&self, number: u64) -> Result<BatchSummary> {
        let _locks = self.lock_with_parts(number)?;
        self.check_parts_closed(number)?;
        self.submit_locked(number)
    }

    /// As [`submit`](Self::submit), for a process that uses the batch.
    pub(crate) fn submit_locked(&self, number: u64) -> Result<BatchSummary> {
        match &self.kind {
            Kind::Own(store) => Ok(store.submit_locked(number)?.summary()),
            Kind::Served(remote, _) => self.without_files(number, remote.submit(number)),
        }
    }

    /// Discards a batch that no process uses any more, or one part of it.
    ///
    /// # Errors
    /// As for [`BatchStore::abort`].
    pub fn abort(&self, number: u64) -> Result<BatchSummary> {
        let _locks = self.lock_with_parts(number)?;
        self.abort_locked(number)
    }

    /// As [`abort`](Self::abort), for a process that uses the batch.
    pub(crate) fn abort_locked(&self, number: u64) -> Result<BatchSummary> {
        match &self.kind {
            Kind::Own(store) => Ok(store.abort_locked(number)?.summary()),
            Kind::Served(remote, _) => self.without_files(number, remote.abort(number)),
        }
    }

    /// Locks a batch. `None` for a batch of this user in a store of another user if the batch has
    /// no files any more, and so no process uses it.
    pub(crate) fn lock_batch(&self, number: u64) -> Result<Option<StoreLock>> {
        match self.dir.lock_batch(number) {
            Err(error) if error.kind == ErrorKind::NotFound && self.dir.owner().is_some() => Ok(None),
            locked => locked.map(Some),
        }
    }

    /// Removes the files of a batch of this user from a store of another user, after the server has
    /// accepted or discarded them.
    fn without_files(&self, number: u64, ended: Result<BatchSummary>) -> Result<BatchSummary> {
        if ended.is_ok() && self.dir.owner().is_some() {
            // A repetition of the command removes the files that remain.
            let _ = self.dir.remove_batch(number);
        }
        ended
    }

    /// Returns all batches, in the order in which they began.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub fn batches(&self) -> Result<Vec<BatchSummary>> {
        match &self.kind {
            Kind::Own(store) => {
                Ok(store.primary().batches()?.iter().map(|record| record.summary()).collect())
            }
            Kind::Served(remote, _) => remote.batches(),
        }
    }

    /// Returns the snapshots of the open batches, in the order in which they began.
    ///
    /// # Errors
    /// `Damaged`, also if the server is of a version without this request; the errors of reads.
    pub fn snapshots(&self) -> Result<Vec<SnapshotSummary>> {
        match &self.kind {
            Kind::Own(store) => store.primary().snapshots(),
            Kind::Served(remote, _) => remote.snapshots(),
        }
    }

    /// Returns the use and the limit of the store, the common limit of users, and then, for each
    /// user with a use or an own limit, both of them, in the order of the users. A user other than
    /// the owner of the store gets no use and no own limit of another user.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub fn quotas(&self) -> Result<Vec<Quota>> {
        match &self.kind {
            Kind::Own(store) => store.primary().quotas(),
            Kind::Served(remote, _) => remote.quotas(),
        }
    }

    /// Changes a limit of the use.
    ///
    /// # Errors
    /// `PermissionDenied` for users other than the owner of the store; as for
    /// [`Primary::set_limit`](quell_batch_service::Primary::set_limit).
    pub fn set_limit(&self, subject: QuotaSubject, change: LimitChange) -> Result<()> {
        match &self.kind {
            Kind::Own(store) => store.primary().set_limit(subject, change),
            Kind::Served(remote, _) => remote.set_limit(subject, change),
        }
    }

    /// Returns the auxiliary servers that are connected to the server of the store. The list is
    /// empty if the store has no server.
    ///
    /// # Errors
    /// `PermissionDenied` for users other than the owner of the store.
    pub fn auxiliary_servers(&self) -> Result<Vec<AuxiliarySummary>> {
        match &self.kind {
            Kind::Own(store) => Ok(store.auxiliaries().summaries()),
            Kind::Served(remote, _) => remote.auxiliary_servers(),
        }
    }

    /// Returns the partition servers of the store.
    ///
    /// # Errors
    /// The errors of files and of the servers.
    pub fn partition_servers(&self) -> Result<Vec<PartitionServerSummary>> {
        summaries(self.dir.duplicate()?)
    }

    /// Returns whether the store belongs to the user of this process.
    pub fn is_own(&self) -> bool {
        self.dir.owner().is_none()
    }

    /// Returns the conflicts of a committed batch.
    ///
    /// # Errors
    /// `NotFound` if there is no such batch; the errors of reads.
    pub fn conflicts(&self, number: u64) -> Result<Vec<Conflict>> {
        match &self.kind {
            Kind::Own(store) => store.conflicts_of(number),
            Kind::Served(remote, _) => remote.conflicts(number),
        }
    }

    /// Resolves the conflicts of a committed batch at `paths`, as
    /// [`path_of_name`](Self::path_of_name) returns them, or all of them, and removes them from the
    /// list of its conflicts. If this fails, the conflicts that are not resolved yet remain in the
    /// list. More than 4,096 paths, or 128 KiB of paths, are sent to a server in several requests.
    ///
    /// # Errors
    /// `NotFound` if there is no such batch or conflict; then nothing is changed by the request.
    /// `InvalidInput` if the batch is not committed, or a path is longer than 128 KiB; `Busy` if
    /// another command resolves conflicts of the batch, or moves one of the entries; `Exists` or
    /// `NotFound` for the path of a [`Resolution::Rename`]; `PermissionDenied` if the batch is one
    /// of another user, and if the user must not change one of the directories; the errors of
    /// files.
    pub fn resolve(&self, number: u64, paths: Option<&[Vec<u8>]>, how: &Resolution) -> Result<Resolved> {
        match &self.kind {
            Kind::Own(store) => store.resolve((&*store.primary().name_space(), None), number, paths, how),
            Kind::Served(remote, _) => remote.resolve(number, paths, how),
        }
    }
}

/// Returns the user of this process.
pub(crate) fn caller() -> Result<BatchCaller> {
    let failed =
        |error: rustix::io::Errno| Error::from_io(error.into(), "find the groups of", "this process");
    let groups = rustix::process::getgroups().map_err(failed)?.iter().map(|gid| gid.as_raw()).collect();
    let uid = rustix::process::geteuid().as_raw();
    Ok(BatchCaller { uid, gid: rustix::process::getegid().as_raw(), groups })
}
