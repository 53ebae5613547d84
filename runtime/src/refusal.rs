//! The error type: a message, and whether the user can correct the input.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The reason why a directory or a pool cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The input names something that does not exist, exists already, or is damaged.
    WrongInput(String),
    /// The system does not allow the operation.
    Cannot(String),
}

impl Refusal {
    /// Returns the error for a failed system call on a path.
    pub(crate) fn from_io(path: &Path, error: &std::io::Error) -> Refusal {
        Refusal::Cannot(format!("{}: {error}", shown(path)))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Refusal::WrongInput(message) | Refusal::Cannot(message)) = self;
        f.write_str(message)
    }
}

impl std::error::Error for Refusal {}

/// Returns a path for a message: on one line, and without control characters.
pub(crate) fn shown(path: impl AsRef<Path>) -> String {
    quell_vfs::printable(path.as_ref().as_os_str().as_bytes())
}
