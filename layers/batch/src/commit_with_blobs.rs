//! The commit of a batch together with a transaction of a store of blobs: both are committed, or
//! neither (docs/decisions/0053-batches-with-blobs.md).
//!
//! The batch is prepared first. Then the caller commits the transaction, which also creates the
//! *marker*, a blob. If the transaction is committed, the batch is published, and otherwise it is
//! open again. This crate does not depend on the crate for blobs: the caller executes the
//! transaction and reads the marker.

use quell_batch_service::{BatchSummary, Marker, SummaryState};
use quell_vfs::{Error, ErrorKind, Result};

use crate::access::StoreAccess;
use crate::random::random_number;

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
    /// which the caller of [`StoreAccess::resolve_prepared`] recognizes another store at the
    /// location.
    pub prefix: &'a str,
}

impl StoreAccess {
    /// Checks the conditions of [`commit_with`](Self::commit_with) that are known before its
    /// verification, so that no store of blobs is opened, or created, for a batch that cannot be
    /// committed.
    ///
    /// # Errors
    /// `Busy` if the batch is prepared; `PermissionDenied` if it belongs to another user;
    /// `InvalidInput` if it is submitted, if it has ended, or if it is a part; `NotFound` if there
    /// is no such batch, or if it is one of another user in a store of another user.
    pub fn check_commit_with(&self, number: u64) -> Result<()> {
        let batch = self.summary(number)?;
        check_user(&batch)?;
        if batch.state == SummaryState::Submitted {
            let reason = "it is submitted, so it is committed without a transaction of blobs";
            return Err(failed(ErrorKind::InvalidInput, number, reason));
        }
        match batch.state.obstacle() {
            None => Ok(()),
            Some((kind, reason)) => Err(failed(kind, number, &reason)),
        }
    }

    /// Publishes a batch together with a transaction. `transaction` gets the marker, and commits a
    /// transaction that creates this marker, and that fails if the marker exists. While it runs,
    /// the batch is prepared. If this process ends meanwhile, or it is not known whether the
    /// transaction is committed, the batch stays prepared until a call of
    /// [`resolve_prepared`](Self::resolve_prepared).
    ///
    /// # Errors
    /// `Busy` if a process uses the batch or one of its parts, if the batch is prepared, or if it
    /// has conflicts; `PermissionDenied` if the batch belongs to another user; `InvalidInput` if it
    /// is submitted; the error of a transaction that was refused; the errors of
    /// [`commit`](Self::commit). The batch is still prepared after an unknown decision, and if it
    /// cannot be published or made open again. After other errors, it is not prepared, unless the
    /// error is one of the store or of its server: then it can be.
    pub fn commit_with(
        &self,
        number: u64,
        marker: MarkerLocation<'_>,
        transaction: impl FnOnce(&Marker) -> TransactionOutcome,
    ) -> Result<BatchSummary> {
        check_user(&self.summary(number)?)?;
        let _locks = self.lock_with_parts(number)?;
        self.check_parts_closed(number)?;
        self.check_commit_with(number)?;
        let (store, random) = (self.store_number(), random_number());
        let blob = format!("{}{store:032x}-{number}-{random:032x}", marker.prefix);
        let marker = Marker { location: marker.location.to_owned(), blob };
        self.prepare_locked(number, &marker)?;
        match transaction(&marker) {
            TransactionOutcome::Committed => self.publish(number, &marker),
            TransactionOutcome::Refused(reason) => match self.roll_back_locked(number, &marker) {
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
    /// `Busy` if a process uses the batch; `PermissionDenied` if the batch belongs to another user,
    /// because this user has chosen the location; the errors of `is_committed` and of
    /// [`commit`](Self::commit). Then the batch is still prepared.
    pub fn resolve_prepared(
        &self,
        number: u64,
        is_committed: impl FnOnce(&Marker) -> Result<bool>,
    ) -> Result<Option<(BatchSummary, Marker)>> {
        self.with_prepared(number, |batch, marker| {
            check_user(&batch)?;
            let summary = match is_committed(&marker)? {
                true => self.publish(number, &marker)?,
                false => self.roll_back_locked(number, &marker)?,
            };
            Ok((summary, marker))
        })
    }

    /// Makes a prepared batch an open batch again, also if its transaction is committed. Returns
    /// the state of the batch, or `None` if the batch is not prepared. No location is opened, so
    /// the batch may belong to another user.
    ///
    /// # Errors
    /// `Busy` if a process uses the batch; the errors of files.
    pub fn roll_back_without_blobs(&self, number: u64) -> Result<Option<BatchSummary>> {
        self.with_prepared(number, |_, marker| self.roll_back_locked(number, &marker))
    }

    /// Locks a batch and calls `end` with the batch and its marker. `None` if the batch is not
    /// prepared.
    fn with_prepared<T>(
        &self,
        number: u64,
        end: impl FnOnce(BatchSummary, Marker) -> Result<T>,
    ) -> Result<Option<T>> {
        if !self.find(number)?.is_some_and(|batch| batch.is_prepared()) {
            return Ok(None);
        }
        let _locks = self.lock_with_parts(number)?;
        let batch = self.summary(number)?;
        let SummaryState::Prepared { marker } = &batch.state else { return Ok(None) };
        let marker = marker.clone();
        end(batch, marker).map(Some)
    }

    fn find(&self, number: u64) -> Result<Option<BatchSummary>> {
        Ok(self.batches()?.into_iter().find(|batch| batch.number == number))
    }

    fn summary(&self, number: u64) -> Result<BatchSummary> {
        self.find(number)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "find batch", number.to_string()))
    }

    fn publish(&self, number: u64, marker: &Marker) -> Result<BatchSummary> {
        self.publish_locked(number, marker).map_err(|error| {
            let reason = format!(
                "its transaction of blobs is committed, but its files were not published: {error}; repeat \
                 \"quell batch commit\" to publish them"
            );
            failed(error.kind, number, &reason)
        })
    }
}

/// Fails if a batch belongs to another user, and not to that of this process.
fn check_user(batch: &BatchSummary) -> Result<()> {
    match batch.uid == rustix::process::geteuid().as_raw() {
        true => Ok(()),
        false => Err(failed(ErrorKind::PermissionDenied, batch.number, "it is a batch of another user")),
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
