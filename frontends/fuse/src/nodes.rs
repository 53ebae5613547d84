//! The mapping between inode numbers and nodes, which needs no memory: the kernel's inode number is
//! the node of the contract plus one. (The contract's root is node 0, the kernel's root is inode 1,
//! and inode 0 means "no such entry".) A writable file system counts the references to its nodes
//! itself.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use quell_vfs::{Attributes, Kind, NodeId, Time};

/// The block size for `st_blksize`: the size of a page.
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn ino(node: NodeId) -> INodeNo {
    INodeNo(node.0 + 1)
}

pub(crate) fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0 - 1)
}

pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

pub(crate) fn file_attr(attributes: &Attributes) -> FileAttr {
    let modified = system_time(attributes.modified);
    FileAttr {
        ino: ino(attributes.node),
        size: attributes.size_bytes,
        blocks: attributes.blocks,
        atime: modified,
        mtime: modified,
        ctime: system_time(attributes.changed),
        crtime: UNIX_EPOCH,
        kind: file_type(attributes.kind),
        perm: attributes.permissions as u16,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        // The kernel's device numbers have 12 + 20 bits, all in the lower half of st_rdev.
        rdev: attributes.rdev as u32,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Returns the entry that means "no such name" and that the kernel may cache, unlike ENOENT.
pub(crate) fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let second = if time.seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    second + Duration::from_nanos(time.nanoseconds.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contracts_root_is_the_kernels_root() {
        assert_eq!(ino(NodeId(0)), INodeNo(1));
        assert_eq!(node(INodeNo(1)), NodeId(0));
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let time = system_time(Time { seconds: -2, nanoseconds: 800_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(time).unwrap(), Duration::from_millis(1200));
        system_time(Time { seconds: i64::MIN, nanoseconds: 0 });
        system_time(Time { seconds: i64::MAX, nanoseconds: 999_999_999 });
    }
}
