//! The state of a file, as far as metadata distinguishes it from other states of the file.

use crate::attributes::Time;

/// The state of a file, as far as a file system's metadata distinguishes it from other states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    /// The inode number.
    pub inode: u64,
    /// The number of hard links.
    pub nlink: u32,
    /// The size.
    pub size_bytes: u64,
    /// The time of the last change of the data.
    pub modified: Time,
    /// The time of the last change of the data or metadata.
    pub changed: Time,
}

impl FileState {
    /// Returns whether `later` has the same bytes. The status change time shows this: every write,
    /// and every rename of another file over this one, sets it, and no program can set it to a
    /// chosen value. It also changes when a hard link is created or removed, which is common in
    /// environments that share files. If only the link count differs and the inode number is the
    /// same, size and modification time are sufficient. `inodes`: the file system's inode numbers
    /// are persistent.
    pub fn is_same(&self, later: &FileState, inodes: bool) -> bool {
        let same_inode = self.inode == later.inode;
        let linked = inodes && same_inode && self.nlink != later.nlink;
        (same_inode || !inodes)
            && (self.size_bytes, self.modified) == (later.size_bytes, later.modified)
            && (same_status_change(self.changed, later.changed) || linked)
    }
}

/// A file system with timestamps in whole seconds may set the status change time when the last
/// write reaches its server, which may be after an index was built: on MooseFS, a file that was not
/// changed was refused right after an installation. On such a file system, a status change time up
/// to this many seconds later is accepted if everything else is equal.
const SETTLING_SECONDS: i64 = 2;

/// Returns whether two status change times belong to one state of a file.
pub fn same_status_change(before: Time, later: Time) -> bool {
    let whole_seconds = before.nanoseconds == 0 && later.nanoseconds == 0;
    let settled = before.seconds.checked_add(SETTLING_SECONDS).is_some_and(|last| later.seconds <= last);
    before == later || whole_seconds && later.seconds > before.seconds && settled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_change_time_of_whole_seconds_may_be_late() {
        let at = |seconds, nanoseconds| Time { seconds, nanoseconds };
        assert!(same_status_change(at(5, 0), at(5, 0)) && same_status_change(at(5, 0), at(7, 0)));
        assert!(!same_status_change(at(5, 0), at(8, 0)) && !same_status_change(at(5, 0), at(4, 0)));
        assert!(!same_status_change(at(5, 1), at(6, 0)) && !same_status_change(at(5, 0), at(5, 1)));
    }

    const TIME: Time = Time { seconds: 1, nanoseconds: 2 };
    const LATER: Time = Time { seconds: 1, nanoseconds: 3 };

    #[test]
    fn a_new_inode_or_status_change_time_is_a_change_and_a_new_link_is_none() {
        let file = FileState { inode: 7, nlink: 1, size_bytes: 10, modified: TIME, changed: TIME };
        for (what, later, inodes, same) in [
            ("itself", file, true, true),
            ("replaced", FileState { inode: 8, changed: LATER, ..file }, true, false),
            ("replaced within a tick of the clock", FileState { inode: 8, ..file }, true, false),
            ("replaced, by a file with a used number", FileState { changed: LATER, ..file }, true, false),
            ("written, and its time set back", FileState { changed: LATER, ..file }, true, false),
            ("linked", FileState { nlink: 2, changed: LATER, ..file }, true, true),
            (
                "linked and written",
                FileState { nlink: 2, changed: LATER, modified: LATER, ..file },
                true,
                false,
            ),
            ("replaced by a linked one", FileState { inode: 8, nlink: 2, ..file }, true, false),
            ("numbered anew", FileState { inode: 8, ..file }, false, true),
            (
                "changed two seconds later",
                FileState { changed: Time { seconds: 3, nanoseconds: 2 }, ..file },
                true,
                false,
            ),
            (
                "replaced, without numbers",
                FileState { inode: 8, nlink: 2, changed: LATER, ..file },
                false,
                false,
            ),
        ] {
            assert_eq!(file.is_same(&later, inodes), same, "{what}");
        }
    }
}
