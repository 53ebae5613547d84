//! Batches of several parts: begins a batch, joins it as a part, and reports the progress of parts.
//!
//! A part is *closed* when its certificate, a file in its directory, is complete. So the process of
//! a part needs the key-value store only to join.

use std::path::Path;
use std::time::{Duration, Instant};

use quell_batch_service::{
    BatchSummary, NewBatch, NewPart, PartState, SummaryState, TableDir, open_batch_of_copy,
};
use quell_vfs::{Error, ErrorKind, Result};

use crate::access::{StoreAccess, caller};
use crate::open_batch::OpenBatch;
use crate::store_dir::{RETRY, StoreDir};
use crate::store_lock::StoreLock;

/// The progress of a part of a batch that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartProgress {
    /// A process changes the part.
    Open,
    /// The changes of the part are complete and durable.
    Closed,
    /// The process of the part ended before the changes were complete.
    Lost,
}

/// Returns the progress of a part, or `None` if `number` is not the number of a part that has not
/// ended. The call does not wait for a process that has the store open.
///
/// # Errors
/// The errors of the store and of files.
pub fn part_progress(store: &Path, number: u64) -> Result<Option<PartProgress>> {
    let dir = StoreDir::open(store)?;
    match open_batch_of_copy(&TableDir::new(dir.tables()?), number) {
        Ok(record) if record.part_of().is_some() => dir.part_progress(number).map(Some),
        Err(error) if !matches!(error.kind, ErrorKind::NotFound | ErrorKind::InvalidInput) => Err(error),
        _ => Ok(None),
    }
}

impl StoreDir {
    fn part_progress(&self, number: u64) -> Result<PartProgress> {
        // The order matters: a process writes the certificate before it ends and loses the lock.
        let is_used = self.is_batch_used(number)?;
        let is_closed = match self.batch(number) {
            Err(error) if error.kind == ErrorKind::NotFound => false,
            batch => batch?.has_certificate()?,
        };
        Ok(match (is_closed, is_used) {
            (true, _) => PartProgress::Closed,
            (false, true) => PartProgress::Open,
            (false, false) => PartProgress::Lost,
        })
    }

    /// Locks a batch, waiting at most for `wait`.
    fn lock_batch_within(&self, number: u64, wait: Duration) -> Result<StoreLock> {
        let end = Instant::now() + wait;
        loop {
            match self.lock_batch(number) {
                Err(error) if error.kind == ErrorKind::Busy && Instant::now() < end => {
                    std::thread::sleep(RETRY);
                }
                locked => return locked,
            }
        }
    }
}

impl StoreAccess {
    /// Begins a batch of the user of this process, which consists of parts, in the tree below the
    /// directory at `path`.
    ///
    /// # Errors
    /// `Busy` if another open batch changes a part of this tree, or a tree that contains it;
    /// `NotFound` or `NotADirectory` if there is no such directory; the errors of files.
    pub fn begin_for_parts(&self, path: &[u8], name: &str, is_atomic: bool) -> Result<BatchSummary> {
        let subtree = self.dir_at(path)?;
        let new = NewBatch { name: name.to_owned(), caller: caller()?, subtree, is_atomic };
        self.begin_batch_for_parts(new).map(|record| record.summary())
    }

    /// Returns the progress of a part that has not ended.
    ///
    /// # Errors
    /// The errors of files.
    pub fn progress_of_part(&self, part: u64) -> Result<PartProgress> {
        self.directory().part_progress(part)
    }

    /// Returns the numbers and the progress of the parts of a batch that have not ended.
    ///
    /// # Errors
    /// The errors of reads.
    pub fn parts(&self, batch: u64) -> Result<Vec<(u64, PartProgress)>> {
        let numbers = open_parts(&self.batches()?, batch);
        numbers.into_iter().map(|part| Ok((part, self.progress_of_part(part)?))).collect()
    }

    /// Discards the parts of a batch whose processes ended before they had closed them. Returns
    /// their numbers.
    ///
    /// # Errors
    /// As for [`abort`](Self::abort).
    pub fn abort_lost_parts(&self, batch: u64) -> Result<Vec<u64>> {
        // No part joins meanwhile.
        let _lock = self.directory().lock_batch(batch)?;
        let lost = self.parts(batch)?.into_iter().filter(|(_, progress)| *progress == PartProgress::Lost);
        let lost: Vec<u64> = lost.map(|(part, _)| part).collect();
        for part in &lost {
            self.abort(*part)?;
        }
        Ok(lost)
    }

    /// Locks a batch and its parts that have not ended, so that no process uses them or joins the
    /// batch.
    ///
    /// # Errors
    /// `Busy` if a process uses the batch or a part.
    pub(crate) fn lock_with_parts(&self, batch: u64) -> Result<Vec<StoreLock>> {
        let mut locks: Vec<StoreLock> = self.lock_batch(batch)?.into_iter().collect();
        for part in open_parts(&self.batches()?, batch) {
            let locked = self.directory().lock_batch(part).map_err(|error| match error.kind {
                ErrorKind::Busy => Error {
                    source: Some(format!("a process uses part {part}: unmount it before").into()),
                    ..Error::new(ErrorKind::Busy, "use batch", batch.to_string())
                },
                _ => error,
            })?;
            locks.push(locked);
        }
        Ok(locks)
    }

    /// Checks that no part of a batch is lost. The caller has locked the parts.
    ///
    /// # Errors
    /// `NotFound` if a part is lost.
    pub(crate) fn check_parts_closed(&self, batch: u64) -> Result<()> {
        let parts = self.parts(batch)?;
        let lost = parts.iter().filter(|(_, progress)| *progress != PartProgress::Closed);
        let lost: Vec<String> = lost.map(|(part, _)| part.to_string()).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "the changes of these parts are lost, because their processes ended before they had closed them: {}; \
             --without-lost-parts commits the other parts",
            lost.join(", ")
        );
        let error = Error::new(ErrorKind::NotFound, "commit batch", batch.to_string());
        Err(Error { source: Some(reason.into()), ..error })
    }
}

impl OpenBatch {
    /// Joins a batch as a part of it, and ends the access to the store. `path` is the path of the
    /// directory that the batch may change. While another part joins, the call waits, at most for
    /// `wait`.
    ///
    /// # Errors
    /// `InvalidInput` if the batch is not open, has no parts, or changes another directory;
    /// `NotFound` if there is no such batch; `Busy` if it is being committed; the errors of files.
    pub fn join(
        store: StoreAccess,
        path: &[u8],
        batch: u64,
        name: &str,
        wait: Duration,
    ) -> Result<OpenBatch> {
        let subtree = store.dir_at(path)?;
        if let Some(found) = store.batches()?.into_iter().find(|found| found.number == batch)
            && found.subtree != subtree
        {
            let of_batch = store.path_of(found.subtree)?;
            let reason = format!(
                "it changes the directory {} of the store: append this path to the path of the store",
                if of_batch.is_empty() { "/".into() } else { String::from_utf8_lossy(&of_batch) }
            );
            let error = Error::new(ErrorKind::InvalidInput, "join batch", batch.to_string());
            return Err(Error { source: Some(reason.into()), ..error });
        }
        // The batch is not committed before this process uses the part.
        let lock = store.directory().lock_batch_within(batch, wait)?;
        let begun = store.join(NewPart { batch, name: name.to_owned(), caller: caller()? })?;
        let part = begun.record.number;
        let opened = OpenBatch::open(begun).inspect_err(|_| {
            // The part cannot be used. If the abort fails as well, the part is a lost part.
            let _ = store.abort(part);
        });
        drop(lock);
        opened
    }
}

/// Returns the parts of a batch that have not ended, in the order in which they have joined.
fn open_parts(batches: &[BatchSummary], batch: u64) -> Vec<u64> {
    let is_part = |state: &SummaryState| matches!(state, SummaryState::Part { of, state: PartState::Open } if *of == batch);
    batches.iter().filter(|summary| is_part(&summary.state)).map(|summary| summary.number).collect()
}
