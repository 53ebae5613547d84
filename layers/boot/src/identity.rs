//! The attributes of a file that identify it where it was indexed. Pure.

use quell_vfs::Time;

/// Identifies a file where it was indexed, together with its size and modification time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The number of hard links, at least 1.
    pub nlink: u32,
    /// The status change time.
    pub changed: Time,
    /// The inode number, or 0.
    pub inode: u64,
}
