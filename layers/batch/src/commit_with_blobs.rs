//! The commit of a batch together with a transaction of a store of blobs: both are committed, or
//! neither (docs/decisions/0053-batches-with-blobs.md).
//!
//! The batch is prepared first. Then the caller commits the transaction, which also creates the
//! *marker*, a blob. If the transaction is committed, the batch is published, and otherwise it is
//! open again. This crate does not depend on the crate for blobs: the caller executes the
//! transaction and reads the marker.

use quell_batch_service::{BatchRecord, BatchState, BatchSummary, Marker};
use quell_vfs::{Error, ErrorKind, Result};

use crate::access::StoreAccess;
use crate::random::random_number;
use crate::store::BatchStore;

/// The result of the transaction that is committed together with a batch.
#[derive(Debug)]
pub enum TransactionOutcome {
    /// The transaction is committed, and has created the marker.
    Committed,
    /// The transaction is not committed, and never will be. The error has the reason.
    Refused(Error),
    /// It is not known whether the transaction is committed.
    Unknown(Error),
}

/// The store and the beginning of the name of a marker that a transaction is to create.
#[derive(Debug, Clone, Copy)]
pub struct MarkerLocation<'a> {
    /// The location of the store of blobs, for later processes with another working directory.
    pub location: &'a str,
    /// The beginning of the name of the blob. It contains the identity of the store of blobs, with
    /// which the caller of [`StoreAccess::settle`] recognizes another store at the location.
    pub prefix: &'a str,
}

impl StoreAccess {
    /// Checks the conditions of [`commit_with`](Self::commit_with) that are known before its
    /// verification, so that no store of blobs is opened, or created, for a batch that cannot be
    /// committed.
    ///
    /// # Errors
    /// `Busy` if a server has the store open, or if the batch is prepared; `PermissionDenied` if
    /// the batch belongs to another user; `InvalidInput` if it is submitted, if it has ended, or if
    /// it is a part; `NotFound` if there is no such batch.
    pub fn check_commit_with(&self, number: u64) -> Result<()> {
        let store = self.store_for_blobs(number)?;
        check_user(store, number)?;
        check_not_submitted(&store.primary().open_batch(number)?)
    }

    /// Publishes a batch together with a transaction. `transaction` gets the marker, and commits a
    /// transaction that creates this marker, and that fails if the marker exists. While it runs,
    /// the batch is prepared. If this process ends meanwhile, or it is not known whether the
    /// transaction is committed, the batch stays prepared until a call of
    /// [`settle`](Self::settle).
    ///
    /// # Errors
    /// `Busy` if a server has the store open, if a process uses the batch or one of its parts, if
    /// the batch is prepared, or if it has conflicts; `PermissionDenied` if the batch belongs to
    /// another user; `InvalidInput` if it is submitted; the error of a transaction that was
    /// refused; the errors of [`commit`](Self::commit). The batch is still prepared after an
    /// unknown decision, and if it cannot be published or made open again. After other errors, its
    /// state is as before, unless the error is one of the store itself: then it can be prepared.
    pub fn commit_with(
        &self,
        number: u64,
        marker: MarkerLocation<'_>,
        transaction: impl FnOnce(&Marker) -> TransactionOutcome,
    ) -> Result<BatchSummary> {
        let store = self.store_for_blobs(number)?;
        check_user(store, number)?;
        let _locks = self.lock_with_parts(number)?;
        self.check_parts_closed(number)?;
        check_not_submitted(&store.primary().batch(number)?)?;
        store.commit_submitted()?;
        let store_number = store.primary().store_number();
        let blob = format!("{}{store_number:032x}-{number}-{:032x}", marker.prefix, random_number());
        let marker = Marker { location: marker.location.to_owned(), blob };
        store.prepare_locked(number, &marker)?;
        match transaction(&marker) {
            TransactionOutcome::Committed => publish(store, number),
            TransactionOutcome::Refused(reason) => match store.withdraw_locked(number) {
                Ok(_) => Err(reason),
                Err(error) => {
                    let reason = format!(
                        "its transaction of blobs was refused: {reason}; the batch was not opened again: {error}"
                    );
                    Err(still_prepared(number, &reason))
                }
            },
            TransactionOutcome::Unknown(error) => {
                let reason =
                    format!("it is not known whether its transaction of blobs is committed: {error}");
                Err(still_prepared(number, &reason))
            }
        }
    }

    /// Publishes a prepared batch if `is_committed` returns true, and otherwise makes it an open
    /// batch again. `is_committed` returns whether the transaction of the marker is committed; if
    /// not, it also makes a later commit of the transaction impossible. Returns the state of the
    /// batch, and the marker. `None` if the batch is not prepared.
    ///
    /// # Errors
    /// `Busy` if a server has the store open, or if a process uses the batch; `PermissionDenied` if
    /// the batch belongs to another user, because this user has chosen the location; the errors of
    /// `is_committed` and of [`commit`](Self::commit). Then the batch is still prepared.
    pub fn settle(
        &self,
        number: u64,
        is_committed: impl FnOnce(&Marker) -> Result<bool>,
    ) -> Result<Option<(BatchSummary, Marker)>> {
        self.with_prepared(number, |store, marker| {
            check_user(store, number)?;
            let summary = match is_committed(&marker)? {
                true => publish(store, number)?,
                false => store.withdraw_locked(number)?.summary(),
            };
            Ok((summary, marker))
        })
    }

    /// Makes a prepared batch an open batch again, also if its transaction is committed. Returns
    /// the state of the batch, or `None` if the batch is not prepared. No location is opened, so
    /// the batch may belong to another user.
    ///
    /// # Errors
    /// `Busy` if a server has the store open, or if a process uses the batch; the errors of files.
    pub fn withdraw_without_blobs(&self, number: u64) -> Result<Option<BatchSummary>> {
        self.with_prepared(number, |store, _| Ok(store.withdraw_locked(number)?.summary()))
    }

    /// Locks a batch and calls `end` with its marker. `None` if the batch is not prepared.
    fn with_prepared<T>(
        &self,
        number: u64,
        end: impl FnOnce(&BatchStore, Marker) -> Result<T>,
    ) -> Result<Option<T>> {
        let record = self.batches()?.into_iter().find(|batch| batch.number == number);
        if !record.is_some_and(|record| record.is_prepared()) {
            return Ok(None);
        }
        let store = self.store_for_blobs(number)?;
        let _locks = self.lock_with_parts(number)?;
        let BatchState::Prepared(prepared) = store.primary().batch(number)?.state else { return Ok(None) };
        end(store, prepared.marker).map(Some)
    }

    /// Returns the store, if this process has it open.
    fn store_for_blobs(&self, number: u64) -> Result<&BatchStore> {
        self.own_store().ok_or_else(|| {
            let reason = "a server has the store open, and does not execute commits with transactions of blobs: \
                          stop it first";
            failed(ErrorKind::Busy, number, reason)
        })
    }
}

/// Fails if a batch belongs to another user, and not to that of this process.
fn check_user(store: &BatchStore, number: u64) -> Result<()> {
    match store.primary().batch(number)?.caller.uid == rustix::process::geteuid().as_raw() {
        true => Ok(()),
        false => Err(failed(ErrorKind::PermissionDenied, number, "it is a batch of another user")),
    }
}

fn check_not_submitted(record: &BatchRecord) -> Result<()> {
    match record.state {
        BatchState::Submitted { .. } => {
            let reason = "it is submitted, so it is committed without a transaction of blobs";
            Err(failed(ErrorKind::InvalidInput, record.number, reason))
        }
        _ => Ok(()),
    }
}

fn publish(store: &BatchStore, number: u64) -> Result<BatchSummary> {
    match store.publish_locked(number) {
        Ok(record) => Ok(record.summary()),
        Err(error) => {
            let reason = format!(
                "its transaction of blobs is committed, but its files were not published: {error}; repeat \
                 \"quell batch commit\" to publish them"
            );
            Err(failed(error.kind, number, &reason))
        }
    }
}

fn still_prepared(number: u64, reason: &str) -> Error {
    let reason = format!(
        "{reason}; the batch stays prepared: repeat \"quell batch commit\", or discard it with \
         \"quell batch abort\""
    );
    failed(ErrorKind::Unavailable, number, &reason)
}

fn failed(kind: ErrorKind, number: u64, reason: &str) -> Error {
    let source = Some(reason.to_owned().into());
    Error { source, ..Error::new(kind, "commit batch", number.to_string()) }
}
