//! The cause of the failure of a call whose request was certainly not executed.

use std::fmt;

use quell_vfs::{Error, ErrorKind};

/// The reason, as a text.
#[derive(Debug)]
struct NotExecuted(String);

impl fmt::Display for NotExecuted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotExecuted {}

/// Returns the error of a call whose request was certainly not executed. `to`: the other side.
pub fn not_executed(kind: ErrorKind, to: &impl fmt::Display, reason: impl Into<String>) -> Error {
    let source = Some(NotExecuted(reason.into()).into());
    Error { source, ..Error::new(kind, "call", to.to_string()) }
}

/// Returns whether the request of a failed call was certainly not executed, so that it can be sent
/// again, also to another member.
pub fn was_not_executed(error: &Error) -> bool {
    error.source.as_ref().is_some_and(|source| source.is::<NotExecuted>())
}
