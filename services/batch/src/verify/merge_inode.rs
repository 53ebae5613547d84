//! The changes of an inode by a batch and by others since the snapshot, merged field by field.

use crate::batch::ConflictReason;
use crate::entry::{Content, Inode};

/// Returns the inode with the changes of both sides, except the number of names and the times,
/// which are taken from `current`.
///
/// # Errors
/// `AttributeChanged` if both have changed one field to different values.
pub(super) fn merge(before: &Inode, current: &Inode, batch: &Inode) -> Result<Inode, ConflictReason> {
    let (content, size_bytes) = data(before, current, batch)?;
    Ok(Inode {
        number: current.number,
        mode: field(&before.mode, &current.mode, &batch.mode)?,
        uid: field(&before.uid, &current.uid, &batch.uid)?,
        gid: field(&before.gid, &current.gid, &batch.gid)?,
        links: current.links,
        size_bytes,
        modified: current.modified,
        changed: current.changed,
        content,
        xattrs: field(&before.xattrs, &current.xattrs, &batch.xattrs)?,
    })
}

/// Merges the content and the size, which are one field.
fn data(before: &Inode, current: &Inode, batch: &Inode) -> Result<(Content, u64), ConflictReason> {
    let of = |inode: &Inode| (inode.content.clone(), inode.size_bytes);
    let merged = field(&of(before), &of(current), &of(batch))?;
    // Other clients write to a data file in place, so that only its modification time changes.
    let is_written = matches!(before.content, Content::File(_)) && current.modified != before.modified;
    match is_written && of(batch) != of(before) {
        true => Err(ConflictReason::AttributeChanged),
        false => Ok(merged),
    }
}

fn field<T: PartialEq + Clone>(before: &T, current: &T, batch: &T) -> Result<T, ConflictReason> {
    match (batch == before, current == before) {
        (true, _) => Ok(current.clone()),
        (false, true) => Ok(batch.clone()),
        (false, false) if batch == current => Ok(batch.clone()),
        (false, false) => Err(ConflictReason::AttributeChanged),
    }
}
