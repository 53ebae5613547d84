//! Lookups of names that other processes may create and remove at any time.

use quell_vfs::{ErrorKind, Result};

/// Turns a `NotFound` error into `None`.
pub(crate) fn none_if_not_found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
