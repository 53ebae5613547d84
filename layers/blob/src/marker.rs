//! Markers: blobs that record whether a transaction is committed, for a program that commits it
//! together with a change outside of the store.
//!
//! A transaction creates its marker, and fails if the marker exists. A program that does not know
//! the result of the transaction creates the marker itself, with other content. So a marker states
//! that its transaction is committed, or that it can never be committed.
//!
//! A missing marker is evidence only in the store in which the transaction was to be committed, and
//! another store can be at the location of this one later. So a store has an *identity*, a random
//! number in a blob, and the name of each marker contains the identity of its store. A transaction
//! that writes or reads a marker also compares the identity.

use quell_vfs::ErrorKind;
use quell_wire::blob::{Operation, Refusal};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};
use crate::retries::Retries;
use crate::store::Store;
use crate::transaction::Transaction;

/// The content of the marker of a committed transaction.
const COMMITTED: &[u8] = b"committed";
/// The content of the marker of a transaction that can never be committed.
const ABORTED: &[u8] = b"aborted";
/// The name of the blob with the identity, after the prefix of the markers.
const IDENTITY: &str = "identity";
/// The number of hexadecimal digits of an identity.
const IDENTITY_DIGITS: usize = 32;

/// The result of a transaction with a marker.
#[derive(Debug)]
pub enum MarkerOutcome {
    /// The transaction is committed, and the marker exists.
    Committed,
    /// The transaction is not committed, and never will be.
    Refused(Error),
    /// It is not known whether the transaction is committed.
    Unknown(Error),
}

/// The result of an attempt to commit.
enum Attempt {
    /// Nothing was committed, because of this error.
    Failed(Error),
    /// The transaction may be committed nevertheless.
    Uncertain(Error),
}

impl Store {
    /// Returns the beginning of the names of markers in this store: `prefix`, the identity of the
    /// store as 32 hexadecimal digits, and a slash. The first call for a prefix creates the blob
    /// with the identity, whose name is `prefix` and `identity`.
    ///
    /// # Errors
    /// `Damaged` if this blob has other content; the errors of commits.
    pub fn marker_prefix(&self, prefix: &str) -> Result<String> {
        let blob = format!("{prefix}{IDENTITY}");
        let new = new_identity()?;
        let identity = Retries::default().repeat(|| {
            let mut transaction = self.begin()?;
            if let Some(found) = read_identity(&mut transaction, &blob)? {
                return Ok(found);
            }
            transaction.create_new(&blob)?;
            transaction.write(&blob, 0, new.as_bytes())?;
            // If the result of the commit is not known, the next call finds the blob.
            transaction.commit().map(|_| new.clone())
        })?;
        Ok(format!("{prefix}{identity}/"))
    }

    /// Fails unless this store has the identity in the name of a marker.
    fn check_identity(&self, transaction: &mut Transaction, marker: &str) -> Result<()> {
        let failed = |reason: String| {
            let error = quell_vfs::Error::new(ErrorKind::InvalidInput, "use the marker", marker);
            Err(quell_vfs::Error { source: Some(reason.into()), ..error }.into())
        };
        let Some((prefix, expected)) = identity_of(marker) else {
            return failed("its name does not contain the identity of a store of blobs".to_owned());
        };
        let found = read_identity(transaction, &format!("{prefix}{IDENTITY}"))?;
        if found.as_deref() == Some(expected) {
            return Ok(());
        }
        let found = found.map_or_else(|| "no identity".to_owned(), |found| format!("the identity {found}"));
        failed(format!("the store of blobs at {} is another one: it has {found}", self.location()))
    }

    /// Runs `body` with a transaction and commits it together with its marker, the blob `marker`.
    /// Both are repeated after a conflict, as with [`transact`](Store::transact). The name of the
    /// marker begins with the [`marker_prefix`](Store::marker_prefix) of this store. If the result
    /// of a commit is not known, [`resolve_marker`](Store::resolve_marker) is called once;
    /// `Unknown` if that fails, too.
    pub fn commit_with_marker(
        &self,
        marker: &str,
        retries: &Retries,
        mut body: impl FnMut(&mut Transaction) -> Result<()>,
    ) -> MarkerOutcome {
        let mut last = None;
        // `repeat` ends with the first attempt whose result is not certain.
        let repeated = retries.repeat(|| match self.attempt(marker, &mut body) {
            Ok(()) => Ok(true),
            Err(Attempt::Failed(error)) => Err(error),
            Err(Attempt::Uncertain(error)) => {
                last = Some(error);
                Ok(false)
            }
        });
        let error = match (repeated, last) {
            (Ok(true), _) => return MarkerOutcome::Committed,
            (Err(error), _) => return MarkerOutcome::Refused(error),
            (Ok(false), None) => unreachable!("an uncertain attempt has an error"),
            (Ok(false), Some(error)) => error,
        };
        match self.resolve_marker(marker) {
            Ok(true) => MarkerOutcome::Committed,
            Ok(false) => MarkerOutcome::Refused(error),
            Err(_) => MarkerOutcome::Unknown(error),
        }
    }

    fn attempt(
        &self,
        marker: &str,
        body: &mut dyn FnMut(&mut Transaction) -> Result<()>,
    ) -> std::result::Result<(), Attempt> {
        let mut transaction = self.begin().map_err(Attempt::Failed)?;
        self.check_identity(&mut transaction, marker).map_err(Attempt::Failed)?;
        body(&mut transaction).map_err(Attempt::Failed)?;
        write_marker(&mut transaction, marker, COMMITTED).map_err(Attempt::Failed)?;
        match transaction.commit() {
            Ok(_) => Ok(()),
            Err(error) if is_certain(&error) => Err(Attempt::Failed(error)),
            Err(error) => Err(Attempt::Uncertain(error)),
        }
    }

    /// Returns whether the transaction of a marker is committed. If it is not, the call creates the
    /// marker itself, so that the transaction cannot be committed later. Such a marker must not be
    /// deleted as long as a process or server may still execute the transaction.
    ///
    /// # Errors
    /// `InvalidInput` if this store does not have the identity in the name of the marker; `Damaged`
    /// if the blob has content that is not that of a marker; the errors of commits.
    pub fn resolve_marker(&self, marker: &str) -> Result<bool> {
        // If the transaction is committed after the call of `stat`, this commit fails with a
        // conflict, and `repeat` looks for the marker again.
        Retries::default().repeat(|| {
            let mut transaction = self.begin()?;
            self.check_identity(&mut transaction, marker)?;
            if let Some(stat) = transaction.stat(marker)? {
                let mut content = [0; COMMITTED.len()];
                let length = transaction.read(marker, 0, &mut content)?;
                return match &content[..length] {
                    COMMITTED if stat.size_bytes == COMMITTED.len() as u64 => Ok(true),
                    ABORTED => Ok(false),
                    _ => {
                        let source = Some("the blob is not a marker".into());
                        let error = quell_vfs::Error::new(ErrorKind::Damaged, "read the marker", marker);
                        Err(quell_vfs::Error { source, ..error }.into())
                    }
                };
            }
            write_marker(&mut transaction, marker, ABORTED)?;
            match transaction.commit() {
                Ok(_) => Ok(false),
                // The call can be repeated: it also finds a marker that it has created itself.
                Err(error) => Err(error),
            }
        })
    }

    /// Deletes the marker of a committed transaction. The change outside of the store must be
    /// durable before.
    ///
    /// # Errors
    /// The errors of commits. A marker that does not exist is no error.
    pub fn remove_marker(&self, marker: &str) -> Result<()> {
        match self.delete(marker) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            deleted => deleted,
        }
    }
}

/// Returns a random identity.
fn new_identity() -> Result<String> {
    let mut random = [0; IDENTITY_DIGITS / 2];
    getrandom(&mut random, GetRandomFlags::empty())
        .map_err(|e| quell_vfs::Error::from_io(e.into(), "draw a random number", ""))?;
    Ok(format!("{:0IDENTITY_DIGITS$x}", u128::from_ne_bytes(random)))
}

fn is_identity(text: &str) -> bool {
    text.len() == IDENTITY_DIGITS && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the prefix and the identity in the name of a marker.
fn identity_of(marker: &str) -> Option<(&str, &str)> {
    let (beginning, _) = marker.rsplit_once('/')?;
    let (prefix, identity) = beginning.split_at_checked(beginning.len().checked_sub(IDENTITY_DIGITS)?)?;
    is_identity(identity).then_some((prefix, identity))
}

/// Returns the identity in a blob, or `None` if the blob does not exist.
fn read_identity(transaction: &mut Transaction, blob: &str) -> Result<Option<String>> {
    let Some(stat) = transaction.stat(blob)? else { return Ok(None) };
    let mut content = [0; IDENTITY_DIGITS];
    let length = transaction.read(blob, 0, &mut content)?;
    let text = std::str::from_utf8(&content[..length]).ok().filter(|text| is_identity(text));
    match text {
        Some(text) if stat.size_bytes == IDENTITY_DIGITS as u64 => Ok(Some(text.to_owned())),
        _ => {
            let source = Some("the blob is not the identity of a store".into());
            let error = quell_vfs::Error::new(ErrorKind::Damaged, "read the identity", blob);
            Err(quell_vfs::Error { source, ..error }.into())
        }
    }
}

fn write_marker(transaction: &mut Transaction, marker: &str, content: &[u8]) -> Result<()> {
    transaction.create_new(marker)?;
    transaction.add(Operation::Write { name: marker.into(), offset: 0, data: content.to_vec() })
}

/// Returns whether the transaction that failed with this error has certainly changed nothing.
fn is_certain(error: &Error) -> bool {
    match error {
        Error::Refused(Refusal::Failed { operation, .. }) => operation.is_some(),
        Error::Refused(
            Refusal::Conflict(_)
            | Refusal::SnapshotTooOld
            | Refusal::Different { .. }
            | Refusal::Overflow { .. }
            | Refusal::Locked { .. }
            | Refusal::Aborted,
        ) => true,
        Error::Store(_) => false,
    }
}
