//! The use of a store by the owners of its inodes (docs/formats/batch.md). The use of a user is the
//! sum over all entries that are inodes of this user, so a change of entries changes it by the
//! difference between the new and the old entries.

use std::collections::BTreeMap;

use quell_vfs::Kind;
use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Inode};

/// The inodes that belong to a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// The number of inodes.
    pub inodes: u64,
    /// The sum of the sizes of the regular files.
    pub bytes: u128,
}

/// The use of each user who owns an inode.
pub(crate) type UsageOfUsers = BTreeMap<u32, Usage>;

/// The change of the use of one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Difference {
    inodes: i64,
    bytes: i128,
}

/// The changes of the use of users. Sums of 2^62 inodes of at most 2^64 bytes fit in the numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct UsageChanges(BTreeMap<u32, Difference>);

impl UsageChanges {
    /// Counts an entry that is added to the image.
    pub(crate) fn add(&mut self, entry: &Entry) {
        self.count(entry, 1);
    }

    /// Counts an entry that is removed from the image.
    pub(crate) fn remove(&mut self, entry: &Entry) {
        self.count(entry, -1);
    }

    /// Adds the changes of the next part of a batch. The sums are limited to the range of their
    /// types, because a message can state any numbers.
    pub(crate) fn append(&mut self, other: &UsageChanges) {
        for (uid, difference) in &other.0 {
            let user = self.0.entry(*uid).or_default();
            user.inodes = user.inodes.saturating_add(difference.inodes);
            user.bytes = user.bytes.saturating_add(difference.bytes);
        }
    }

    /// Removes the users whose use does not change.
    pub(crate) fn remove_unchanged(&mut self) {
        self.0.retain(|_, difference| *difference != Difference::default());
    }

    fn count(&mut self, entry: &Entry, sign: i64) {
        let Entry::Inode(inode) = entry else { return };
        let user = self.0.entry(inode.uid).or_default();
        user.inodes += sign;
        user.bytes += i128::from(sign) * i128::from(counted_bytes(inode));
    }

    /// Returns the new use of each user whose use changes. A count does not become less than 0:
    /// wrong counts must not make a removal fail. The check of the image finds them.
    pub(crate) fn applied_to(&self, usage: &UsageOfUsers) -> Vec<(u32, Usage)> {
        let is_change = |(_, difference): &(&u32, &Difference)| **difference != Difference::default();
        let new = |(uid, difference): (&u32, &Difference)| {
            let before = usage.get(uid).copied().unwrap_or_default();
            let inodes = before.inodes.saturating_add_signed(difference.inodes);
            let bytes = before.bytes.saturating_add_signed(difference.bytes);
            (*uid, Usage { inodes, bytes })
        };
        self.0.iter().filter(is_change).map(new).collect()
    }
}

/// Returns the bytes of an inode that count for its owner.
fn counted_bytes(inode: &Inode) -> u64 {
    match inode.kind() {
        Ok(Kind::File) => inode.size_bytes,
        _ => 0,
    }
}

/// Replaces the use of users. A user without inodes has no use.
pub(crate) fn set_usage(usage: &mut UsageOfUsers, new: &[(u32, Usage)]) {
    for (uid, new) in new {
        match *new == Usage::default() {
            true => usage.remove(uid),
            false => usage.insert(*uid, *new),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Content, Timestamp};

    fn inode(kind: Kind, uid: u32, size_bytes: u64) -> Entry {
        Entry::Inode(Inode {
            number: 5,
            mode: kind.mode_bits() | 0o644,
            uid,
            gid: 0,
            links: 1,
            size_bytes,
            modified: Timestamp(0, 0),
            changed: Timestamp(0, 0),
            content: Content::Empty,
            xattrs: Vec::new(),
        })
    }

    #[test]
    fn files_count_with_their_sizes_and_other_inodes_without() {
        let mut changes = UsageChanges::default();
        changes.add(&inode(Kind::File, 7, u64::MAX));
        changes.add(&inode(Kind::File, 7, u64::MAX));
        changes.add(&inode(Kind::Dir, 7, 9));
        changes.add(&inode(Kind::Symlink, 8, 4));
        changes.add(&Entry::Dir { inode: 5 });
        changes.add(&Entry::Link { inode: 5, type_bits: Kind::File.mode_bits() });
        let expected = vec![
            (7, Usage { inodes: 3, bytes: 2 * u128::from(u64::MAX) }),
            (8, Usage { inodes: 1, bytes: 0 }),
        ];
        assert_eq!(changes.applied_to(&UsageOfUsers::new()), expected);
    }

    #[test]
    fn a_new_owner_gets_the_use_of_the_old_one() {
        let mut usage = UsageOfUsers::from([(7, Usage { inodes: 1, bytes: 3 })]);
        let mut changes = UsageChanges::default();
        changes.remove(&inode(Kind::File, 7, 3));
        changes.add(&inode(Kind::File, 8, 3));
        let new = changes.applied_to(&usage);
        set_usage(&mut usage, &new);
        assert_eq!(usage, UsageOfUsers::from([(8, Usage { inodes: 1, bytes: 3 })]));
    }

    #[test]
    fn users_without_a_change_are_left_out_and_counts_do_not_become_negative() {
        let mut changes = UsageChanges::default();
        changes.remove(&inode(Kind::File, 7, 3));
        changes.add(&inode(Kind::File, 7, 3));
        assert_eq!(changes.applied_to(&UsageOfUsers::new()), []);
        changes.remove(&inode(Kind::File, 7, 3));
        assert_eq!(changes.applied_to(&UsageOfUsers::new()), [(7, Usage::default())]);
    }
}
