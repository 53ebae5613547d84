//! The permissions of the caller of a batch, as the kernel checks them for system calls.

use crate::batch::BatchCaller;
use crate::entry::Inode;

const WRITE: u32 = 2;
const SEARCH: u32 = 1;
const STICKY: u32 = 0o1000;

impl BatchCaller {
    /// Returns whether the caller is a member of a group.
    pub(super) fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns whether the caller has the access `wanted`: 4 to read, 2 to write, 1 to search.
    fn has_access(&self, inode: &Inode, wanted: u32) -> bool {
        let bits = match () {
            () if self.uid == 0 => return true,
            () if self.uid == inode.uid => inode.mode >> 6,
            () if self.is_in_group(inode.gid) => inode.mode >> 3,
            () => inode.mode,
        };
        bits & wanted == wanted
    }

    /// Returns whether the caller may look names up in a directory.
    pub(super) fn may_search(&self, dir: &Inode) -> bool {
        self.has_access(dir, SEARCH)
    }

    /// Returns whether the caller may create names in a directory.
    pub(super) fn may_change_names(&self, dir: &Inode) -> bool {
        self.has_access(dir, WRITE | SEARCH)
    }

    /// Returns whether the caller may remove or rename an entry of a directory.
    pub(super) fn may_remove(&self, dir: &Inode, entry: &Inode) -> bool {
        let owns = self.uid == 0 || self.uid == dir.uid || self.uid == entry.uid;
        self.may_change_names(dir) && (dir.mode & STICKY == 0 || owns)
    }

    /// Returns whether the caller may change an inode from `before` to `after`.
    pub(super) fn may_change(&self, before: &Inode, after: &Inode) -> bool {
        if self.uid == 0 {
            return true;
        }
        let owns = self.uid == before.uid;
        let is_content_changed = before.content != after.content || before.size_bytes != after.size_bytes;
        let are_attributes_changed = before.mode != after.mode || before.gid != after.gid;
        let is_group_permitted = before.gid == after.gid || self.is_in_group(after.gid);
        let may_write = self.has_access(before, WRITE);
        before.uid == after.uid
            && (owns || !are_attributes_changed)
            && is_group_permitted
            && (owns || may_write || !is_content_changed)
            && (owns || may_write || before.modified == after.modified)
            && (owns || may_write || before.xattrs == after.xattrs)
    }
}
