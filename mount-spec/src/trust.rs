//! Decides from the owner and the mode whether an index, a boot image or a configuration file is
//! used. Such a file determines which bytes a program gets, so its owner controls the program. Only
//! the caller, root, the owner of the tree and users given with `--trust-owner` are trusted, by the
//! rules of docs/security.md. Owner and mode are read from the same descriptor as the bytes.

use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use quell_posix::Stat;
use quell_vfs::{Error, Result};
use rustix::fs::{AtFlags, StatxFlags, statx};

/// The user or group id that the kernel shows for an id that the user namespace does not map,
/// unless the administrator configured another.
const OVERFLOW_ID: u32 = 65534;
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITE: u32 = 0o020;

/// Owner, group and mode of an open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The mode, including the file type.
    pub mode: u32,
    /// Whether the group bits of the mode are the mask of an access control list. Determined only
    /// if the group bits allow writing.
    pub has_acl: bool,
}

impl Ownership {
    /// Returns the ownership of the file behind a descriptor.
    pub fn read(file: &File, path: &Path) -> Result<Ownership> {
        let failed = |e: rustix::io::Errno| {
            Error::from_io(e.into(), "read the owner of", path.as_os_str().as_encoded_bytes())
        };
        // Without the access time, which a client of a shared file system must request again after
        // a read.
        let needed = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID | StatxFlags::GID;
        let found = statx(file, "", AtFlags::EMPTY_PATH, needed).map_err(failed)?;
        let mode = u32::from(found.stx_mode);
        // Without the bit no access control list allows writing, and the request is not needed. An
        // error means that the file system has no such lists.
        let has_acl = mode & GROUP_WRITE != 0
            && rustix::fs::fgetxattr(file.as_fd(), c"system.posix_acl_access", &mut [0_u8; 0][..])
                .is_ok_and(|bytes| bytes > 0);
        Ok(Ownership { uid: found.stx_uid, gid: found.stx_gid, mode, has_acl })
    }

    pub(crate) fn is_regular(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }
}

impl From<&Stat> for Ownership {
    fn from(stat: &Stat) -> Ownership {
        Ownership { uid: stat.uid, gid: stat.gid, mode: stat.mode, has_acl: false }
    }
}

/// The users whose files are used, in addition to the owner of a tree.
#[derive(Debug, Clone)]
pub struct Trusted {
    caller: u32,
    /// Users given with `--trust-owner`.
    named: Vec<u32>,
    overflow: u32,
    /// Whether the overflow id is mapped to a user here. In a user namespace that does not map it,
    /// it stands for all unmapped users.
    maps_overflow: bool,
}

/// The purpose of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustedUse {
    /// An index of a tree.
    Index,
    /// A boot image.
    BootImage,
    /// A configuration file.
    Configuration,
}

impl fmt::Display for TrustedUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrustedUse::Index => "index",
            TrustedUse::BootImage => "boot image",
            TrustedUse::Configuration => "configuration",
        })
    }
}

/// A file that is not used, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distrust {
    /// The path of the file.
    pub path: PathBuf,
    /// The purpose of the file.
    pub file_use: TrustedUse,
    /// Why the file is not used.
    pub reason: DistrustReason,
}

/// The reason why a file is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DistrustReason {
    /// The file is a device, directory or FIFO.
    NotRegular,
    /// The file belongs to this user.
    ForeignOwner(u32),
    /// The file belongs to this id, which stands for all users that the namespace does not map.
    UnmappedOwner(u32),
    /// Every user can write to the file.
    WritableByOthers,
    /// Members of this group can write to the file, and cannot write to the tree.
    WritableByGroup(u32),
}

impl Trusted {
    /// Returns the trust rules for the effective user of this process. `named`: further users that
    /// the caller trusts.
    pub fn by_caller(named: &[u32]) -> Trusted {
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_ID);
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Trusted {
            caller: rustix::process::geteuid().as_raw(),
            named: named.to_vec(),
            overflow,
            maps_overflow: maps(&map, overflow),
        }
    }

    /// Checks that the bytes of an open file may be used. `tree`: the tree or disk image that the
    /// file belongs to, if any.
    pub fn check(
        &self,
        file: &File,
        path: &Path,
        file_use: TrustedUse,
        tree: Option<&Ownership>,
    ) -> Result<std::result::Result<(), Distrust>> {
        Ok(self.check_ownership(&Ownership::read(file, path)?, path, file_use, tree))
    }

    /// Does the same as `check`, for a file with this ownership.
    pub fn check_ownership(
        &self,
        file: &Ownership,
        path: &Path,
        file_use: TrustedUse,
        tree: Option<&Ownership>,
    ) -> std::result::Result<(), Distrust> {
        let decided = self.decide(file, file_use, tree);
        decided.map_err(|reason| Distrust { path: path.into(), file_use, reason })
    }

    fn decide(
        &self,
        file: &Ownership,
        file_use: TrustedUse,
        tree: Option<&Ownership>,
    ) -> std::result::Result<(), DistrustReason> {
        if !file.is_regular() {
            return Err(DistrustReason::NotRegular);
        }
        self.decide_owner(file.uid, tree)?;
        if file.mode & OTHERS_WRITE != 0 {
            return Err(DistrustReason::WritableByOthers);
        }
        // With an access control list, the bit may apply to a user or group that the mode does not
        // show.
        let same_group = tree.is_some_and(|tree| {
            file_use != TrustedUse::Configuration
                && tree.gid == file.gid
                && tree.gid != self.overflow
                && tree.mode & GROUP_WRITE != 0
                && !file.has_acl
        });
        if file.mode & GROUP_WRITE != 0 && !same_group {
            return Err(DistrustReason::WritableByGroup(file.gid));
        }
        Ok(())
    }

    /// Decides whether the files of a user may be used. `tree`: the tree or disk image that they
    /// belong to, if any.
    pub(crate) fn decide_owner(
        &self,
        owner: u32,
        tree: Option<&Ownership>,
    ) -> std::result::Result<(), DistrustReason> {
        if self.named.contains(&owner) {
            return Ok(());
        }
        if owner == self.overflow && !self.maps_overflow {
            return Err(DistrustReason::UnmappedOwner(owner));
        }
        // File servers also show unknown users as the overflow user, so two files with that owner
        // may belong to different users.
        let of_tree = owner != self.overflow && tree.is_some_and(|tree| tree.uid == owner);
        match owner == self.caller || owner == 0 || of_tree {
            true => Ok(()),
            false => Err(DistrustReason::ForeignOwner(owner)),
        }
    }
}

/// Returns whether a user namespace with this `uid_map` maps this id.
fn maps(uid_map: &str, uid: u32) -> bool {
    uid_map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().unwrap_or(0));
        let (first, _, count) = (numbers.next().unwrap_or(0), numbers.next(), numbers.next().unwrap_or(0));
        (first..first + count).contains(&u64::from(uid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: u32 = 1000;
    const OTHER: u32 = 1001;

    fn trusted(named: &[u32]) -> Trusted {
        Trusted { caller: CALLER, named: named.to_vec(), overflow: OVERFLOW_ID, maps_overflow: true }
    }

    fn file(uid: u32, mode: u32) -> Ownership {
        Ownership { uid, gid: 50, mode: 0o100_000 | mode, has_acl: false }
    }

    fn tree(uid: u32, gid: u32, mode: u32) -> Ownership {
        Ownership { uid, gid, mode: 0o040_000 | mode, has_acl: false }
    }

    #[test]
    fn files_of_the_caller_root_the_trees_owner_and_named_users_are_used() {
        let roots = tree(0, 0, 0o755);
        let theirs = tree(OTHER, 50, 0o755);
        let index = TrustedUse::Index;
        for uid in [CALLER, 0] {
            assert_eq!(trusted(&[]).decide(&file(uid, 0o644), index, Some(&roots)), Ok(()));
        }
        let foreign = Err(DistrustReason::ForeignOwner(OTHER));
        assert_eq!(trusted(&[]).decide(&file(OTHER, 0o644), index, Some(&roots)), foreign);
        assert_eq!(trusted(&[]).decide(&file(OTHER, 0o644), index, None), foreign);
        assert_eq!(trusted(&[]).decide(&file(OTHER, 0o644), index, Some(&theirs)), Ok(()));
        assert_eq!(trusted(&[OTHER]).decide(&file(OTHER, 0o644), index, Some(&roots)), Ok(()));
    }

    #[test]
    fn a_file_that_others_may_write_is_not_trusted() {
        let own = tree(CALLER, 50, 0o755);
        let (index, image) = (TrustedUse::Index, TrustedUse::BootImage);
        let decide = |file: &Ownership, file_use, tree: &Ownership| {
            trusted(&[OTHER]).decide(file, file_use, Some(tree))
        };
        for uid in [CALLER, 0, OTHER] {
            assert_eq!(decide(&file(uid, 0o646), index, &own), Err(DistrustReason::WritableByOthers));
            assert_eq!(decide(&file(uid, 0o664), image, &own), Err(DistrustReason::WritableByGroup(50)));
        }
        // The group can write to the tree itself.
        let shared = tree(CALLER, 50, 0o775);
        assert_eq!(decide(&file(CALLER, 0o664), index, &shared), Ok(()));
        let other_group = tree(CALLER, 51, 0o775);
        let refused = Err(DistrustReason::WritableByGroup(50));
        assert_eq!(decide(&file(CALLER, 0o664), index, &other_group), refused);
        assert_eq!(decide(&file(CALLER, 0o664), TrustedUse::Configuration, &shared), refused);
        let listed = Ownership { has_acl: true, ..file(CALLER, 0o664) };
        assert_eq!(decide(&listed, index, &shared), refused);
    }

    #[test]
    fn an_overflow_id_matches_no_user() {
        let own = tree(OVERFLOW_ID, OVERFLOW_ID, 0o775);
        let index = TrustedUse::Index;
        let unmapped = Trusted { caller: OVERFLOW_ID, maps_overflow: false, ..trusted(&[]) };
        let refused = Err(DistrustReason::UnmappedOwner(OVERFLOW_ID));
        assert_eq!(unmapped.decide(&file(OVERFLOW_ID, 0o644), index, Some(&own)), refused);
        // Unknown users of a file server.
        let refused = Err(DistrustReason::ForeignOwner(OVERFLOW_ID));
        assert_eq!(trusted(&[]).decide(&file(OVERFLOW_ID, 0o644), index, Some(&own)), refused);
        let group = Ownership { gid: OVERFLOW_ID, ..file(CALLER, 0o664) };
        let refused = Err(DistrustReason::WritableByGroup(OVERFLOW_ID));
        assert_eq!(trusted(&[]).decide(&group, index, Some(&own)), refused);
        assert!(maps("         0          0 4294967295\n", OVERFLOW_ID));
        assert!(!maps("      1000       1000          1\n", OVERFLOW_ID));
        assert!(maps("0 1000 1\n1 100000 65536\n", OVERFLOW_ID));
    }

    #[test]
    fn only_regular_files_are_trusted() {
        let directory = tree(CALLER, 50, 0o700);
        assert_eq!(trusted(&[]).decide(&directory, TrustedUse::Index, None), Err(DistrustReason::NotRegular));
    }
}
