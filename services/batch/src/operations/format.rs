//! The constants of the format of the operation log.

/// The first bytes of a file of the log, with the version of the format.
pub(super) const HEADER: [u8; 16] = *b"QUELL OPS 1\0\0\0\0\0";

/// The kinds of operations, in the lowest bits of the byte of an operation.
pub(super) const KIND: u8 = 0x07;
/// The name, or the inode, is removed.
pub(super) const REMOVE: u8 = 0;
/// The entry is created, with its inode.
pub(super) const CREATE: u8 = 1;
/// The name of a directory is created.
pub(super) const NAME_DIRECTORY: u8 = 2;
/// The name of a file with several names is created.
pub(super) const LINK: u8 = 3;
/// The inode that the snapshot has for the key is changed.
pub(super) const CHANGE: u8 = 4;

/// The key is in another directory than the key of the previous operation.
pub(super) const OTHER_DIRECTORY: u8 = 0x08;
/// Mode, owner, group and number of names are equal in the inode with which this one is compared.
pub(super) const SAME_ATTRIBUTES: u8 = 0x10;
/// Both times of the inode are equal.
pub(super) const ONE_TIME: u8 = 0x20;
/// A created inode has no content, no size and no extended attributes; a changed inode has the same
/// content, size and extended attributes as in the snapshot.
pub(super) const SAME_CONTENT: u8 = 0x40;
/// The content is the first data file of the batch for the inode, which has no extended attributes.
pub(super) const OWN_FILE: u8 = 0x80;

/// A block is ended when the entries that it makes have this many bytes.
pub(super) const ENTRIES_BYTES: usize = 64 << 10;
