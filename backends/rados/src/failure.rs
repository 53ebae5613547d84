//! The failures after which a log accepts no more records.

use std::fmt;

use quell_vfs::{Error, ErrorKind};

use crate::objects::is_refusal;

/// The cause of an error of kind `Unavailable`: another process has taken the log over, so this
/// process can no longer change it. Only the other process can find out whether the last commit of
/// this process was performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replaced {
    /// The epoch of the other process.
    pub epoch: u64,
}

impl Replaced {
    /// Returns the epoch of the other process, if this is the cause of an error.
    pub fn of(error: &Error) -> Option<Replaced> {
        error.source.as_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another server has taken the store over with epoch {}; end this one", self.epoch)
    }
}

impl std::error::Error for Replaced {}

/// A failure that is returned to several callers.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Replaced(Replaced),
    Other { kind: ErrorKind, reason: String },
}

impl Failure {
    /// Returns the failure that an error describes.
    pub(crate) fn of(error: &Error) -> Failure {
        match Replaced::of(error) {
            Some(replaced) => Failure::Replaced(replaced),
            None => Failure::Other { kind: error.kind, reason: error.to_string() },
        }
    }

    /// Returns the failure of an operation with an unknown result. Its kind never states that
    /// nothing was done.
    pub(crate) fn unknown(error: &Error) -> Failure {
        let kind = if is_refusal(error) { ErrorKind::Unavailable } else { error.kind };
        match Replaced::of(error) {
            Some(replaced) => Failure::Replaced(replaced),
            None => Failure::Other {
                kind,
                reason: format!("the result is not known: {error}; open the store again"),
            },
        }
    }

    pub(crate) fn error(&self, operation: &'static str, subject: &str) -> Error {
        match self {
            Failure::Replaced(replaced) => {
                let source = Some(Box::new(*replaced) as _);
                Error { source, ..Error::new(ErrorKind::Unavailable, operation, subject) }
            }
            Failure::Other { kind, reason } => {
                Error { source: Some(reason.clone().into()), ..Error::new(*kind, operation, subject) }
            }
        }
    }
}
