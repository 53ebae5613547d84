//! A store for batches in a directory of the shared file system: its files, and the batches of this
//! process. docs/formats/batch.md describes the files.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quell_batch_service::{
    BatchRecord, BatchState, Certificate, CommitGuard, Conflict, Image, Marker, NewBatch, NewPart, Primary,
    SubmittedChanges, TableDir,
};
use quell_posix::{Dir, PosixDir, WritableDir};
use quell_vfs::{Error, ErrorKind, NewEntry, Rename, Result};

use crate::access_list::check_support;
use crate::adoption::{Adoption, tree_for};
use crate::auxiliary_servers::{AuxiliaryServers, StoreVerifiers};
use crate::copied_batch::{copy_batch, needs_copy};
use crate::exclusive::open_keys_within;
use crate::file_system::BatchFs;
use crate::part_records::{submitted_by, with_parts};
use crate::partition_servers::{StorePartitionServers, TIMES_KEPT};
use crate::random::random_number;
use crate::server_files::ServerFiles;
use crate::shared::now;
use crate::store_dir::{BATCHES, BatchDir, DATA, INCOMING, OpenKeys, Sharing, StoreDir, TABLES};
use crate::store_lock::StoreLock;
use crate::subtree::{dir_at, path_of, tree_below};

/// An open store. One process at a time has it open.
#[derive(Debug)]
pub struct BatchStore {
    // The order of the fields is the order in which they are dropped: the key-value store must be
    // closed before its directory.
    primary: Primary,
    auxiliaries: Box<AuxiliaryServers>,
    pub(crate) dir: StoreDir,
    /// Held until the key-value store is closed.
    _keys: StoreLock,
}

impl BatchStore {
    /// Creates a store in a directory that does not exist or is empty. Its root directory belongs
    /// to the user of this process.
    ///
    /// # Errors
    /// `Exists` if the directory has files; `PermissionDenied` if other users have access to it;
    /// the errors of files.
    pub fn create(path: &Path) -> Result<()> {
        BatchStore::create_with(path, |dir| {
            let keys = dir.open_keys()?;
            let owner = rustix::process::geteuid().as_raw();
            let root = NewEntry { permissions: 0o755, uid: owner, gid: rustix::process::getegid().as_raw() };
            Image::create(&keys.store, random_number(), root, now())?;
            keys.store.close()
        })
    }

    /// Creates a store as [`create`](Self::create) does, which the members of the group `gid` can
    /// use through its server.
    ///
    /// # Errors
    /// As for [`create`](Self::create); `PermissionDenied` if this user is not a member of the
    /// group.
    pub fn create_for_group(path: &Path, gid: u32) -> Result<()> {
        BatchStore::create_shared(path, gid, Sharing::Group)
    }

    /// Creates a store as [`create_for_group`](Self::create_for_group) does, whose names and
    /// contents a member of the group can read only as far as the permissions of the entries allow
    /// it.
    ///
    /// # Errors
    /// As for [`create_for_group`](Self::create_for_group); `Unsupported` if the file system has no
    /// POSIX access control lists. If the call fails, everything that it has created is removed.
    pub fn create_private(path: &Path, gid: u32) -> Result<()> {
        BatchStore::create_shared(path, gid, Sharing::Private)
    }

    fn create_shared(path: &Path, gid: u32, sharing: Sharing) -> Result<()> {
        let is_new = std::fs::symlink_metadata(path).is_err();
        let mut dir = BatchStore::empty_dir(path)?;
        let created = dir.share(gid, sharing).and_then(|()| {
            if let Some(store) = dir.private()? {
                check_support(&dir.files()?, store, dir.subject())?;
            }
            BatchStore::fill(&dir, |dir| {
                let tables = if dir.is_private() { 0o2700 } else { 0o2750 };
                for (name, permissions) in [(TABLES, tables), (DATA, 0o2750), (INCOMING, 0o3770)] {
                    dir.share_dir(name, permissions)?;
                }
                let keys = dir.open_keys()?;
                let owner = rustix::process::geteuid().as_raw();
                // Each member of the group can create entries, and remove only its own entries.
                let root = NewEntry { permissions: 0o3770, uid: owner, gid };
                Image::create(&keys.store, random_number(), root, now())?;
                keys.store.close()
            })
        });
        created.map_err(|error| without_new(&dir, is_new, error))
    }

    /// Creates a store as [`create`](Self::create) does, whose name space begins with the entries
    /// of the directory `tree`. The bytes of the files stay in `tree`, which is never changed. If
    /// the call fails, everything that it has created is removed.
    ///
    /// # Errors
    /// As for [`create`](Self::create); `InvalidInput` if the store is in `tree`; `Interrupted`
    /// after [`AdoptionProgress::stop`](crate::AdoptionProgress::stop); the errors of files of the
    /// store, and of `tree` itself. Entries of `tree` that cannot be adopted are reported.
    pub fn adopt(path: &Path, tree: &Path, adoption: &Adoption<'_>) -> Result<()> {
        let tree = tree_for(path, tree)?;
        let is_new = std::fs::symlink_metadata(path).is_err();
        let dir = BatchStore::empty_dir(path)?;
        let created = BatchStore::fill(&dir, |dir| {
            let initial = adoption.run(dir, &tree)?;
            let keys = dir.open_keys()?;
            Image::create_with(&keys.store, random_number(), initial)?;
            keys.store.close()
        });
        created.map_err(|error| without_new(&dir, is_new, error))
    }

    fn create_with(path: &Path, fill: impl FnOnce(&StoreDir) -> Result<()>) -> Result<()> {
        BatchStore::fill(&BatchStore::empty_dir(path)?, fill)
    }

    /// Opens the directory of a new store, and creates it if it does not exist.
    fn empty_dir(path: &Path) -> Result<StoreDir> {
        const OPERATION: &str = "create the store";
        let dir = StoreDir::create(path, OPERATION)?;
        if let Some(other) = dir.files()?.names()?.first() {
            let reason = format!("the directory has other files: {}", other.escape_ascii());
            return Err(Error {
                source: Some(reason.into()),
                ..Error::new(ErrorKind::Exists, OPERATION, dir.subject())
            });
        }
        Ok(dir)
    }

    /// Creates the files of a store; `fill` creates the image.
    fn fill(dir: &StoreDir, fill: impl FnOnce(&StoreDir) -> Result<()>) -> Result<()> {
        let files = dir.files()?;
        // `share_dir` opens them for the group.
        let incoming = dir.is_shared().then_some(INCOMING);
        for name in [TABLES, DATA, BATCHES].into_iter().chain(incoming) {
            files.make_dir(name.as_bytes(), 0o700)?;
        }
        fill(dir)?;
        ServerFiles::new(dir.duplicate()?).commit_key()?;
        // The file `format` marks the store as complete.
        let format = files.create_file(b"format.new", dir.file_permissions())?;
        format.write_at(dir.sharing().format(), 0)?;
        format.sync()?;
        files.rename(b"format.new", &files, b"format", Rename::Replace)?;
        WritableDir::sync(&files)
    }

    /// Opens a store. While another process has it open, the call waits, at most for `wait`.
    ///
    /// # Errors
    /// `NotFound` if there is no store; `Busy` if another process has it open; `PermissionDenied`
    /// if it belongs to another user; `Damaged`; the errors of files.
    pub fn open(path: &Path, wait: Duration) -> Result<BatchStore> {
        BatchStore::open_dividing(path, wait, 0)
    }

    /// Opens a store as [`open`](Self::open) does. A directory is divided between this process and
    /// the partition servers after `creations` creations in it; 0: never. The directories of a
    /// store for a group are not divided.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_dividing(path: &Path, wait: Duration, creations: u64) -> Result<BatchStore> {
        let dir = StoreDir::open(path)?;
        dir.check_format()?;
        let keys = open_keys_within(&dir, wait)?;
        let store = BatchStore::with_keys(dir, keys, creations)?;
        store.commit_submitted()?;
        Ok(store)
    }

    /// Commits the submitted batches in the order in which they were submitted. Batches that cannot
    /// be committed are recorded as refused.
    ///
    /// # Errors
    /// Errors of files for which a batch is not refused, such as `NoSpace`. The call can be
    /// repeated.
    pub(crate) fn commit_submitted(&self) -> Result<()> {
        self.commit_listed(&self.primary.submitted()?)
    }

    /// Commits the batches that are still submitted. Some may have been committed or aborted after
    /// they were listed.
    fn commit_listed(&self, numbers: &[u64]) -> Result<()> {
        for number in numbers {
            let guard = self.primary.lock_commit(*number);
            if !self.primary.submitted()?.contains(number) {
                continue;
            }
            let Err(error) = self.commit_guarded(&guard) else { continue };
            let refused = match error.kind {
                // The batch itself is the reason: it is refused, it is atomic and has conflicts, it
                // would exceed a limit, or files of its certificate are missing.
                ErrorKind::InvalidInput
                | ErrorKind::Damaged
                | ErrorKind::Busy
                | ErrorKind::Quota
                | ErrorKind::NotFound => error,
                kind => match self.read_files_of_batch(*number) {
                    Err(error) => error,
                    Ok(()) => {
                        let subject = number.to_string();
                        let source = Some(error.into());
                        return Err(Error {
                            source,
                            ..Error::new(kind, "commit the submitted batch", subject)
                        });
                    }
                },
            };
            self.primary.refuse(*number, &refused.to_string())?;
        }
        Ok(())
    }

    /// Reads all files that a batch has submitted, to find out whether they are the reason for the
    /// error of a commit.
    fn read_files_of_batch(&self, number: u64) -> Result<()> {
        let submitted = submitted_by(&self.primary.batches()?, &self.record(number)?);
        submitted.into_iter().try_for_each(|number| self.read_submitted_files(number))
    }

    fn read_submitted_files(&self, number: u64) -> Result<()> {
        let (certificate, batch) = read_certificate(&self.dir, number)?;
        certificate.check_files(&batch.tables, true)
    }

    /// Marks a batch whose certificate is complete as submitted, for a process that uses it.
    pub(crate) fn submit_locked(&self, number: u64) -> Result<BatchRecord> {
        let _guard = self.primary.lock_commit(number);
        let record = self.record(number)?;
        if let BatchState::Committed { .. } = record.state {
            return Ok(record);
        }
        self.copy_batch(&record, true)?;
        for submitted in submitted_by(&self.primary.batches()?, &record) {
            read_certificate(&self.dir, submitted)?;
        }
        self.primary.submit(number)
    }

    /// Opens a store with its key-value store. A directory is divided after `creations` creations
    /// in it; 0: never. Partitions that an earlier process has assigned are taken back when their
    /// names are used.
    pub(crate) fn with_keys(dir: StoreDir, keys: OpenKeys, creations: u64) -> Result<BatchStore> {
        let tables = Arc::new(dir.image_tables()?);
        let servers = Box::new(StorePartitionServers::new(dir.duplicate()?));
        let creations = if dir.is_shared() { 0 } else { creations };
        let primary = Primary::open(Arc::new(keys.store), tables)?;
        let mut primary = primary.with_partition_servers(servers, creations, TIMES_KEPT);
        if dir.is_private() {
            primary = primary.private_to(rustix::process::geteuid().as_raw());
        }
        let auxiliaries = Box::new(AuxiliaryServers::new(primary.store_number()));
        Ok(BatchStore { primary, auxiliaries, dir, _keys: keys.lock })
    }

    /// Returns the primary server, which has the master image.
    pub fn primary(&self) -> &Primary {
        &self.primary
    }

    /// Returns the auxiliary servers that are connected to this process.
    pub fn auxiliaries(&self) -> &AuxiliaryServers {
        &self.auxiliaries
    }

    /// Returns the directory with the data files.
    pub(crate) fn data_dir(&self) -> Result<Arc<dyn WritableDir>> {
        self.dir.data()
    }

    /// Returns the directory with the directories of batches.
    pub(crate) fn batches_dir(&self) -> Result<PosixDir> {
        Ok(PosixDir::of_descriptor(self.dir.open_dir(BATCHES)?))
    }

    /// Returns the directory of the tables.
    pub(crate) fn tables_dir(&self) -> Result<PosixDir> {
        Ok(PosixDir::of_descriptor(self.dir.tables()?))
    }

    /// Reads the certificate of a batch and opens its tables. `None` if the batch has no
    /// certificate.
    pub(crate) fn certificate(&self, number: u64) -> Result<Option<(Certificate, TableDir)>> {
        let batch = match self.dir.batch(number) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            batch => batch?,
        };
        match batch.certificate() {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            certificate => Ok(Some((certificate?, batch.tables))),
        }
    }

    /// Removes the files that a batch which has ended has left in its directory.
    pub(crate) fn remove_files_of_batch(&self, number: u64) -> Result<()> {
        let _lock = self.dir.lock_batch(number)?;
        self.dir.remove_batch(number)
    }

    /// Returns the files by which clients find the server of the store.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn server_files(&self) -> Result<ServerFiles> {
        Ok(ServerFiles::new(self.dir.duplicate()?))
    }

    /// Returns the path of a directory of the master image, which begins with a slash unless it is
    /// the root directory, whose path is empty.
    ///
    /// # Errors
    /// `Stale` if the directory was removed.
    pub fn path_of(&self, dir: u64) -> Result<Vec<u8>> {
        path_of(&*self.primary.name_space(), dir)
    }

    /// Returns the tree below the directory at `path` of the master image as a file system. It must
    /// not be used after the store is dropped.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` if there is no such directory; the errors of files.
    pub fn file_system(&self, path: &[u8]) -> Result<BatchFs> {
        let names = self.primary.name_space();
        let top = dir_at(&*names, path)?;
        self.dir.file_system(tree_below(names, top), 0)
    }

    /// Begins a batch, and creates the directory of the batch.
    ///
    /// # Errors
    /// As for [`Primary::begin`]; the errors of files.
    pub(crate) fn begin(&self, new: NewBatch) -> Result<BatchRecord> {
        self.with_directory(self.primary.begin(new)?)
    }

    /// Begins a batch of a user whose client is not trusted.
    ///
    /// # Errors
    /// As for [`Primary::begin_of_user`]; the errors of files.
    pub(crate) fn begin_of_user(&self, new: NewBatch) -> Result<BatchRecord> {
        self.with_directory(self.primary.begin_of_user(new)?)
    }

    fn with_directory(&self, record: BatchRecord) -> Result<BatchRecord> {
        self.batches_dir()?.make_dir(record.number.to_string().as_bytes(), 0o700)?;
        Ok(record)
    }

    /// Adds a part to a batch, and creates the directory of the part.
    ///
    /// # Errors
    /// As for [`Primary::join`]; the errors of files.
    pub(crate) fn join(&self, new: NewPart) -> Result<BatchRecord> {
        let record = self.primary.join(new)?;
        self.batches_dir()?.make_dir(record.number.to_string().as_bytes(), 0o700)?;
        Ok(record)
    }

    /// Removes the files of a batch that has ended, and of its parts.
    fn remove_ended(&self, number: u64) -> Result<()> {
        let numbers = with_parts(&self.primary.batches()?, number);
        numbers.into_iter().try_for_each(|number| self.dir.remove_batch(number))
    }

    /// Publishes a batch whose process has ended after it had written the certificate. If the batch
    /// is committed already, its record is returned.
    ///
    /// # Errors
    /// `Busy` if a process uses the batch; `NotFound` if there is no certificate: then the changes
    /// of the batch are lost, and it can be aborted; as for [`Primary::commit`].
    pub fn commit(&self, number: u64) -> Result<BatchRecord> {
        let _lock = self.dir.lock_batch(number)?;
        self.commit_locked(number)
    }

    /// As [`commit`](Self::commit), for a process that uses the batch. If another thread already
    /// commits the batch, because a client has repeated the request, the call waits for its result.
    pub(crate) fn commit_locked(&self, number: u64) -> Result<BatchRecord> {
        self.commit_guarded(&self.primary.lock_commit(number))
    }

    /// Copies the files that a batch of another user has submitted. A batch that was submitted for
    /// a later commit has been copied already, and its user must not change it any more.
    fn copy_batch(&self, record: &BatchRecord, syncs: bool) -> Result<()> {
        match needs_copy(&self.dir, record) {
            true => copy_batch(&self.dir, record, &self.dir.own_batch(record.number)?, syncs),
            false => Ok(()),
        }
    }

    fn commit_guarded(&self, guard: &CommitGuard<'_>) -> Result<BatchRecord> {
        let number = guard.batch();
        let record = self.record(number)?;
        if let BatchState::Committed { .. } = record.state {
            self.remove_ended(number)?;
            return Ok(record);
        }
        let record = self
            .with_changes(&record, |verifiers, changes| self.primary.commit_by(verifiers, guard, changes))?;
        // The batch is committed, even if files of it remain. A later `commit` removes them.
        let _ = self.remove_ended(number);
        Ok(record)
    }

    /// Calls `verify` with the processes that can verify a batch, and with the function that reads
    /// its certificates and tables.
    fn with_changes<T>(
        &self,
        record: &BatchRecord,
        verify: impl FnOnce(&StoreVerifiers<'_>, &SubmittedChanges<'_>) -> T,
    ) -> T {
        let verifiers = StoreVerifiers { servers: &self.auxiliaries, dir: &self.dir };
        let is_copied = Cell::new(false);
        verify(&verifiers, &|number, visit| {
            if !is_copied.replace(true) {
                self.copy_batch(record, false)?;
            }
            let (certificate, batch) = read_certificate(&self.dir, number)?;
            visit(&certificate, &batch.tables)
        })
    }

    /// Verifies and prepares a batch that is committed together with a transaction of blobs, for a
    /// process that uses the batch.
    ///
    /// # Errors
    /// As for [`Primary::prepare_by`].
    pub(crate) fn prepare_locked(&self, number: u64, marker: &Marker) -> Result<BatchRecord> {
        let guard = self.primary.lock_commit(number);
        self.with_changes(&self.record(number)?, |verifiers, changes| {
            self.primary.prepare_by(verifiers, &guard, changes, marker)
        })
    }

    /// Publishes a batch that is prepared with this marker.
    ///
    /// # Errors
    /// As for [`Primary::publish`].
    pub(crate) fn publish_locked(&self, number: u64, marker: &str) -> Result<BatchRecord> {
        let record = self.primary.publish(&self.primary.lock_commit(number), marker)?;
        // The batch is committed, even if files of it remain, as after `commit`.
        let _ = self.remove_ended(number);
        Ok(record)
    }

    /// Makes a batch that is prepared with this marker an open one again.
    ///
    /// # Errors
    /// As for [`Primary::roll_back`].
    pub(crate) fn roll_back_locked(&self, number: u64, marker: &str) -> Result<BatchRecord> {
        self.primary.roll_back(&self.primary.lock_commit(number), marker)
    }

    /// Discards a batch that no process uses any more. If the batch is discarded already and has
    /// files, they are removed.
    ///
    /// # Errors
    /// `Busy` if a process uses it; `NotFound`; `InvalidInput` if the batch is not open; the errors
    /// of files.
    pub fn abort(&self, number: u64) -> Result<BatchRecord> {
        self.record(number)?;
        let _lock = self.dir.lock_batch(number)?;
        self.abort_locked(number)
    }

    /// As [`abort`](Self::abort), for a process that uses the batch.
    pub(crate) fn abort_locked(&self, number: u64) -> Result<BatchRecord> {
        let _guard = self.primary.lock_commit(number);
        let record = match self.record(number)? {
            // An earlier request was executed, and its reply was lost, or files remained.
            record if record.state.is_aborted() => record,
            _ => self.primary.abort(number)?,
        };
        self.remove_ended(number)?;
        Ok(record)
    }

    /// Returns the conflicts of a committed batch.
    pub(crate) fn conflicts_of(&self, number: u64) -> Result<Vec<Conflict>> {
        let mut conflicts = Vec::new();
        self.primary.conflicts(number, &mut |conflict| {
            conflicts.push(conflict);
            Ok(())
        })?;
        Ok(conflicts)
    }

    /// Returns the record of a batch.
    fn record(&self, number: u64) -> Result<BatchRecord> {
        let found = self.primary.batches()?.into_iter().find(|record| record.number == number);
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, "find batch", number.to_string()))
    }
}

/// Removes the files of a store whose creation has failed with this error.
fn without_new(dir: &StoreDir, is_new: bool, error: Error) -> Error {
    match dir.remove_new(is_new) {
        Ok(()) => error,
        Err(left) => {
            let left = format!("files of the incomplete store remain: {left}");
            let cause = error.source.map(|cause| format!("{cause}; ")).unwrap_or_default();
            Error { source: Some((cause + &left).into()), ..error }
        }
    }
}

/// Returns the certificate and the directory of a batch.
pub(crate) fn read_certificate(dir: &StoreDir, number: u64) -> Result<(Certificate, BatchDir)> {
    let batch = dir.own_batch(number)?;
    let certificate = batch.certificate().map_err(|error| match error.kind {
        ErrorKind::NotFound => {
            let source = "its process ended before it had written its changes; abort it";
            let error = Error::new(ErrorKind::NotFound, "commit batch", number.to_string());
            Error { source: Some(source.into()), ..error }
        }
        _ => error,
    })?;
    Ok((certificate, batch))
}

/// Divides a path into the path of a store and the path of a directory in its name space. The store
/// is the last directory on the path that is a store. Without a store, the whole path is returned.
pub fn split_path(path: &Path) -> (&Path, &Path) {
    for above in path.ancestors() {
        let is_store = std::fs::symlink_metadata(above.join("format")).is_ok_and(|found| found.is_file());
        if is_store && let Ok(below) = path.strip_prefix(above) {
            return (above, below);
        }
    }
    (path, Path::new(""))
}

#[cfg(test)]
mod tests {
    use quell_batch_service::{BatchCaller, ROOT};

    use super::*;

    #[test]
    fn a_batch_that_is_aborted_after_the_submitted_ones_were_listed_is_skipped() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("store");
        BatchStore::create(&path).unwrap();
        let store = BatchStore::open(&path, Duration::from_secs(60)).unwrap();
        let caller = BatchCaller { uid: 0, gid: 0, groups: Vec::new() };
        let new = NewBatch { name: String::new(), caller, subtree: ROOT, is_atomic: false };
        let number = store.begin(new).unwrap().number;
        store.primary.submit(number).unwrap();
        let listed = store.primary.submitted().unwrap();
        assert_eq!(listed, [number]);
        store.abort(number).unwrap();
        store.commit_listed(&listed).unwrap();
        assert_eq!(store.record(number).unwrap().state, BatchState::Aborted);
    }
}
