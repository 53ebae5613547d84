//! Functions on replies of members: their content, and owned copies.

use std::borrow::Cow;

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{Node, Reply};

/// Returns the same reply with owned bytes.
pub fn into_owned(reply: Reply<'_>) -> Reply<'static> {
    let own = |bytes: Cow<'_, [u8]>| Cow::Owned(bytes.into_owned());
    match reply {
        Reply::Done => Reply::Done,
        Reply::Found(found) => Reply::Found(found),
        Reply::Held(node) => Reply::Held(node),
        Reply::Elsewhere(id) => Reply::Elsewhere(id),
        Reply::Node(node) => Reply::Node(node),
        Reply::Name { dir, name } => Reply::Name { dir, name: own(name) },
        Reply::Entries(entries) => Reply::Entries(entries.into_owned()),
        Reply::Bytes(bytes) => Reply::Bytes(own(bytes)),
        Reply::Value(value) => Reply::Value(value.map(own)),
        Reply::Written(is_recorded) => Reply::Written(is_recorded),
        Reply::Inline { data, size_bytes } => Reply::Inline { data: own(data), size_bytes },
        Reply::InChunks => Reply::InChunks,
        Reply::Offset(offset) => Reply::Offset(offset),
        Reply::Space { total_bytes, free_bytes, available_bytes, file_system } => {
            Reply::Space { total_bytes, free_bytes, available_bytes, file_system }
        }
        Reply::Counters(counters) => Reply::Counters(counters),
        Reply::HasEntries(has_entries) => Reply::HasEntries(has_entries),
        Reply::Missing(files) => Reply::Missing(files),
        Reply::Prepared(existing) => Reply::Prepared(existing),
        Reply::Partitions(partitions) => Reply::Partitions(partitions),
        Reply::Placement(members) => Reply::Placement(members),
        Reply::Consistency(consistency) => Reply::Consistency(consistency),
        Reply::Committed(is_committed) => Reply::Committed(is_committed),
        Reply::Marks(marks) => Reply::Marks(marks),
        Reply::Lease { session, number } => Reply::Lease { session, number },
    }
}

/// Returns an error for a reply of a kind that does not belong to its request.
pub fn unexpected(reply: &Reply<'_>) -> Error {
    let source = Some(format!("an unexpected reply: {reply:?}").into());
    Error { source, ..Error::new(ErrorKind::Damaged, "read a reply", "") }
}

/// Returns the node in a reply.
pub fn node_of(reply: &Reply<'_>) -> Result<Node> {
    match reply {
        Reply::Node(node) | Reply::Held(node) => Ok(*node),
        other => Err(unexpected(other)),
    }
}
