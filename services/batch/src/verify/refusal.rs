//! The error of a batch that is refused.

use quell_vfs::{Error, ErrorKind};

/// Returns the error of a batch that is refused.
pub(super) fn refused(reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::InvalidInput, "verify a batch", "") }
}
