//! Batches of several parts: their begin, the join of a part, and the states of parts.
//!
//! A part is *closed* when its certificate is complete, which is a file in its directory. So the
//! process of a part needs the key-value store only when it joins.

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

/// How far a part of a batch that has not ended is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartProgress {
    /// A process changes it.
    Open,
    /// Its changes are complete and durable.
    Closed,
    /// Its process ended before the changes were complete.
    Lost,
}

/// Returns how far a part is, or `None` if `number` is no part that has not ended. The store may be
/// open in another process, and this does not wait for it.
///
/// # Errors
/// Those of the store and of files.
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
    /// Begins a batch of the user of this process, whose changes are those of its parts, in the
    /// tree below the directory at `path`.
    ///
    /// # Errors
    /// `Busy` if another open batch changes a part of this tree, or a tree that contains it;
    /// `NotFound` or `NotADirectory` if there is no such directory; those of files.
    pub fn begin_for_parts(&self, path: &[u8], name: &str, is_atomic: bool) -> Result<BatchSummary> {
        let subtree = self.dir_at(path)?;
        let new = NewBatch { name: name.to_owned(), caller: caller()?, subtree, is_atomic };
        self.begin_batch_for_parts(new).map(|record| record.summary())
    }

    /// Returns how far a part is that has not ended.
    ///
    /// # Errors
    /// Those of files.
    pub fn progress_of_part(&self, part: u64) -> Result<PartProgress> {
        self.directory().part_progress(part)
    }

    /// Returns how far each part of a batch is that has not ended, with the number of the part.
    ///
    /// # Errors
    /// Those of reads.
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

    /// Locks a batch and its parts that have not ended, so that no process uses them and none
    /// joins.
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
    /// `NotFound` if one is.
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
    /// Joins a batch as a part of it, and ends the access to the store. `path` is that of the
    /// directory which the batch may change. While another part joins, this waits, at most for
    /// `wait`.
    ///
    /// # Errors
    /// `InvalidInput` if the batch is not open, has no parts, or changes another directory;
    /// `NotFound` if there is no such batch; `Busy` if it is being committed; those of files.
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
                "it changes the directory {} of the store: add this path to that of the store",
                if of_batch.is_empty() { "/".into() } else { String::from_utf8_lossy(&of_batch) }
            );
            let error = Error::new(ErrorKind::InvalidInput, "join batch", batch.to_string());
            return Err(Error { source: Some(reason.into()), ..error });
        }
        // The batch is not committed before this process uses the part.
        let lock = store.directory().lock_batch_within(batch, wait)?;
        let (record, store_number, dir) =
            store.join(NewPart { batch, name: name.to_owned(), caller: caller()? })?;
        let part = record.number;
        let opened = OpenBatch::open(record, store_number, dir).inspect_err(|_| {
            // Nothing can use the part. If this fails as well, it is a lost part.
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
