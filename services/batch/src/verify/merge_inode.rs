//! The changes of an inode by a batch and by others since the snapshot, merged field by field.

use crate::batch::ConflictReason;
use crate::entry::{Content, Inode};

/// Returns the inode with the changes of both sides, except the number of names, which is that of
/// `current`.
///
/// # Errors
/// `AttributeChanged` if both have changed one field to different values.
pub(super) fn merge(before: &Inode, current: &Inode, batch: &Inode) -> Result<Inode, ConflictReason> {
    Ok(Inode {
        number: current.number,
        mode: field(&before.mode, &current.mode, &batch.mode)?,
        uid: field(&before.uid, &current.uid, &batch.uid)?,
        gid: field(&before.gid, &current.gid, &batch.gid)?,
        links: current.links,
        size_bytes: field(&before.size_bytes, &current.size_bytes, &batch.size_bytes)?,
        modified: match batch.modified == before.modified {
            true => current.modified,
            false => current.modified.max(batch.modified),
        },
        changed: current.changed.max(batch.changed),
        content: content(before, current, batch)?,
        xattrs: field(&before.xattrs, &current.xattrs, &batch.xattrs)?,
    })
}

fn content(before: &Inode, current: &Inode, batch: &Inode) -> Result<Content, ConflictReason> {
    // Two changes of the size with one content, for example two appends, are in conflict as well.
    field(&before.content, &current.content, &batch.content)
}

fn field<T: PartialEq + Clone>(before: &T, current: &T, batch: &T) -> Result<T, ConflictReason> {
    match (batch == before, current == before) {
        (true, _) => Ok(current.clone()),
        (false, true) => Ok(batch.clone()),
        (false, false) if batch == current => Ok(batch.clone()),
        (false, false) => Err(ConflictReason::AttributeChanged),
    }
}
