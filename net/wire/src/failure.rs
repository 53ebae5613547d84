//! An error of the contract, as a server sends it to a client.

use std::fmt;

use quell_vfs::{Error, ErrorKind, errno};
use serde::{Deserialize, Serialize};

/// The largest length of the text of a failure, in bytes. A longer text is truncated.
const TEXT_BYTES_MAX: usize = 512;

/// The kinds of the contract without a number of the operating system, in the order of their codes.
/// A code is never reused.
const KINDS: [ErrorKind; 19] = [
    ErrorKind::NotFound,
    ErrorKind::PermissionDenied,
    ErrorKind::NotADirectory,
    ErrorKind::IsADirectory,
    ErrorKind::ReadOnly,
    ErrorKind::NameTooLong,
    ErrorKind::InvalidInput,
    ErrorKind::Exists,
    ErrorKind::NotEmpty,
    ErrorKind::NoSpace,
    ErrorKind::Quota,
    ErrorKind::Unavailable,
    ErrorKind::TimedOut,
    ErrorKind::Interrupted,
    ErrorKind::Busy,
    ErrorKind::Conflict,
    ErrorKind::Stale,
    ErrorKind::Damaged,
    ErrorKind::Unsupported,
];

/// A failed operation: the kind of the error, and the cause in words if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The position of the kind in `KINDS`; the length of `KINDS` stands for an error number of the
    /// operating system.
    code: u8,
    /// The error number of the operating system, or 0.
    number: i32,
    text: String,
}

impl Failure {
    /// Returns the failure for an error that a server found.
    pub fn new(error: &Error) -> Failure {
        let position = KINDS.iter().position(|kind| *kind == error.kind);
        let number = if let ErrorKind::Os(number) = error.kind { number } else { 0 };
        let mut text = error.source.as_ref().map_or(String::new(), |cause| cause.to_string());
        if text.len() > TEXT_BYTES_MAX {
            let end = (0..=TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
        }
        Failure { code: position.unwrap_or(KINDS.len()) as u8, number, text }
    }

    /// Returns the kind. A code of a later version becomes EIO.
    pub fn kind(&self) -> ErrorKind {
        match KINDS.get(usize::from(self.code)) {
            Some(kind) => *kind,
            None if self.number > 0 => ErrorKind::Os(self.number),
            None => ErrorKind::Os(errno::EIO),
        }
    }

    /// Returns the error for a caller: `operation` on `subject` failed.
    pub fn into_error(self, operation: &'static str, subject: &[u8]) -> Error {
        let source = if self.text.is_empty() { None } else { Some(self.text.clone().into()) };
        Error { source, ..Error::new(self.kind(), operation, subject) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(&error)
    }
}

impl From<ErrorKind> for Failure {
    fn from(kind: ErrorKind) -> Failure {
        Failure::new(&Error::new(kind, "", ""))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clone().into_error("request", b"").fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_transfer() {
        let others = [ErrorKind::Os(errno::ENXIO), ErrorKind::Os(errno::ELOOP)];
        for kind in KINDS.into_iter().chain(others) {
            assert_eq!(Failure::from(kind).kind(), kind);
        }
        // The kinds of the contract that have a number of their own are all in the table.
        for number in 1..134 {
            let kind = ErrorKind::from_errno(number);
            assert_eq!(Failure::from(kind).kind(), kind, "error number {number}");
        }
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let source = Some("ä".repeat(TEXT_BYTES_MAX).into());
        let long = Error { source, ..Error::new(ErrorKind::Busy, "rename", "a") };
        let failure = Failure::new(&long);
        assert_eq!(failure.text.len(), TEXT_BYTES_MAX);
        assert!(failure.into_error("rename", b"a").to_string().starts_with("rename a: "));
    }
}
