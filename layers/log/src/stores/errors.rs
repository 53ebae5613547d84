//! Errors for stores that cannot be used together.

use quell_vfs::{Error, ErrorKind};

use crate::format::Member;

/// Returns an error whose source is the whole message for the user.
pub(crate) fn refused(subject: &[u8], reason: String) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::InvalidInput, "open", subject) }
}

/// Returns the error for a store that does not belong to the other stores.
pub(crate) fn not_a_member(path: &[u8]) -> Error {
    let shown = String::from_utf8_lossy(path);
    refused(
        path,
        format!(
            "{shown} is not part of this set of stores: `quell log rebalance STORE,... --add {shown}` makes it one"
        ),
    )
}

/// Returns the error for a member of the map that was not given by the caller.
pub(crate) fn not_given(member: &Member) -> Error {
    let path = String::from_utf8_lossy(&member.path);
    refused(
        &member.path,
        format!("the store {path} belongs to this set of stores, but was not given; give all of them"),
    )
}
