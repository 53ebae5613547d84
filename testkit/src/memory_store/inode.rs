//! The inodes of a store.

use std::collections::BTreeMap;

use quell_vfs::{Kind, Time};

use super::unsynced::Unsynced;
use crate::sparse::SparseBytes;

pub(super) type Number = u64;
pub(super) const ROOT: Number = 1;

/// The space that a name takes, in bytes.
pub(super) const NAME_BYTES: u64 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) modified: Time,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    File {
        bytes: SparseBytes,
        /// The data as of the last sync.
        synced: SparseBytes,
        unsynced: Vec<Unsynced>,
    },
    Dir(BTreeMap<Vec<u8>, Number>),
    Symlink(Vec<u8>),
}

#[derive(Debug, Clone)]
pub(super) struct Inode {
    pub(super) attributes: Attributes,
    pub(super) synced_attributes: Attributes,
    pub(super) changed: Time,
    pub(super) content: Content,
    /// The directory and the name of the inode, or the last ones that it had.
    pub(super) parent_and_name: (Number, Vec<u8>),
    pub(super) named: bool,
    /// Whether the inode has had several names at some time.
    pub(super) was_linked: bool,
    pub(super) handles: u64,
    /// The number of failed writebacks of its data, and whether a descriptor has reported the last
    /// one.
    pub(super) writeback_errors: u64,
    pub(super) is_reported: bool,
}

impl Inode {
    pub(super) fn kind(&self) -> Kind {
        match self.content {
            Content::File { .. } => Kind::File,
            Content::Dir(_) => Kind::Dir,
            Content::Symlink(_) => Kind::Symlink,
        }
    }

    pub(super) fn taken_bytes(&self) -> u64 {
        NAME_BYTES
            + match &self.content {
                Content::File { bytes, .. } => bytes.allocated_bytes(),
                _ => 0,
            }
    }

    pub(super) fn in_use(&self) -> bool {
        self.named || self.handles > 0
    }
}
