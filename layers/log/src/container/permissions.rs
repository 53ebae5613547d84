//! Permissions of a container's directories, derived from the permissions of its file. Pure
//! functions on values, no I/O.

use quell_posix::Stat;
use quell_vfs::Caller;

/// Users with write permission to a directory with this bit can remove and rename only their own
/// entries.
const STICKY: u32 = 0o1000;

/// Returns the permissions of a container and its directories: users who may read or write the file
/// can search them, and users who may write can add logs. Entries that other users create belong to
/// the file's group.
pub fn dir_permissions(file: u32) -> u32 {
    let mut dir = 0o700;
    for shift in [0, 3] {
        let class = file >> shift & 0o7;
        let read = if class & 0o6 != 0 { 0o5 } else { 0 };
        dir |= (read | class & 0o2) << shift;
    }
    // Users who may write can add names, but must not remove or replace names of other users, in
    // particular `access`.
    let sticky = if dir & 0o022 != 0 { STICKY } else { 0 };
    let group = if dir & 0o070 != 0 { 0o2000 } else { 0 };
    dir | group | sticky
}

/// Returns the permissions of log directories in a container with the permissions `container`. They
/// have no sticky bit: a user with write permission to the file may remove any log.
pub(crate) fn logs_permissions(container: u32) -> u32 {
    container & !STICKY
}

/// The set-user-ID and set-group-ID bits.
pub(crate) const SET_ID: u32 = 0o6000;

/// Returns the set-id bits with which a file of these permissions would run with the rights of its
/// owner or group. A file whose group may not execute it never runs with the group's rights.
pub(crate) fn effective_set_id(permissions: u32) -> u32 {
    let group = if permissions & 0o010 != 0 { 0o2000 } else { 0 };
    permissions & (0o4000 | group)
}

/// Returns whether `after` is `before` without some set-id bits.
pub(crate) fn only_drops_set_id(before: u32, after: u32) -> bool {
    before != after && before & !SET_ID == after & !SET_ID && after & !before == 0
}

/// Returns whether the permissions of `access` allow `user` to write. Root's privileges are not
/// considered.
pub(crate) fn may_write(access: &Stat, user: &Caller) -> bool {
    let shift = if access.uid == user.uid {
        6
    } else if access.gid == user.gid || user.groups.contains(&access.gid) {
        3
    } else {
        0
    };
    access.mode >> shift & 0o2 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_grant_search_to_users_of_the_file() {
        for (file, dir) in [
            (0o600, 0o700),
            (0o644, 0o2755),
            (0o640, 0o2750),
            (0o660, 0o3770),
            (0o666, 0o3777),
            (0o000, 0o700),
            (0o604, 0o705),
            (0o620, 0o3770),
            (0o755, 0o2755),
            (0o700, 0o700),
            (0o4755, 0o2755),
        ] {
            assert_eq!(dir_permissions(file), dir, "{file:o}");
        }
    }

    #[test]
    fn the_class_of_a_user_decides_alone() {
        let access = |mode| Stat { mode, uid: 1, gid: 2, ..Stat::default() };
        let user = |uid, gid, groups: &[u32]| Caller { uid, gid, groups: groups.to_vec() };
        for (mode, owner, group, others) in
            [(0o200, true, false, false), (0o020, false, true, false), (0o002, false, false, true)]
        {
            assert_eq!(may_write(&access(mode), &user(1, 2, &[2])), owner, "{mode:o}");
            assert_eq!(may_write(&access(mode), &user(3, 2, &[])), group, "{mode:o}");
            assert_eq!(may_write(&access(mode), &user(3, 4, &[5, 2])), group, "{mode:o}");
            assert_eq!(may_write(&access(mode), &user(3, 4, &[5])), others, "{mode:o}");
        }
    }

    #[test]
    fn set_id_bits_without_effect_are_told_apart() {
        assert_eq!(effective_set_id(0o6755), 0o6000);
        assert_eq!(effective_set_id(0o6745), 0o4000);
        assert_eq!(effective_set_id(0o2745), 0);
        assert!(only_drops_set_id(0o6755, 0o0755) && only_drops_set_id(0o6755, 0o2755));
        for (before, after) in [(0o755, 0o755), (0o4755, 0o700), (0o4755, 0o2755), (0o4755, 0o777)] {
            assert!(!only_drops_set_id(before, after), "{before:o} {after:o}");
        }
    }
}
