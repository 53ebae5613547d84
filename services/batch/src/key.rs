//! The keys of a name space: the inode number of a directory in big endian, then a name. All
//! entries of a directory are adjacent, in the order of their names.

use crate::entry::LINKED;

/// The length of the directory's number in a key.
pub(crate) const DIR_BYTES: usize = 8;

/// A key of a name space.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Vec<u8>);

impl Key {
    /// Returns the key of a name in a directory.
    pub fn of_name(dir: u64, name: &[u8]) -> Key {
        let mut key = Vec::with_capacity(DIR_BYTES + name.len());
        key.extend_from_slice(&dir.to_be_bytes());
        key.extend_from_slice(name);
        Key(key)
    }

    /// Returns the key of the inode of a directory.
    pub fn of_dir(dir: u64) -> Key {
        Key(dir.to_be_bytes().to_vec())
    }

    /// Returns the key of the inode of a file with several names.
    pub fn of_linked(inode: u64) -> Key {
        Key::of_name(LINKED, &inode.to_be_bytes())
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Divides a key into the directory's number and the name. `None` if it is too short.
pub fn split(key: &[u8]) -> Option<(u64, &[u8])> {
    let (dir, name) = key.split_first_chunk::<DIR_BYTES>()?;
    Some((u64::from_be_bytes(*dir), name))
}
