//! What is wrong with bytes that should be a format of ours, before it becomes an error of the contract.

use std::fmt;

use quell_fs::{Error, ErrorKind};

/// What is damaged, where, and how one can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    pub what: &'static str,
    /// In bytes from where decoding began.
    pub place: u64,
    pub reason: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.what, self.place, self.reason)
    }
}

impl std::error::Error for Damage {}

impl Damage {
    /// The error for the file `name`.
    pub(crate) fn of(self, name: impl AsRef<[u8]>) -> Error {
        Error { source: Some(Box::new(self)), ..Error::new(ErrorKind::Damaged, "read", name) }
    }
}
