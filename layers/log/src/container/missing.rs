//! Turns `NotFound` into `None`, for lookups of names that other processes may create and remove at
//! any time.

use quell_vfs::{ErrorKind, Result};

/// Returns `None` if the error is `NotFound`.
pub fn missing<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
