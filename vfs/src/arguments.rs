//! The arguments of operations that open and change files.

use crate::attributes::Time;
use crate::name::NAME_BYTES_MAX;

/// How to open a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenMode {
    /// Whether the file can be read.
    pub read: bool,
    /// Whether the file can be written to.
    pub write: bool,
    /// Whether to truncate the file to 0 bytes. Only with `write`. A truncation by a caller other
    /// than root removes set-id bits as [`drop_set_id`](crate::WritableFile::drop_set_id) does, and
    /// first.
    pub truncate: bool,
}

impl OpenMode {
    /// Read only.
    pub const READ: OpenMode = OpenMode { read: true, write: false, truncate: false };
    /// Write only.
    pub const WRITE: OpenMode = OpenMode { read: false, write: true, truncate: false };
    /// Read and write.
    pub const READ_WRITE: OpenMode = OpenMode { read: true, write: true, truncate: false };
}

/// The attributes of a new entry. In a directory with the set-group-id bit the entry gets the group
/// of the directory, and a new directory also gets the bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewEntry {
    /// The lower twelve bits of `st_mode`, after the caller's umask was applied.
    pub permissions: u32,
    /// The owner.
    pub uid: u32,
    /// The group, unless the directory determines it.
    pub gid: u32,
}

/// A change of a node's attributes. A field that is `None` is left unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// The lower twelve bits of `st_mode`.
    pub permissions: Option<u32>,
    /// The new owner.
    pub uid: Option<u32>,
    /// The new group.
    pub gid: Option<u32>,
    /// For a regular file: its new size. Data beyond it is removed; a file that becomes longer is
    /// filled with zeros. Set-id bits are removed as by an open that truncates.
    pub size_bytes: Option<u64>,
    /// The new modification time.
    pub modified: Option<Time>,
}

/// The effect of a rename if an entry of the new name already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// The existing entry is replaced atomically, if neither of the two is a directory, or if both
    /// are and the existing one is empty.
    Replace,
    /// The rename fails with `Exists`.
    Keep,
    /// The two entries exchange their names.
    Exchange,
}

/// The effect of setting an extended attribute that exists, or that does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// The value is set in both cases.
    #[default]
    Any,
    /// Fails with `Exists` if the attribute is set already.
    Create,
    /// Fails with `Os(ENODATA)` if the attribute is not set.
    Replace,
}

/// The space of a file system, as `statfs` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The size of the file system.
    pub total_bytes: u64,
    /// The free space, including the part that is reserved for root.
    pub free_bytes: u64,
    /// The space that is free for users other than root.
    pub available_bytes: u64,
    /// The number of entries that can exist; 0 if the file system does not report it.
    pub entries: u64,
    /// The number of entries that can still be created; 0 if the file system does not report it.
    pub entries_free: u64,
    /// The largest number of bytes of a file's name.
    pub name_bytes_max: u32,
}

impl Default for Space {
    /// No space, and names of up to [`NAME_BYTES_MAX`] bytes.
    fn default() -> Space {
        Space {
            total_bytes: 0,
            free_bytes: 0,
            available_bytes: 0,
            entries: 0,
            entries_free: 0,
            name_bytes_max: NAME_BYTES_MAX as u32,
        }
    }
}
