//! A batch of this process: its private name space, and its end.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

use quell_batch_service::{
    BatchRecord, BatchSummary, MEMORY_BYTES, Names, PrivateEntries, ProofForm, SummaryState, TableDir,
    UserNames,
};
use quell_threads::{lock, read_lock};
use quell_vfs::{Error, ErrorKind, Result};

use crate::access::{Begun, StoreAccess};
use crate::data_readers::ChangedReaders;
use crate::file_system::BatchFs;
use crate::shared_names::SharedNames;
use crate::store_dir::{StoreDir, VIEW, remove_if_present, write_certificate};
use crate::store_lock::StoreLock;
use crate::subtree::tree_below;
use crate::views::PublishedViews;

/// Returns whether the changes of an open batch of the caller were written, so that another process
/// can commit it. `trusted`: the users to one of which the store may belong, besides the caller.
///
/// # Errors
/// The errors of files.
pub fn has_written_changes(store: &Path, trusted: &[u32], number: u64) -> Result<bool> {
    StoreDir::open_of(store, trusted)?.batch(number)?.has_certificate()
}

/// The private name space of a batch. This process does not have the store open meanwhile, so other
/// processes can use it.
pub struct OpenBatch {
    dir: StoreDir,
    store_number: u128,
    record: BatchRecord,
    names: Arc<RwLock<Names<PrivateEntries>>>,
    tables: Arc<TableDir>,
    fs: Arc<BatchFs>,
    /// The form in which the changes are submitted.
    proof: ProofForm,
    /// The number of attempts to write the changes.
    attempts: AtomicU64,
    /// Set when the changes and their certificate were written, and are not written again. A commit
    /// may have removed them since. If a file could not be ended before the batch was committed, it
    /// has the error.
    submitted: OnceLock<Result<(), (ErrorKind, String)>>,
    views: Mutex<PublishedViews>,
    /// The data files of earlier batches that more users may read after this batch, in a private
    /// store.
    changed_readers: Mutex<Vec<ChangedReaders>>,
    /// Held while this process uses the batch.
    _lock: StoreLock,
}

impl std::fmt::Debug for OpenBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenBatch").field("store", &self.dir.path).field("record", &self.record).finish()
    }
}

impl OpenBatch {
    /// Begins a batch of the user of this process in the tree below the directory at `path`, and
    /// ends the access to the store.
    ///
    /// # Errors
    /// `Busy` if another open batch changes a part of this tree, or a tree that contains it;
    /// `NotFound` or `NotADirectory` if there is no such directory; the errors of files.
    pub fn begin(store: StoreAccess, path: &[u8], name: &str, is_atomic: bool) -> Result<OpenBatch> {
        let begun = store.begin(path, name, is_atomic)?;
        let number = begun.record.number;
        let made = begun.dir.make_batch(number);
        // Others can use the store when this returns.
        made.and_then(|()| OpenBatch::open(begun)).inspect_err(|_| {
            // The batch cannot be used. If the abort fails as well, the batch stays in the list of
            // open batches.
            let _ = store.abort_locked(number);
        })
    }

    /// Opens the private name space of a batch that has begun.
    pub(crate) fn open(begun: Begun) -> Result<OpenBatch> {
        let Begun { record, store_number, dir, snapshot } = begun;
        let lock = dir.lock_batch(record.number)?;
        let tables = Arc::new(dir.batch(record.number)?.tables);
        let names = dir.private_names(&record, snapshot, tables.clone(), MEMORY_BYTES)?;
        let names = Arc::new(RwLock::new(names));
        let tree = tree_below(names.clone(), record.subtree);
        let fs = Arc::new(dir.file_system(tree, record.number)?);
        let (proof, views) = (ProofForm::default(), Mutex::default());
        let (attempts, submitted) = (AtomicU64::new(0), OnceLock::new());
        Ok(OpenBatch {
            dir,
            store_number,
            record,
            names,
            tables,
            fs,
            proof,
            attempts,
            submitted,
            views,
            changed_readers: Mutex::default(),
            _lock: lock,
        })
    }

    /// Sets the form in which the changes are submitted.
    pub fn with_proof(self, proof: ProofForm) -> OpenBatch {
        OpenBatch { proof, ..self }
    }

    /// Replaces the file system by one that executes a change only if the permissions of the
    /// entries allow it to the user of the batch, as the commit does. Mounts do not need it,
    /// because the kernel checks permissions. The file system from before must not be used.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn add_checks(&mut self) -> Result<()> {
        let names = Arc::new(UserNames::of_batch(self.names.clone(), &self.record));
        let tree = tree_below(names, self.record.subtree);
        self.fs = Arc::new(self.dir.file_system(tree, self.record.number)?);
        Ok(())
    }

    /// Returns whether the changes were written, so that another process can commit the batch.
    ///
    /// # Errors
    /// The errors of files.
    pub fn has_written_changes(&self) -> Result<bool> {
        if self.submitted.get().is_some() {
            return Ok(true);
        }
        self.dir.batch(self.record.number)?.has_certificate()
    }

    /// Returns the private name space as a file system.
    pub fn file_system(&self) -> Arc<BatchFs> {
        self.fs.clone()
    }

    /// Returns the private name space, to be served to processes of this node.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn shared_names(&self) -> Result<SharedNames> {
        let tree = tree_below(self.names.clone(), self.record.subtree);
        Ok(SharedNames::new(tree, self.store_number, true, self.dir.open_dir(".")?))
    }

    /// Returns the record of the batch as it was at its beginning.
    pub fn record(&self) -> &BatchRecord {
        &self.record
    }

    /// Publishes a view of the batch for other processes if one of them has requested it since the
    /// last view, and returns whether it did. Operations of the batch wait only until its changes
    /// in memory are copied. The process of the batch must call it every few seconds.
    ///
    /// # Errors
    /// The errors of files; the next call tries again.
    pub fn publish_view(&self) -> Result<bool> {
        let mut views = lock(&self.views);
        let files = self.dir.batch(self.record.number)?.files;
        views.answer(self.record.number, &self.names, &self.tables, &files)
    }

    /// Publishes the changes of the batch. While another process has the store open and does not
    /// serve it, the call waits, at most for `wait`. It can be repeated after an error, also if the
    /// server has committed the batch and its reply was lost. The file system is not used
    /// afterwards.
    ///
    /// # Errors
    /// As for [`Primary::commit`](quell_batch_service::Primary::commit) and [`StoreAccess::open`].
    pub fn commit(&self, wait: Duration) -> Result<BatchSummary> {
        let ended = self.submit_all()?;
        let summary = self.open_store(wait)?.commit_locked(self.record.number)?;
        // With conflicts, some changes of permissions may not have been committed.
        if !matches!(summary.state, SummaryState::Committed { conflicts, .. } if conflicts > 0) {
            self.extend_readers()?;
        }
        self.without_lost(ended, summary)
    }

    /// Submits the changes of the batch, as [`StoreAccess::submit`] does, and waits like
    /// [`commit`](Self::commit). It can be repeated after an error. The file system is not used
    /// afterwards.
    ///
    /// # Errors
    /// As for [`StoreAccess::submit`] and [`StoreAccess::open`].
    pub fn commit_later(&self, wait: Duration) -> Result<BatchSummary> {
        let ended = self.submit_all()?;
        let summary = self.open_store(wait)?.submit_locked(self.record.number)?;
        self.extend_readers()?;
        self.without_lost(ended, summary)
    }

    /// Closes a part of a batch: its changes and their certificate are durable when this returns.
    /// Closing does not need the key-value store. It can be repeated after an error. The file
    /// system is not used afterwards.
    ///
    /// # Errors
    /// The errors of files.
    pub fn close(&self) -> Result<()> {
        let ended = self.submit_all()?;
        // Processes that watch the part end when there is no view any more.
        remove_if_present(&self.dir.batch(self.record.number)?.files, VIEW)?;
        self.extend_readers()?;
        ended
    }

    /// Writes the changes and their certificate, so that [`StoreAccess::commit`] can publish them
    /// even after the end of this process. The file system is not used afterwards.
    ///
    /// # Errors
    /// The errors of files. It can be repeated.
    pub fn prepare(&self) -> Result<()> {
        let ended = self.submit_all()?;
        self.extend_readers()?;
        ended
    }

    /// Lets the users read the data files of earlier batches that may read them after this batch,
    /// in a private store.
    fn extend_readers(&self) -> Result<()> {
        let changed = lock(&self.changed_readers);
        if changed.is_empty() {
            return Ok(());
        }
        self.dir.data_of(self.record.number)?.extend_earlier(&changed)
    }

    /// Ends the file system and submits the changes, unless this is done already. Returns the error
    /// of a file that could not be ended; then the changes of the other files are submitted.
    fn submit_all(&self) -> Result<Result<()>> {
        if let Some(submitted) = self.submitted.get() {
            return Ok(submitted.clone().map_err(|(kind, reason)| Error {
                source: Some(reason.into()),
                ..Error::new(kind, "write", "a file of the batch")
            }));
        }
        let ended = self.fs.end();
        self.submit()?;
        lock(&self.views).end();
        if ended.is_ok() {
            self.submitted.get_or_init(|| Ok(()));
        }
        Ok(ended)
    }

    /// Returns the result of an accepted batch: the error of a file that could not be ended, whose
    /// changes are lost, or the description of the batch. A repeated call has the same result.
    fn without_lost(&self, ended: Result<()>, summary: BatchSummary) -> Result<BatchSummary> {
        if let Err(error) = &ended {
            self.submitted.get_or_init(|| Err((error.kind, error.to_string())));
        }
        ended.map(|()| summary)
    }

    fn submit(&self) -> Result<()> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let names = read_lock(&self.names);
        let store = self.store_number;
        let certificate = names.0.submit(store, &self.record, &*self.tables, self.proof, attempt)?;
        if self.dir.is_private() {
            let data = self.dir.data_of(self.record.number)?;
            *lock(&self.changed_readers) = data.restrict_earlier(&names)?;
        }
        drop(names);
        self.dir.sync_data(self.record.number)?;
        // From here on another process can commit the batch if this one ends.
        let files = self.dir.batch(self.record.number)?.files;
        write_certificate(&files, &certificate.encode(), &self.dir.batch_access()?)
    }

    /// Discards the changes of the batch, or of this part. It can be repeated after an error, also
    /// if the server has discarded them and its reply was lost.
    ///
    /// # Errors
    /// As for [`StoreAccess::open`].
    pub fn abort(&self, wait: Duration) -> Result<BatchSummary> {
        lock(&self.views).end();
        self.open_store(wait)?.abort_locked(self.record.number)
    }

    fn open_store(&self, wait: Duration) -> Result<StoreAccess> {
        StoreAccess::open_dir(self.dir.duplicate()?, wait)
    }
}
