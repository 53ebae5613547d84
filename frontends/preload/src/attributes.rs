//! Converts attributes to the structures of libc.

use quell_vfs::{Attributes, Kind, Space, Time};

use crate::view::VirtualDir;

/// The block size that stat(2), statx(2) and statfs(2) report. The log layer appends whole buffers.
const BLOCK_BYTES: u32 = 4096;

/// Returns the type of a node for directory entries.
pub fn entry_type(kind: Kind) -> u8 {
    (kind.mode_bits() >> 12) as u8
}

/// Returns the result of stat(2). The access time is the modification time.
pub fn stat(dir: &VirtualDir, attributes: &Attributes) -> libc::stat {
    // SAFETY: the structure consists of integers, for which zero bytes are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let identity = dir.identity(attributes.node);
    (stat.st_dev, stat.st_ino) = (identity.device, identity.inode);
    stat.st_mode = attributes.mode();
    stat.st_nlink = attributes.nlink.into();
    stat.st_uid = attributes.uid;
    stat.st_gid = attributes.gid;
    stat.st_rdev = attributes.rdev;
    stat.st_size = attributes.size_bytes as i64;
    stat.st_blksize = BLOCK_BYTES as libc::blksize_t;
    stat.st_blocks = attributes.blocks as i64;
    (stat.st_atime, stat.st_atime_nsec) = time(attributes.modified);
    (stat.st_mtime, stat.st_mtime_nsec) = time(attributes.modified);
    (stat.st_ctime, stat.st_ctime_nsec) = time(attributes.changed);
    stat
}

fn time(time: Time) -> (i64, i64) {
    (time.seconds, time.nanoseconds.into())
}

/// Returns the result of statx(2) with the basic attributes.
pub fn statx(dir: &VirtualDir, attributes: &Attributes) -> libc::statx {
    // SAFETY: as above.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    let stamp = |time: Time| {
        let mut stamp = statx.stx_atime;
        (stamp.tv_sec, stamp.tv_nsec) = (time.seconds, time.nanoseconds);
        stamp
    };
    let (modified, changed) = (stamp(attributes.modified), stamp(attributes.changed));
    statx.stx_mask = libc::STATX_BASIC_STATS;
    statx.stx_blksize = BLOCK_BYTES;
    statx.stx_nlink = attributes.nlink;
    statx.stx_uid = attributes.uid;
    statx.stx_gid = attributes.gid;
    statx.stx_mode = attributes.mode() as u16;
    let identity = dir.identity(attributes.node);
    statx.stx_ino = identity.inode;
    statx.stx_size = attributes.size_bytes;
    statx.stx_blocks = attributes.blocks;
    statx.stx_atime = modified;
    statx.stx_mtime = modified;
    statx.stx_ctime = changed;
    (statx.stx_dev_major, statx.stx_dev_minor) = (libc::major(identity.device), libc::minor(identity.device));
    statx.stx_rdev_major = libc::major(attributes.rdev);
    statx.stx_rdev_minor = libc::minor(attributes.rdev);
    statx
}

/// Returns the result of statfs(2).
pub fn statfs(space: &Space) -> libc::statfs {
    // SAFETY: as above.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
    statfs.f_type = libc::FUSE_SUPER_MAGIC;
    statfs.f_bsize = BLOCK_BYTES.into();
    statfs.f_frsize = BLOCK_BYTES.into();
    statfs.f_blocks = blocks(space.total_bytes);
    statfs.f_bfree = blocks(space.free_bytes);
    statfs.f_bavail = blocks(space.available_bytes);
    statfs.f_files = space.entries;
    statfs.f_ffree = space.entries_free;
    statfs.f_namelen = space.name_bytes_max.into();
    statfs
}
