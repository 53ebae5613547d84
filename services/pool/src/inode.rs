//! The records of nodes and entries in the key-value store.

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, Node, NodeKind, Stamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The record of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    pub kind: NodeKind,
    /// The lower twelve bits of `st_mode`.
    pub permissions: u16,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub modified: Stamp,
    /// Whether a client has set `modified`, and the file was not written since.
    pub is_modified_set: bool,
    pub changed: Stamp,
    /// The directory and the name in it, unless the name was removed.
    pub name: Option<(FileId, Vec<u8>)>,
    /// The target of a symbolic link, otherwise empty.
    pub target: Vec<u8>,
    /// Whether the node has a record of extended attributes.
    pub has_xattrs: bool,
    /// Whether the file may have chunks.
    pub has_chunks: bool,
    /// Whether the data of the file is inline (module `inline`). If it is, chunks that exist are
    /// not part of the data. A file whose data is not inline may have chunks.
    pub is_inline: bool,
    /// The length of the inline data. A file without inline data has no record for it.
    pub inline_bytes: u32,
    /// The size to which the chunks are being truncated. It is set until all members have truncated
    /// their chunks.
    pub truncating_to_bytes: Option<u64>,
}

impl Inode {
    /// Returns the attributes of the node.
    pub fn node(&self, id: FileId) -> Node {
        Node {
            id,
            kind: self.kind,
            permissions: self.permissions,
            uid: self.uid,
            gid: self.gid,
            is_named: self.name.is_some(),
            size_bytes: self.size_bytes,
            is_inline: self.is_inline,
            modified: self.modified,
            changed: self.changed,
        }
    }
}

/// The record of an entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRecord {
    pub id: FileId,
    pub kind: NodeKind,
}

/// A change that a transaction has prepared on this member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreparedChange {
    /// A name gets an entry, or a different entry.
    Entry { dir: FileId, name: Vec<u8>, new: EntryRecord },
    /// A node gets another name and directory, or loses its name.
    Node { id: FileId, kind: NodeKind, name: Option<(FileId, Vec<u8>)> },
    /// A directory without entries is removed.
    Removal { dir: FileId },
}

/// Encodes a record.
pub fn to_bytes<T: Serialize>(record: &T) -> Vec<u8> {
    quell_wire::encode(record)
}

/// Decodes a record of this member's own store.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8], record: &str) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|cause| Error {
        source: Some(cause.into()),
        ..Error::new(ErrorKind::Damaged, "read the record of a", record)
    })
}
