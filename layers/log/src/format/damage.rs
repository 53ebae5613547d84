//! Describes damaged bytes of a log format, before they become an error of the contract.

use std::fmt;

use quell_vfs::{Error, ErrorKind};

/// The damaged object, the position of the damage, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogDamage {
    /// The name of the damaged object.
    pub object: &'static str,
    /// The offset in bytes from where decoding began.
    pub offset: u64,
    /// The reason why the object is damaged.
    pub reason: &'static str,
}

impl fmt::Display for LogDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.object, self.offset, self.reason)
    }
}

impl std::error::Error for LogDamage {}

impl LogDamage {
    /// Returns the contract's error for the file `name`.
    pub(crate) fn in_file(self, name: impl AsRef<[u8]>) -> Error {
        Error { source: Some(Box::new(self)), ..Error::new(ErrorKind::Damaged, "read", name) }
    }
}
