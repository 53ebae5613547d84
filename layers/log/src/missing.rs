//! A name that is not there is an answer, where it is asked for by name while others make and remove names.

use quell_fs::{ErrorKind, Result};

/// `None` for what is not there.
pub fn missing<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
