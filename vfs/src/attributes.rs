//! The attributes of a node, as `stat` returns them: kind, permissions, owners, sizes, times.

/// Identifies one node of a mounted file system, for as long as the node is referenced. The root is
/// node 0. The value is at most 2^64 - 2, so that a frontend can add 1 for inode numbers, which are
/// never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// Identifies a file on one machine, for as long as the file exists: names with equal identities
/// are names of the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIdentity {
    /// The number of the file system, as `st_dev` packs it.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
}

/// The seven kinds of node in Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// Converts the type bits of `st_mode`; returns `None` for bits that are not a type.
    pub fn from_mode(mode: u32) -> Option<Kind> {
        Some(match mode & 0o170_000 {
            0o100_000 => Kind::File,
            0o040_000 => Kind::Dir,
            0o120_000 => Kind::Symlink,
            0o010_000 => Kind::Fifo,
            0o140_000 => Kind::Socket,
            0o020_000 => Kind::CharDevice,
            0o060_000 => Kind::BlockDevice,
            _ => return None,
        })
    }

    /// Returns the type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            Kind::File => 0o100_000,
            Kind::Dir => 0o040_000,
            Kind::Symlink => 0o120_000,
            Kind::Fifo => 0o010_000,
            Kind::Socket => 0o140_000,
            Kind::CharDevice => 0o020_000,
            Kind::BlockDevice => 0o060_000,
        }
    }

    /// Returns the letter that `find -printf %y` prints.
    pub fn letter(self) -> char {
        match self {
            Kind::File => 'f',
            Kind::Dir => 'd',
            Kind::Symlink => 'l',
            Kind::Fifo => 'p',
            Kind::Socket => 's',
            Kind::CharDevice => 'c',
            Kind::BlockDevice => 'b',
        }
    }
}

/// A point in time in the form of `stat`. `nanoseconds` is below 1,000,000,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds since 1970, rounded down.
    pub seconds: i64,
    /// The rest, in nanoseconds.
    pub nanoseconds: u32,
}

/// All attributes that `stat` returns except the access time. Quell does not keep access times and
/// reports the modification time instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The number of the node.
    pub node: NodeId,
    /// The kind of the node.
    pub kind: Kind,
    /// The lower twelve bits of `st_mode`.
    pub permissions: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of hard links.
    pub nlink: u32,
    /// Major and minor number for devices as `st_rdev` packs them, 0 otherwise.
    pub rdev: u64,
    /// The size; for a symbolic link the length of its target.
    pub size_bytes: u64,
    /// The block count, in units of 512 bytes, as `st_blocks`.
    pub blocks: u64,
    /// The time of the last change of the data.
    pub modified: Time,
    /// The time of the last change of the data or attributes.
    pub changed: Time,
}

impl Attributes {
    /// Returns `st_mode`: kind and permissions together.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.permissions
    }
}
