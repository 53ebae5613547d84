//! The permissions of the caller of a batch, as the kernel checks them for system calls.

use crate::batch::BatchCaller;
use crate::entry::Inode;

/// The rights of an access.
pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
const SEARCH: u32 = 1;
const STICKY: u32 = 0o1000;
const SET_USER_ID: u32 = 0o4000;
pub(crate) const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
const TYPE_BITS: u32 = 0o170_000;
const DIR_BITS: u32 = 0o040_000;
const FILE_BITS: u32 = 0o100_000;

impl BatchCaller {
    /// Returns whether the caller is a member of a group.
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns whether the caller has the access `wanted`: 4 to read, 2 to write, 1 to search.
    pub(crate) fn has_access(&self, inode: &Inode, wanted: u32) -> bool {
        let bits = match () {
            () if self.uid == 0 => return true,
            () if self.uid == inode.uid => inode.mode >> 6,
            () if self.is_in_group(inode.gid) => inode.mode >> 3,
            () => inode.mode,
        };
        bits & wanted == wanted
    }

    /// Returns whether the caller may look names up in a directory.
    pub(crate) fn may_search(&self, dir: &Inode) -> bool {
        self.has_access(dir, SEARCH)
    }

    /// Returns whether the caller may create names in a directory.
    pub(crate) fn may_change_names(&self, dir: &Inode) -> bool {
        self.has_access(dir, WRITE | SEARCH)
    }

    /// Returns whether the sticky bit of a directory lets the caller remove or rename an entry.
    pub fn may_remove(&self, dir: &Inode, entry: &Inode) -> bool {
        !self.needs_ownership(dir) || self.owns(entry)
    }

    /// Returns whether the caller may list a directory and change its names.
    pub fn may_list_and_change(&self, dir: &Inode) -> bool {
        self.has_access(dir, READ) && self.may_change_names(dir)
    }

    /// Returns whether the caller can remove and rename only the own entries of a directory,
    /// because of its sticky bit.
    pub fn needs_ownership(&self, dir: &Inode) -> bool {
        dir.mode & STICKY != 0 && !self.owns(dir)
    }

    /// Returns whether the caller may give a file another name, as the kernel decides with
    /// fs.protected_hardlinks: a file of another user must be a regular one that the caller may
    /// read and write, without set-id bits.
    pub(crate) fn may_link(&self, inode: &Inode) -> bool {
        let has_set_id = inode.mode & SET_USER_ID != 0
            || inode.mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID | GROUP_EXECUTE;
        let is_file = inode.mode & TYPE_BITS == FILE_BITS;
        self.owns(inode) || is_file && !has_set_id && self.has_access(inode, READ | WRITE)
    }

    /// Returns whether the caller may move a directory to another parent, which changes its entry
    /// `..`.
    pub(crate) fn may_move(&self, dir: &Inode) -> bool {
        self.uid == dir.uid || self.has_access(dir, WRITE)
    }

    /// Returns whether the caller may change attributes of an inode that only its owner may change.
    pub(crate) fn owns(&self, inode: &Inode) -> bool {
        self.uid == 0 || self.uid == inode.uid
    }

    /// Returns whether the caller, who may write to an inode, may change its extended attributes:
    /// only its owner may change those of a sticky directory (xattr(7)).
    pub(crate) fn may_change_xattrs(&self, inode: &Inode) -> bool {
        let is_sticky_dir = inode.mode & TYPE_BITS == DIR_BITS && inode.mode & STICKY != 0;
        self.owns(inode) || !is_sticky_dir
    }

    /// Returns whether the caller may change an inode from `before` to `after`.
    pub(crate) fn may_change(&self, before: &Inode, after: &Inode) -> bool {
        if self.uid == 0 {
            return true;
        }
        let owns = self.uid == before.uid;
        let may_write = owns || self.has_access(before, WRITE);
        let is_content_changed = before.content != after.content || before.size_bytes != after.size_bytes;
        // A write by another user than the owner removes the set-id bits.
        let mode_after_write = match is_content_changed {
            true if !owns => without_set_id(before.mode),
            _ => before.mode,
        };
        // A write by the owner removes the set-group-ID bit if the owner is not in the group of the
        // file.
        let keeps_set_group = is_content_changed
            && !self.is_in_group(after.gid)
            && without_set_id(after.mode) & SET_GROUP_ID != after.mode & SET_GROUP_ID;
        let are_attributes_changed = after.mode != mode_after_write || before.gid != after.gid;
        let is_group_permitted = before.gid == after.gid || self.is_in_group(after.gid);
        let is_set_group_permitted = after.mode & !before.mode & SET_GROUP_ID == 0
            || self.is_in_group(after.gid)
            || after.mode & TYPE_BITS == DIR_BITS;
        before.uid == after.uid
            && (owns || !are_attributes_changed)
            && is_group_permitted
            && is_set_group_permitted
            && !keeps_set_group
            && (may_write || !is_content_changed)
            && (may_write || before.modified == after.modified)
            && (may_write && self.may_change_xattrs(before) || before.xattrs == after.xattrs)
    }
}

/// Returns a mode without the set-id bits that a write removes.
fn without_set_id(mode: u32) -> u32 {
    match mode & GROUP_EXECUTE {
        0 => mode & !SET_USER_ID,
        _ => mode & !(SET_USER_ID | SET_GROUP_ID),
    }
}
