//! Converts the attributes of blobs to attributes of files.

use quell_blob::{BlobStat, FileAttributes};
use quell_vfs::{Attributes, Kind, NewEntry, NodeId, Time};

/// The owner of files for which none was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The permissions of files and directories for which none were set.
const FILE_PERMISSIONS: u32 = 0o600;
const DIR_PERMISSIONS: u32 = 0o700;
const PERMISSIONS: u32 = 0o7777;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// Returns the kind of the entry of a blob that is not a directory.
pub(crate) fn kind_of(stat: &BlobStat) -> Kind {
    match stat.file.and_then(|file| Kind::from_mode(file.mode)) {
        Some(Kind::Symlink) => Kind::Symlink,
        _ => Kind::File,
    }
}

/// Returns the attributes of a new entry in the form of the store.
pub(crate) fn of_new(kind: Kind, new: NewEntry) -> FileAttributes {
    let mode = kind.mode_bits() | (new.permissions & PERMISSIONS);
    FileAttributes { mode, uid: new.uid, gid: new.gid }
}

/// Returns the attributes that a blob has. If none were set, returns default attributes with the
/// owner of this mount.
pub(crate) fn stored(kind: Kind, stat: Option<&BlobStat>, owner: Owner) -> FileAttributes {
    let permissions = if kind == Kind::Dir { DIR_PERMISSIONS } else { FILE_PERMISSIONS };
    let mode = kind.mode_bits() | permissions;
    let default = FileAttributes { mode, uid: owner.uid, gid: owner.gid };
    stat.and_then(|stat| stat.file).unwrap_or(default)
}

/// Returns the attributes of a node.
pub(crate) fn attributes(
    node: NodeId,
    kind: Kind,
    stored: FileAttributes,
    size_bytes: u64,
    modified: Time,
) -> Attributes {
    let size_bytes = if kind == Kind::Dir { 0 } else { size_bytes };
    Attributes {
        node,
        kind,
        permissions: stored.mode & PERMISSIONS,
        uid: stored.uid,
        gid: stored.gid,
        nlink: 1,
        rdev: 0,
        size_bytes,
        blocks: size_bytes.div_ceil(512),
        modified,
        changed: modified,
    }
}

pub(crate) fn time(ns: u64) -> Time {
    Time { seconds: (ns / NS_PER_SECOND) as i64, nanoseconds: (ns % NS_PER_SECOND) as u32 }
}

/// Returns a time in the form of the store: the nearest time from 1970 to 2554.
pub(crate) fn ns(time: Time) -> u64 {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    let ns = u64::from(time.nanoseconds);
    match time.seconds < 0 {
        true => 0,
        false => seconds.saturating_mul(NS_PER_SECOND).saturating_add(ns),
    }
}
