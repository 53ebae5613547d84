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

impl Usage {
    /// Returns the sum of two uses.
    pub(crate) fn with(self, other: Usage) -> Usage {
        Usage {
            inodes: self.inodes.saturating_add(other.inodes),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Returns the use without `other`, which is a part of it.
    fn without(self, other: Usage) -> Usage {
        Usage {
            inodes: self.inodes.saturating_sub(other.inodes),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// The use of each owner of inodes, and the use of all owners.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct UsageOfUsers {
    users: BTreeMap<u32, Usage>,
    total: Usage,
}

impl UsageOfUsers {
    /// Returns the use of a user.
    pub(crate) fn of(&self, uid: u32) -> Usage {
        self.users.get(&uid).copied().unwrap_or_default()
    }

    /// Returns the use of all users.
    pub(crate) fn total(&self) -> Usage {
        self.total
    }

    /// Returns the users, in ascending order, with their use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Usage)> {
        self.users.iter().map(|(uid, usage)| (*uid, *usage))
    }

    /// Replaces the use of users. A user without inodes has no use.
    pub(crate) fn set(&mut self, new: &[(u32, Usage)]) {
        for (uid, new) in new {
            self.total = self.total.without(self.of(*uid)).with(*new);
            match *new == Usage::default() {
                true => self.users.remove(uid),
                false => self.users.insert(*uid, *new),
            };
        }
    }
}

impl FromIterator<(u32, Usage)> for UsageOfUsers {
    fn from_iter<I: IntoIterator<Item = (u32, Usage)>>(users: I) -> UsageOfUsers {
        let mut usage = UsageOfUsers::default();
        users.into_iter().for_each(|user| usage.set(&[user]));
        usage
    }
}

/// The change of the use of one user, or of several users together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Difference {
    pub(crate) inodes: i64,
    pub(crate) bytes: i128,
}

impl Difference {
    /// Returns the sum of two changes, limited to the range of its types, because a message can
    /// state any numbers.
    fn with(self, other: Difference) -> Difference {
        Difference {
            inodes: self.inodes.saturating_add(other.inodes),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Returns the use after the change. A count does not become less than 0: wrong counts must not
    /// make a removal fail. The check of the image finds them.
    pub(crate) fn applied_to(self, before: Usage) -> Usage {
        Usage {
            inodes: before.inodes.saturating_add_signed(self.inodes),
            bytes: before.bytes.saturating_add_signed(self.bytes),
        }
    }

    /// Returns the counts that increase.
    pub(crate) fn increase(self) -> Usage {
        self.applied_to(Usage::default())
    }
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

    /// Adds the changes of the next part of a batch.
    pub(crate) fn append(&mut self, other: &UsageChanges) {
        for (uid, difference) in &other.0 {
            let user = self.0.entry(*uid).or_default();
            *user = user.with(*difference);
        }
    }

    /// Returns the change of each user.
    pub(crate) fn of_users(&self) -> impl Iterator<Item = (u32, Difference)> {
        self.0.iter().map(|(uid, difference)| (*uid, *difference))
    }

    /// Returns the change of a user.
    pub(crate) fn of(&self, uid: u32) -> Difference {
        self.0.get(&uid).copied().unwrap_or_default()
    }

    /// Returns the sum of the changes of all users.
    pub(crate) fn total(&self) -> Difference {
        self.0.values().fold(Difference::default(), |sum, difference| sum.with(*difference))
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

    /// Returns the new use of each user whose use changes.
    pub(crate) fn applied_to(&self, usage: &UsageOfUsers) -> Vec<(u32, Usage)> {
        let is_change = |(_, difference): &(u32, Difference)| *difference != Difference::default();
        let new = |(uid, difference): (u32, Difference)| (uid, difference.applied_to(usage.of(uid)));
        self.of_users().filter(is_change).map(new).collect()
    }
}

/// Returns the bytes of an inode that count for its owner.
fn counted_bytes(inode: &Inode) -> u64 {
    match inode.kind() {
        Ok(Kind::File) => inode.size_bytes,
        _ => 0,
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
        assert_eq!(changes.applied_to(&UsageOfUsers::default()), expected);
    }

    #[test]
    fn a_new_owner_gets_the_use_of_the_old_one() {
        let mut usage = UsageOfUsers::from_iter([(7, Usage { inodes: 1, bytes: 3 })]);
        let mut changes = UsageChanges::default();
        changes.remove(&inode(Kind::File, 7, 3));
        changes.add(&inode(Kind::File, 8, 3));
        usage.set(&changes.applied_to(&usage));
        assert_eq!(usage, UsageOfUsers::from_iter([(8, Usage { inodes: 1, bytes: 3 })]));
        assert_eq!(usage.total(), Usage { inodes: 1, bytes: 3 });
    }

    #[test]
    fn users_without_a_change_are_left_out_and_counts_do_not_become_negative() {
        let mut changes = UsageChanges::default();
        changes.remove(&inode(Kind::File, 7, 3));
        changes.add(&inode(Kind::File, 7, 3));
        assert_eq!(changes.applied_to(&UsageOfUsers::default()), []);
        changes.remove(&inode(Kind::File, 7, 3));
        assert_eq!(changes.applied_to(&UsageOfUsers::default()), [(7, Usage::default())]);
    }
}
