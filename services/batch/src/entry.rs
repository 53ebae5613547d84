//! The values of a name space: inodes and the names that refer to them.

use quell_vfs::{Attributes, Error, ErrorKind, Kind, NodeId, Result, Time, check_name};
use serde::{Deserialize, Serialize};

/// The inode number of the root directory.
pub const ROOT: u64 = 0;
/// The directory whose entries are the inodes of files with several names. It has no name itself.
pub(crate) const LINKED: u64 = 1;
/// The smallest inode number that a new entry can have.
pub const FIRST_INODE: u64 = 2;
/// The largest number of directories between the root and an entry. A longer path contains a cycle.
pub const DEPTH_MAX: usize = 1 << 16;
/// The largest content that is stored in an inode, in bytes. A larger one is a file of the store.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// A value of a name space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// An inode: of a file with one name, at that name; of a directory, at the empty name in the
    /// directory itself; of a file with several names, in the directory of linked inodes.
    Inode(Inode),
    /// The name of a directory.
    Dir {
        /// The inode number of the directory.
        inode: u64,
    },
    /// A name of a file that has several.
    Link {
        /// The inode number of the file.
        inode: u64,
        /// The type bits of `st_mode`.
        type_bits: u32,
    },
}

/// The attributes and the content of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// The inode number.
    pub number: u64,
    /// `st_mode`: the kind and the permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of names; of a directory, the number of its subdirectories and 2.
    pub links: u32,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The time of the last change of the content.
    pub modified: Timestamp,
    /// The time of the last change of the content or the attributes.
    pub changed: Timestamp,
    /// The content.
    pub content: Content,
    /// The extended attributes, in the order of their names.
    pub xattrs: Vec<Xattr>,
}

/// A point in time, as `stat` reports it: seconds since 1970 and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub i64, pub u32);

impl From<Time> for Timestamp {
    fn from(time: Time) -> Timestamp {
        Timestamp(time.seconds, time.nanoseconds)
    }
}

impl From<Timestamp> for Time {
    fn from(Timestamp(seconds, nanoseconds): Timestamp) -> Time {
        Time { seconds, nanoseconds }
    }
}

/// One extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xattr {
    /// The name with its prefix, for example `user.author`.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The value.
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// Batch numbers from this one on stand for the synchronous mode of users other than the owner of
/// the store: the number minus this one is the ID of the user.
pub const FILES_OF_USERS: u64 = 1 << 63;

/// A data file of the store. Only the clients of its batch write to it. Other clients copy it
/// first, so that a batch reads the bytes of its snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DataFile {
    /// The number of the batch whose clients write to the file; 0 is the synchronous mode.
    pub batch: u64,
    /// The inode number for which the file was created. The inode with this content has the same
    /// number, except after a conflict: a content that was left out is kept in another inode.
    pub inode: u64,
    /// Distinguishes the data files of one batch and inode. It is 0, unless two clients have begun
    /// the file at the same time, or one has ended before the inode referred to it.
    pub version: u32,
}

/// The largest path of a file below the adopted tree, in bytes.
pub const ADOPTED_PATH_BYTES_MAX: usize = 16 << 10;

/// A file of the tree that a store has adopted, as it was at the time of the adoption. The file is
/// only read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AdoptedFile {
    /// The path below the tree.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// The inode number in the file system of the tree.
    pub inode: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The time of the last change of the content.
    pub modified: Timestamp,
    /// The time of the last change of the content or the attributes.
    pub changed: Timestamp,
}

impl AdoptedFile {
    /// Returns whether the path can be a path below a tree: its components are names, and its
    /// length is within the limit.
    pub(crate) fn has_valid_path(&self) -> bool {
        let mut names = self.path.split(|byte| *byte == b'/');
        self.path.len() <= ADOPTED_PATH_BYTES_MAX && names.all(|name| check_name(name).is_ok())
    }
}

/// The content of an inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// No bytes: zeros up to the size of the file.
    Empty,
    /// The first bytes of a file, at most [`INLINE_BYTES_MAX`]; zeros follow up to its size.
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A data file of the store.
    File(DataFile),
    /// The target of a symbolic link.
    Target(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The directory that contains this directory, and the name there.
    Parent {
        /// The inode number of the containing directory.
        dir: u64,
        /// The name; empty for the root.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// A file of the adopted tree.
    Adopted(Box<AdoptedFile>),
    /// The server of a private store has removed the bytes and the extended attributes, because
    /// the user may not read the file. No stored inode has this content.
    Hidden,
}

impl Content {
    /// Returns whether the bytes are in a file, and not in the inode.
    pub fn is_in_file(&self) -> bool {
        matches!(self, Content::File(_) | Content::Adopted(_))
    }
}

impl Inode {
    /// Sets the times of a directory to that of a change of its names by another server, if it is
    /// the last change.
    pub fn touch(&mut self, touched: Timestamp) {
        if touched > self.changed {
            (self.modified, self.changed) = (touched, touched);
        }
    }

    /// Returns the kind of the node.
    ///
    /// # Errors
    /// `Damaged` if the mode has no valid kind.
    pub fn kind(&self) -> Result<Kind> {
        Kind::from_mode(self.mode).ok_or_else(|| damaged("the type of a file"))
    }

    /// Returns the directory that contains this directory.
    ///
    /// # Errors
    /// `Damaged` if the inode is not one of a directory.
    pub(crate) fn above(&self) -> Result<u64> {
        match self.content {
            Content::Parent { dir, .. } => Ok(dir),
            _ => Err(damaged("a directory")),
        }
    }

    /// Returns the attributes in the form of the contract.
    ///
    /// # Errors
    /// `Damaged` if the mode has no kind.
    pub fn attributes(&self) -> Result<Attributes> {
        let kind = self.kind()?;
        Ok(Attributes {
            node: NodeId(self.number),
            kind,
            permissions: self.mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
            nlink: self.links,
            rdev: 0,
            size_bytes: self.size_bytes,
            blocks: self.size_bytes.div_ceil(512),
            modified: self.modified.into(),
            changed: self.changed.into(),
        })
    }
}

impl Entry {
    /// Encodes the entry for a table or the key-value store.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("an entry has no value that postcard refuses")
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not an encoded entry.
    pub fn decode(bytes: &[u8]) -> Result<Entry> {
        let Ok((entry, [])) = postcard::take_from_bytes(bytes) else { return Err(damaged("an entry")) };
        match &entry {
            Entry::Inode(Inode { content: Content::Adopted(file), .. }) if !file.has_valid_path() => {
                Err(damaged("the path of an adopted file"))
            }
            _ => Ok(entry),
        }
    }

    /// Returns the inode number of an encoded entry, without decoding the rest.
    ///
    /// # Errors
    /// `Damaged` if the bytes do not begin as an encoded entry.
    pub(crate) fn encoded_inode_number(bytes: &[u8]) -> Result<u64> {
        // All kinds of entries begin with the number of the kind, and then the inode number.
        match postcard::take_from_bytes::<(u32, u64)>(bytes) {
            Ok(((_, number), _)) => Ok(number),
            Err(_) => Err(damaged("an entry")),
        }
    }

    /// Returns the approximate size of the entry when it is encoded, in bytes.
    pub(crate) fn content_bytes(&self) -> usize {
        // An entry without content and extended attributes has about 48 bytes.
        const OTHER_BYTES: usize = 48;
        let Entry::Inode(inode) = self else { return OTHER_BYTES };
        let content = match &inode.content {
            Content::Inline(bytes) | Content::Target(bytes) => bytes.len(),
            Content::Parent { name, .. } => name.len(),
            Content::Adopted(file) => file.path.len(),
            Content::Empty | Content::File(_) | Content::Hidden => 0,
        };
        let xattrs = inode.xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len());
        OTHER_BYTES + content + xattrs.sum::<usize>()
    }

    /// Returns the number of the inode that this entry is, or refers to.
    pub fn inode_number(&self) -> u64 {
        match self {
            Entry::Inode(inode) => inode.number,
            Entry::Dir { inode } | Entry::Link { inode, .. } => *inode,
        }
    }

    /// Returns the kind of the node.
    ///
    /// # Errors
    /// `Damaged` if the mode has no valid kind.
    pub fn kind(&self) -> Result<Kind> {
        match self {
            Entry::Inode(inode) => inode.kind(),
            Entry::Dir { .. } => Ok(Kind::Dir),
            Entry::Link { type_bits, .. } => {
                Kind::from_mode(*type_bits).ok_or_else(|| damaged("the type of a link"))
            }
        }
    }
}

/// Returns the error for bytes that do not have their format.
pub(crate) fn damaged(part: &'static str) -> Error {
    let source = Some(format!("{part} does not have its format").into());
    Error { source, ..Error::new(ErrorKind::Damaged, "read the name space", "") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_adopted_file_leads_to_a_place_below_the_tree() {
        let time = Timestamp(0, 0);
        let decoded = |path: &[u8]| {
            let file =
                AdoptedFile { path: path.to_vec(), inode: 5, size_bytes: 1, modified: time, changed: time };
            let inode = Inode {
                number: 2,
                mode: 0o100_644,
                uid: 0,
                gid: 0,
                links: 1,
                size_bytes: 1,
                modified: time,
                changed: time,
                content: Content::Adopted(Box::new(file)),
                xattrs: Vec::new(),
            };
            Entry::decode(&Entry::Inode(inode).encode()).map(drop).map_err(|error| error.kind)
        };
        for good in [&b"a"[..], b"a/b", b"a/...", &[b'x'; 255]] {
            assert_eq!(decoded(good), Ok(()), "{}", good.escape_ascii());
        }
        let too_long = [&b"d/".repeat(ADOPTED_PATH_BYTES_MAX / 2)[..], b"d"].concat();
        let bad =
            [&b""[..], b"..", b"a/../b", b"a//b", b"/a", b"a/", b"./a", b"a\0", &[b'x'; 256], &too_long];
        for bad in bad {
            assert_eq!(decoded(bad), Err(ErrorKind::Damaged), "{}", bad.escape_ascii());
        }
    }
}
