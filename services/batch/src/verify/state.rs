//! The intermediate results of a verification.

use std::collections::BTreeSet;
use std::ops::Range;

use quell_vfs::Result;

use super::refusal::refused;
use crate::batch::ConflictReason;
use crate::certificate::PreImage;
use crate::entry::{Content, Inode};

/// The directory of the snapshot whose entries are being read.
pub(super) struct ExistingDir {
    pub(super) dir: u64,
    pub(super) pre_image: PreImage,
    /// The reason for which names in the directory cannot be changed.
    pub(super) refusal: Option<ConflictReason>,
}

/// The number of 64-bit words in a block of [`Numbers`].
const WORDS_OF_BLOCK: usize = 512;

/// The inode numbers of a batch, and a bit for each of them that was found.
pub(super) struct Numbers {
    range: Range<u64>,
    used: u64,
    /// The bits, in blocks. A block exists after one of its numbers was found, so the memory
    /// depends on the entries of the batch, and not only on the number that the certificate states.
    found: Vec<Option<Box<[u64; WORDS_OF_BLOCK]>>>,
}

impl Numbers {
    /// Returns the first `used` numbers of `range`. The last number of the range is for the
    /// directory of entries in conflict.
    pub(super) fn new(range: Range<u64>, used: u64) -> Result<Numbers> {
        if used >= range.end - range.start {
            return Err(refused("the batch has used more inode numbers than it has"));
        }
        // At most 2^17 blocks, for 2^32 numbers.
        let found = vec![None; used.div_ceil(64 * WORDS_OF_BLOCK as u64) as usize];
        Ok(Numbers { range, used, found })
    }

    /// Returns whether a number belongs to the batch.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.range.contains(&number)
    }

    /// Records that an inode with this number was found.
    pub(super) fn take(&mut self, number: u64) -> Result<()> {
        let index = number.wrapping_sub(self.range.start);
        if index >= self.used {
            return Err(refused("an inode number is not one that the batch states to have used"));
        }
        let (block, word, bit) = place_of(index);
        let word = &mut self.found[block].get_or_insert_with(|| Box::new([0; WORDS_OF_BLOCK]))[word];
        if *word & bit != 0 {
            return Err(refused("two new inodes have one number"));
        }
        *word |= bit;
        Ok(())
    }

    /// Returns whether an inode with the last number that the batch states was found.
    pub(super) fn is_last_found(&self) -> bool {
        match self.used.checked_sub(1) {
            Some(last) => {
                let (block, word, bit) = place_of(last);
                self.found[block].as_ref().is_some_and(|block| block[word] & bit != 0)
            }
            None => true,
        }
    }
}

/// Returns the block, the word in it, and the bit in the word for a number.
fn place_of(index: u64) -> (usize, usize, u64) {
    let word = (index / 64) as usize;
    (word / WORDS_OF_BLOCK, word % WORDS_OF_BLOCK, 1 << (index % 64))
}

/// A directory that the batch has created.
#[derive(Debug, Default)]
pub(super) struct NewDir {
    /// The statements of its inode: the parent directory, the hash of the name there, and the
    /// number of links.
    pub(super) stated: Option<(u64, u64, u32)>,
    /// The directory in which its name was found, and the hash of this name.
    pub(super) named: Option<(u64, u64)>,
    /// The number of its subdirectories.
    pub(super) subdirs: u32,
}

/// A new file with several names.
#[derive(Debug, Default)]
pub(super) struct NewLinked {
    /// The number of names that were found.
    pub(super) names: u32,
    /// The types that the names state.
    pub(super) types: BTreeSet<u32>,
    /// The number of names and the type that the inode states.
    pub(super) stated: Option<(u32, u32)>,
}

/// The changes of an inode of the snapshot.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The inode in the snapshot.
    pub(super) before: Option<Inode>,
    /// The state in which the batch leaves the inode, if it has changed it.
    pub(super) after: Option<Inode>,
    /// The name in the snapshot at which the inode was embedded, if the batch has not removed it.
    pub(super) embedded_at: Option<Name>,
    /// Whether the batch has removed the inode of a directory or of a linked file.
    pub(super) is_removed: bool,
    /// The names that the batch has removed.
    pub(super) removed: Vec<RemovedName>,
    /// The names that the batch has added.
    pub(super) added: Vec<Name>,
}

/// A directory and a name in it.
pub(super) type Name = (u64, Vec<u8>);

/// A name that the batch has removed.
#[derive(Debug, Clone)]
pub(super) struct RemovedName {
    pub(super) dir: u64,
    pub(super) name: Vec<u8>,
    /// Whether the batch has given the name to another inode.
    pub(super) is_replaced: bool,
}

/// The inode of the current image that a batch changes.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) inode: Inode,
    /// The name at which the inode is embedded.
    pub(super) embedded_at: Option<Name>,
    /// Whether the inode has its content and its extended attributes.
    pub(super) is_whole: bool,
}

impl Current {
    pub(super) fn new(inode: Inode, embedded_at: Option<Name>) -> Current {
        Current { inode, embedded_at, is_whole: true }
    }

    /// Removes the parts of the inode that may be large.
    pub(super) fn remove_content(&mut self) {
        remove_content(&mut self.inode);
        self.is_whole = false;
    }
}

/// Removes the parts of an inode that may be large.
pub(super) fn remove_content(inode: &mut Inode) {
    if let Content::Inline(_) = inode.content {
        inode.content = Content::Empty;
    }
    inode.xattrs = Vec::new();
}
