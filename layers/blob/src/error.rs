//! The errors of stores.

use std::fmt;

use quell_vfs::ErrorKind;
use quell_wire::blob::Refusal;

/// The result of an operation on a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason for which an operation on a store failed.
#[derive(Debug)]
pub enum Error {
    /// The commit of the transaction failed. The transaction has changed nothing, except in the
    /// cases that [`Refusal::Failed`] describes.
    Refused(Refusal),
    /// A read failed, or the store could not be opened, or the connection to its server failed.
    Store(quell_vfs::Error),
}

impl Error {
    /// Returns whether the same transaction can succeed if it is repeated from the beginning.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Error::Refused(refusal) => refusal.is_repeatable(),
            // The state of the snapshot may no longer be kept.
            Error::Store(error) => matches!(error.kind, ErrorKind::Stale | ErrorKind::Conflict),
        }
    }

    /// Returns the kind, which determines the reaction of a caller.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Refused(Refusal::Conflict(_) | Refusal::Different { .. }) => ErrorKind::Conflict,
            Error::Refused(Refusal::SnapshotTooOld) => ErrorKind::Stale,
            Error::Refused(Refusal::Locked { .. } | Refusal::Aborted) => ErrorKind::Busy,
            Error::Refused(Refusal::Overflow { .. }) => ErrorKind::InvalidInput,
            Error::Refused(Refusal::Failed { failure, .. }) => failure.kind(),
            Error::Store(error) => error.kind,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(refusal) => refusal.fmt(f),
            Error::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Refused(_) => None,
            Error::Store(error) => error.source(),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(refusal)
    }
}

impl From<quell_vfs::Error> for Error {
    fn from(error: quell_vfs::Error) -> Error {
        Error::Store(error)
    }
}
