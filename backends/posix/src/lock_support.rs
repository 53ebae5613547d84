//! Determines whether locks on a mounted file system hold between its nodes, or on this node only.
//!
//! A file system that keeps locks on the node accepts them without an error. It is recognized by
//! its mount options; a FUSE file system by the kernel's list of locks, because the kernel keeps a
//! lock itself only if the FUSE server does not.

use std::collections::HashMap;
use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::{LazyLock, Mutex};

use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result, errno};
use rustix::fs::{AtFlags, StatxFlags};

/// Where the locks of a mounted file system hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockSupport {
    /// Between all nodes that have it mounted.
    BetweenNodes,
    /// On this node only, with the reason.
    NodeOnly(&'static str),
    /// Known after a lock was taken, from the kernel's list of locks.
    SeenInList,
}

/// The properties of a mounted file system that locks depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Properties {
    support: LockSupport,
    has_coherent_caches: bool,
    /// `None` if the type of the file system is not known.
    has_reliable_locks: Option<bool>,
    /// The link count of a file without names is 0 while the file is open.
    counts_removed_names: bool,
}

/// A file system, as a mount shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct MountKey {
    mount: u64,
    device: (u32, u32),
}

static KNOWN: LazyLock<Mutex<HashMap<MountKey, Properties>>> = LazyLock::new(Mutex::default);

/// A check that is made after the first lock on a file system.
#[derive(Debug)]
pub(crate) struct CheckAfterLock(MountKey);

/// Fails with ENOLCK if locks on the file system of `fd` hold on this node only. If this becomes
/// known only after a lock was taken, returns the check that must be made then.
pub(crate) fn check_before_lock(fd: BorrowedFd<'_>) -> Result<Option<CheckAfterLock>> {
    let (key, properties) = properties_of(fd)?;
    match properties.support {
        LockSupport::BetweenNodes => Ok(None),
        LockSupport::SeenInList => Ok(Some(CheckAfterLock(key))),
        LockSupport::NodeOnly(reason) => Err(no_locks(reason)),
    }
}

/// Returns whether data that one node has written to the file system of `fd` is visible on all
/// other nodes without a sync by the writer.
pub(crate) fn has_coherent_caches(fd: BorrowedFd<'_>) -> bool {
    properties_of(fd).is_ok_and(|(_, properties)| properties.has_coherent_caches)
}

/// Returns whether locks of the file system of `fd` certainly hold between all its nodes, and end
/// with the process or node that holds them, unless a first lock shows that the file system leaves
/// locks to the node. `None` if the type of the file system is not known.
pub(crate) fn has_reliable_locks(fd: BorrowedFd<'_>) -> Option<bool> {
    let (_, properties) = properties_of(fd).ok()?;
    Some(properties.has_reliable_locks? && !matches!(properties.support, LockSupport::NodeOnly(_)))
}

/// Returns whether the link count of an open file on the file system of `fd` becomes 0 when its
/// last name is removed. Otherwise the node may rename an open file instead of removing it, as NFS
/// does.
pub(crate) fn counts_removed_names(fd: BorrowedFd<'_>) -> bool {
    properties_of(fd).is_ok_and(|(_, properties)| properties.counts_removed_names)
}

fn properties_of(fd: BorrowedFd<'_>) -> Result<(MountKey, Properties)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(fd, "", flags, StatxFlags::MNT_ID)
        .map_err(|e| Error::from_io(e.into(), "lock", b""))?;
    let key = MountKey { mount: found.stx_mnt_id, device: (found.stx_dev_major, found.stx_dev_minor) };
    if let Some(known) = lock(&KNOWN).get(&key).copied() {
        return Ok((key, known));
    }
    let properties = match fs::read_to_string("/proc/self/mountinfo") {
        Ok(mounts) => properties_in(&mounts, key),
        Err(_) => Properties {
            support: LockSupport::NodeOnly("/proc/self/mountinfo cannot be read"),
            has_coherent_caches: false,
            has_reliable_locks: None,
            counts_removed_names: false,
        },
    };
    lock(&KNOWN).insert(key, properties);
    Ok((key, properties))
}

impl CheckAfterLock {
    /// Fails with ENOLCK if the kernel itself keeps the lock that was just taken with `fd`.
    pub(crate) fn after_lock(self, fd: BorrowedFd<'_>) -> Result<()> {
        let CheckAfterLock(key) = self;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let inode = rustix::fs::statx(fd, "", flags, StatxFlags::INO)
            .map_err(|e| Error::from_io(e.into(), "lock", b""))?
            .stx_ino;
        let support = match fs::read_to_string("/proc/locks") {
            Ok(locks) if lists(&locks, key.device, inode) => {
                LockSupport::NodeOnly("the FUSE file system leaves locks to the kernel of the node")
            }
            Ok(_) => LockSupport::BetweenNodes,
            Err(_) => LockSupport::NodeOnly("/proc/locks cannot be read"),
        };
        if let Some(known) = lock(&KNOWN).get_mut(&key) {
            known.support = support;
        }
        match support {
            LockSupport::NodeOnly(reason) => Err(no_locks(reason)),
            _ => Ok(()),
        }
    }
}

fn no_locks(reason: &'static str) -> Error {
    Error {
        source: Some(format!("locks would hold on this node only: {reason}").into()),
        ..Error::new(ErrorKind::Os(errno::ENOLCK), "lock", b"")
    }
}

/// Finds a mount in the text of `/proc/self/mountinfo`, by its number or else by its device, and
/// returns its properties. A mount that is not listed belongs to another mount namespace.
fn properties_in(mounts: &str, key: MountKey) -> Properties {
    let device = format!("{}:{}", key.device.0, key.device.1);
    let has_field = |line: &&str, number: usize, value: &str| {
        line.split(' ').nth(number).is_some_and(|field| field == value)
    };
    let by_number = mounts.lines().find(|line| has_field(line, 0, &key.mount.to_string()));
    let line = by_number.or_else(|| mounts.lines().find(|line| has_field(line, 2, &device)));
    // After the separator: the type, the source, the options of the file system.
    let fields = line.and_then(|line| line.split_once(" - ")).map(|(_, rest)| rest);
    let Some(fields) = fields else {
        let support = LockSupport::NodeOnly("its mount is not in /proc/self/mountinfo");
        return Properties {
            support,
            has_coherent_caches: false,
            has_reliable_locks: None,
            counts_removed_names: false,
        };
    };
    let mut fields = fields.split(' ');
    let mut next = || fields.next().unwrap_or("");
    let (kind, source, options) = (next(), next(), next());
    let is_moosefs = MOOSEFS.iter().any(|begin| source.starts_with(begin));
    Properties {
        support: support_of(kind, options),
        has_coherent_caches: COHERENT.contains(&kind),
        counts_removed_names: COHERENT.contains(&kind) || is_moosefs,
        has_reliable_locks: Some(RELIABLE_LOCKS.contains(&kind) || is_moosefs),
    }
}

/// File systems of one node, and file systems whose servers revoke the cached data of a node when
/// another node accesses it.
const COHERENT: [&str; 16] = [
    "bcachefs", "btrfs", "ceph", "ext2", "ext3", "ext4", "f2fs", "gfs2", "gpfs", "lustre", "ocfs2",
    "overlay", "ramfs", "tmpfs", "xfs", "zfs",
];

/// The beginning of the source of a mount of MooseFS, `mfs#`, with and without the escape that the
/// kernel writes for a number sign.
const MOOSEFS: [&str; 2] = ["mfs#", "mfs\\043"];

/// File systems of one node, and file systems whose servers keep the locks of all nodes and remove
/// the locks of a node that does not answer. NFS before version 4 is not in the list, because its
/// server keeps the locks of a node that never starts again. FUSE file systems are not in the list,
/// because Linux does not report to their servers that a descriptor with locks was closed. MooseFS
/// is an exception outside this list: its client releases locks with the last descriptor of the
/// open file. It is recognized by the source of its mount.
const RELIABLE_LOCKS: [&str; 16] = [
    "bcachefs", "btrfs", "ceph", "ext2", "ext3", "ext4", "f2fs", "gfs2", "gpfs", "lustre", "nfs4", "ocfs2",
    "overlay", "tmpfs", "xfs", "zfs",
];

/// Returns where locks hold on a file system of this type with these mount options.
fn support_of(kind: &str, options: &str) -> LockSupport {
    let has = |wanted: &[&str]| options.split(',').any(|option| wanted.contains(&option));
    match kind {
        "lustre" if has(&["localflock"]) => LockSupport::NodeOnly("it is mounted with the option localflock"),
        "nfs" | "nfs4" if has(&["nolock", "local_lock=all", "local_lock=posix"]) => {
            LockSupport::NodeOnly("it is mounted with the option nolock or local_lock")
        }
        "cifs" | "smb3" if has(&["nobrl"]) => LockSupport::NodeOnly("it is mounted with the option nobrl"),
        "ocfs2" | "gfs2" if has(&["localflocks"]) => {
            LockSupport::NodeOnly("it is mounted with the option localflocks")
        }
        // The configuration of BeeGFS, not its mount options, states whether locks are global; by
        // default they are not.
        "beegfs" => LockSupport::NodeOnly("BeeGFS keeps locks on the node by default"),
        "fuse" | "fuseblk" | "virtiofs" => LockSupport::SeenInList,
        kind if kind.starts_with("fuse.") => LockSupport::SeenInList,
        _ => LockSupport::BetweenNodes,
    }
}

/// Returns whether the text of `/proc/locks` lists a lock of a file.
fn lists(locks: &str, (major, minor): (u32, u32), inode: u64) -> bool {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().any(|line| line.split_ascii_whitespace().any(|field| field == file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:42 / /lustre rw shared:1 - lustre 10.0.0.1@tcp:/scratch rw,flock,user_xattr
31 22 0:43 / /local\\040flock rw shared:1 master:2 - lustre 10.0.0.1@tcp:/x rw,localflock
32 22 0:44 / /nfs rw - nfs4 server:/export rw,vers=4.2,local_lock=none,addr=10.0.0.2
33 22 0:45 / /nfs3 rw - nfs server:/export rw,vers=3,nolock,local_lock=all
34 22 0:46 / /mfs rw - fuse mfs\\043master:9421 rw,user_id=0,allow_other
35 22 0:47 / /sshfs rw - fuse.sshfs host:/export rw,user_id=0,allow_other
";

    #[test]
    fn the_mount_options_of_the_store_decide() {
        let key = |mount, minor| MountKey { mount, device: (0, minor) };
        let found = |mount, minor| properties_in(MOUNTS, key(mount, minor)).support;
        let is_coherent = |mount, minor| properties_in(MOUNTS, key(mount, minor)).has_coherent_caches;
        assert!(is_coherent(22, 0) && is_coherent(30, 42) && !is_coherent(32, 44) && !is_coherent(34, 46));
        let is_reliable = |mount, minor| properties_in(MOUNTS, key(mount, minor)).has_reliable_locks;
        let reliable = [(22, 0), (30, 42), (32, 44), (34, 46)];
        assert_eq!(reliable.map(|(mount, minor)| is_reliable(mount, minor)), [Some(true); 4]);
        assert_eq!([is_reliable(33, 45), is_reliable(35, 47)], [Some(false); 2]);
        assert_eq!(is_reliable(99, 99), None);
        let counts = |mount, minor| properties_in(MOUNTS, key(mount, minor)).counts_removed_names;
        assert!(counts(22, 0) && counts(34, 46) && !counts(32, 44) && !counts(99, 99));
        assert_eq!(found(22, 0), LockSupport::BetweenNodes);
        assert_eq!(found(30, 42), LockSupport::BetweenNodes);
        assert!(matches!(found(31, 43), LockSupport::NodeOnly(_)));
        assert_eq!(found(32, 44), LockSupport::BetweenNodes);
        assert!(matches!(found(33, 45), LockSupport::NodeOnly(_)));
        assert_eq!(found(34, 46), LockSupport::SeenInList);
        // The mount is in another namespace: another mount of the same device is used.
        assert!(matches!(found(99, 43), LockSupport::NodeOnly(_)));
        assert!(matches!(found(99, 99), LockSupport::NodeOnly(_)));
        for text in ["", "22 1", "22 1 0:0 / / rw - ", "22 1 0:0 / / rw - ext4", " - - - "] {
            properties_in(text, key(22, 0)); // any text gives an answer
        }
        assert!(matches!(support_of("beegfs", "rw"), LockSupport::NodeOnly(_)));
        assert_eq!(support_of("fuse", ""), LockSupport::SeenInList);
    }

    #[test]
    fn the_list_of_locks_names_device_and_inode() {
        let locks =
            "1: OFDLCK ADVISORY  WRITE -1 00:2e:77 0 EOF\n1: -> FLOCK ADVISORY WRITE 7 fe:00:5 0 EOF\n";
        assert!(lists(locks, (0, 0x2e), 77) && lists(locks, (0xfe, 0), 5));
        assert!(!lists(locks, (0, 0x2e), 7) && !lists("", (0, 0), 0));
    }
}
