//! Errors for stores that cannot be used together.

use quell_vfs::{Error, ErrorKind, printable};

use crate::format::Member;

/// Returns an error whose source is the whole message for the user.
pub(crate) fn refused(subject: &[u8], reason: String) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::InvalidInput, "open", subject) }
}

/// Returns the error for a store that does not belong to the other stores.
pub(crate) fn not_a_member(path: &[u8]) -> Error {
    let shown = printable(path);
    refused(
        path,
        format!(
            "{shown} is not part of this set of stores; to add it: quell log rebalance STORE,... --add {shown}"
        ),
    )
}

/// Returns the error for a member of the map that was not given by the caller.
pub(crate) fn not_given(member: &Member) -> Error {
    let path = printable(&member.path);
    refused(
        &member.path,
        format!("the store {path} belongs to this set of stores, but was not given; give all of them"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_one_line_whatever_the_stores_are_named() {
        let path = b"/two\nlines".to_vec();
        let member = Member { number: 1, is_draining: false, path: path.clone() };
        for refused in [not_a_member(&path), not_given(&member)] {
            let message = refused.to_string();
            assert!(!message.contains('\n') && message.matches("/two\\nlines").count() >= 2, "{message}");
        }
    }
}
