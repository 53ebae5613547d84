//! Decides from the results of fstat(2) whether an opened file or directory is the indexed one.
//! Pure.

use quell_posix::Stat;
use quell_vfs::Attributes;

use crate::image::{Image, ROOT};

/// Returns whether the directory is the indexed directory itself, and not a copy: inode numbers and
/// status change times are valid only there. A root that changed after indexing counts as a copy,
/// too.
pub fn is_indexed_root(image: &Image, root: &Stat) -> bool {
    image.inode(ROOT) == Some(root.inode) && image.attributes(ROOT).changed == root.changed
}

/// Returns whether the permissions, and with `owners` also owner and group, equal the indexed ones.
pub fn same_access(indexed: &Attributes, now: &Stat, owners: bool) -> bool {
    let same_owners = (indexed.uid, indexed.gid) == (now.uid, now.gid);
    indexed.permissions == now.mode & 0o7777 && (same_owners || !owners)
}
