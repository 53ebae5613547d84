//! The options of a copy, and the interface that receives its results.

use std::num::NonZeroU32;
use std::sync::Arc;

use quell_posix::Dir;
use quell_vfs::{Error, Time};

/// A tree, or the entries of a directory, to copy.
pub struct Source {
    /// The directory of the entry.
    pub dir: Arc<dyn Dir>,
    /// The name of the entry and of its copy. With `None`, all entries of the directory are copied,
    /// but not the attributes of the directory itself.
    pub name: Option<Vec<u8>>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One of several parts of the files of a tree, which have about equal numbers of files. A hash of
/// its path assigns a file to a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    index: u32,
    count: NonZeroU32,
}

impl Part {
    /// Returns part `index`, counted from 0, of `count` parts; `None` if there is no such part.
    pub fn new(index: u32, count: u32) -> Option<Part> {
        NonZeroU32::new(count).filter(|count| index < count.get()).map(|count| Part { index, count })
    }

    /// Returns whether a path belongs to this part. All processes compute the same result.
    pub(crate) fn has(self, path: &[u8]) -> bool {
        let hash = blake3::hash(path);
        let [a, b, c, d, ..] = *hash.as_bytes();
        u32::from_le_bytes([a, b, c, d]) % self.count == self.index
    }
}

/// The owners of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// Each copy gets the owner and the group of its source, which needs root.
    OfSource,
    /// All copies belong to this user. Copies of files of other users have no set-id bits: they
    /// would run with the rights of this user.
    User(u32),
}

/// The options of a copy.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The number of threads that copy.
    pub threads: usize,
    /// Whether each copy is read back and verified.
    pub verifies: bool,
    /// Whether a file that exists with the size and time of the source is compared by content.
    /// Otherwise it counts as equal.
    pub compares_content: bool,
    /// The owners of the copies.
    pub owners: Owners,
    /// Whether the copies get the `user.` attributes of the source.
    pub keeps_xattrs: bool,
    /// Copies only the files and links of this part, and all directories.
    pub part: Option<Part>,
}

/// A regular file that is complete at the destination.
#[derive(Debug, Clone, Copy)]
pub struct CopiedFile<'a> {
    /// The path of the file relative to the destination directory.
    pub path: &'a [u8],
    /// The size of the file.
    pub size_bytes: u64,
    /// The modification time of the file.
    pub modified: Time,
    /// The BLAKE3 checksum of the content. `None` for a file that existed and was not read.
    pub blake3: Option<[u8; 32]>,
}

/// Receives the results of a copy. Any thread may call it.
pub trait Report: Sync {
    /// A file is complete at the destination.
    fn copied(&self, file: &CopiedFile<'_>);

    /// An entry was not copied, or not completely. If it is a directory that cannot be read or
    /// created, nothing below it is copied. `path` is relative to the destination directory.
    fn failed(&self, path: &[u8], error: &Error);
}
