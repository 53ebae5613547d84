//! Converts the errors of stores to errors of the contract.

use quell_vfs::{Error, ErrorKind};

/// Returns the error of an operation of the contract. If a blob is missing, another client has
/// removed the file.
pub(crate) fn failed(cause: quell_blob::Error, operation: &'static str, subject: &[u8]) -> Error {
    let kind = match cause.kind() {
        ErrorKind::NotFound => ErrorKind::Stale,
        kind => kind,
    };
    Error { source: Some(Box::new(cause)), ..Error::new(kind, operation, subject) }
}
