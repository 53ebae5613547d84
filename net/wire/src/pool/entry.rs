//! The attributes of a file, directory or symbolic link of a pool.

use quell_vfs::{Attributes, Kind, NodeId, Time};
use serde::{Deserialize, Serialize};

/// Identifies a file, directory or symbolic link of a pool for ever. Identifiers are not reused.
/// The root is 0; docs/formats/pool.md describes the parts of the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId(pub u64);

impl FileId {
    /// The root directory.
    pub const ROOT: FileId = FileId(0);
}

impl From<NodeId> for FileId {
    fn from(node: NodeId) -> FileId {
        FileId(node.0)
    }
}

/// Identifies a member of a pool: a part of its names and data, which one daemon serves.
/// Identifiers are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberId(pub u16);

/// A point in time: seconds since 1970, and nanoseconds below 1,000,000,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Stamp {
    /// Seconds since 1970, rounded down.
    pub seconds: i64,
    /// The rest, in nanoseconds.
    pub nanoseconds: u32,
}

impl From<Stamp> for Time {
    fn from(stamp: Stamp) -> Time {
        Time { seconds: stamp.seconds, nanoseconds: stamp.nanoseconds.min(999_999_999) }
    }
}

impl From<Time> for Stamp {
    fn from(time: Time) -> Stamp {
        Stamp { seconds: time.seconds, nanoseconds: time.nanoseconds }
    }
}

/// The kinds that a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
}

impl From<NodeKind> for Kind {
    fn from(kind: NodeKind) -> Kind {
        match kind {
            NodeKind::File => Kind::File,
            NodeKind::Dir => Kind::Dir,
            NodeKind::Symlink => Kind::Symlink,
        }
    }
}

/// The attributes of one file, directory or symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its identifier.
    pub id: FileId,
    /// Its kind.
    pub kind: NodeKind,
    /// The lower twelve bits of `st_mode`.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Whether it has a name.
    pub is_named: bool,
    /// The size in bytes; of a symbolic link the length of its target.
    pub size_bytes: u64,
    /// Whether the data of the file is inline. Once this is false, it stays false.
    pub is_inline: bool,
    /// The time of the last change of the data.
    pub modified: Stamp,
    /// The time of the last change of the data or attributes.
    pub changed: Stamp,
}

impl Node {
    /// Returns the attributes in the form of the contract.
    ///
    /// The number of links of a directory is 1, which means that the number of its subdirectories
    /// is not known. The space that a file occupies is not known either: `blocks` is its size.
    pub fn attributes(&self) -> Attributes {
        Attributes {
            node: NodeId(self.id.0),
            kind: self.kind.into(),
            permissions: u32::from(self.permissions) & 0o7777,
            uid: self.uid,
            gid: self.gid,
            nlink: u32::from(self.is_named),
            rdev: 0,
            size_bytes: self.size_bytes,
            blocks: if self.kind == NodeKind::File { self.size_bytes.div_ceil(512) } else { 0 },
            modified: self.modified.into(),
            changed: self.changed.into(),
        }
    }
}
