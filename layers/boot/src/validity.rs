//! Decides which blocks of an image are still the blocks of the files in an index, by the rule of
//! docs/formats/boot.md. Pure: attributes must be available without I/O.

use std::fmt;

use quell_vfs::{Attributes, Context, FileSystem, Kind, NodeId, same_status_change};

use crate::identity::Identity;
use crate::image::{BootFile, BootImage, ImageKind};

/// One generation of the index of a tree.
pub trait IndexedTree: fmt::Debug + Send + Sync {
    /// Returns the number of the generation.
    fn generation(&self) -> u128;

    /// Returns the inode number that the index has for a file; 0 if the index has no number, or if
    /// the numbers are not persistent.
    fn inode(&self, node: NodeId) -> u64;

    /// Returns whether the tree lies where it was indexed: elsewhere, inode numbers and status
    /// change times of the index do not identify its files.
    fn is_original(&self) -> bool;
}

/// Returns the identity of a file of a tree; `None` if the index does not identify it.
pub(crate) fn identity_of(tree: &dyn IndexedTree, now: &Attributes) -> Option<Identity> {
    let Attributes { nlink, changed, .. } = *now;
    (tree.is_original() && nlink > 0).then(|| Identity { nlink, changed, inode: tree.inode(now.node) })
}

/// Returns whether the blocks of a file in an image are the blocks of the file with these
/// attributes in a tree. `same_generation`: the image was recorded with the tree's index.
pub(crate) fn is_valid(
    file: &BootFile<'_>,
    same_generation: bool,
    tree: &dyn IndexedTree,
    now: &Attributes,
) -> bool {
    if now.kind != Kind::File || now.size_bytes != file.size_bytes || now.modified != file.modified {
        return false;
    }
    if same_generation {
        return true;
    }
    let Some(Identity { nlink, changed, inode }) = file.identity else { return false };
    let indexed_inode = tree.inode(now.node);
    let is_same_inode = inode == indexed_inode || inode == 0 || indexed_inode == 0;
    // A different link count does not excuse a different status change time, unlike at an open: a
    // new file may have the inode number of a removed one, and get a hard link.
    is_same_inode && nlink == now.nlink && same_status_change(changed, now.changed)
}

/// The part of an image that is valid with an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Validity {
    /// The number of files in the image.
    pub files: u32,
    /// The number of files whose blocks are valid.
    pub valid_files: u32,
    /// The number of blocks of all files.
    pub blocks: u64,
    /// The number of blocks of the valid files.
    pub valid_blocks: u64,
}

impl Validity {
    /// Compares an image with the index of a tree. `fs`: the tree as the index describes it.
    pub fn of(image: &BootImage, fs: &dyn FileSystem, tree: &dyn IndexedTree) -> Validity {
        let mut validity = Validity { files: image.files(), ..Validity::default() };
        for number in 0..image.files() {
            let blocks = image.blocks_of(number);
            validity.blocks += blocks;
            if valid_file(image, number, fs, tree).is_some() {
                validity.valid_files += 1;
                validity.valid_blocks += blocks;
            }
        }
        validity
    }
}

/// Returns the attributes of a file in the tree if its blocks in the image are valid.
pub(crate) fn valid_file(
    image: &BootImage,
    number: u32,
    fs: &dyn FileSystem,
    tree: &dyn IndexedTree,
) -> Option<Attributes> {
    let file = image.file(number);
    let same_generation = image.kind() == ImageKind::Tree(tree.generation());
    let now = fs.attributes_of_path(&Context::OWN, file.name).ok().flatten()?;
    is_valid(&file, same_generation, tree, &now).then_some(now)
}

#[cfg(test)]
mod tests {
    use quell_vfs::Time;

    use super::*;

    #[derive(Debug)]
    struct Inodes(u64);

    impl IndexedTree for Inodes {
        fn generation(&self) -> u128 {
            1
        }

        fn inode(&self, _: NodeId) -> u64 {
            self.0
        }

        fn is_original(&self) -> bool {
            true
        }
    }

    const TIME: Time = Time { seconds: 7, nanoseconds: 5 };
    const LATER: Time = Time { seconds: 7, nanoseconds: 6 };

    fn attributes(kind: Kind, size_bytes: u64, modified: Time, changed: Time, nlink: u32) -> Attributes {
        let node = NodeId(3);
        let (permissions, uid, gid, rdev, blocks) = (0o644, 0, 0, 0, 8);
        Attributes { node, kind, permissions, uid, gid, nlink, rdev, size_bytes, blocks, modified, changed }
    }

    /// All combinations of changed and unchanged attributes, with and without inode numbers in the
    /// image and in the index.
    #[test]
    fn a_file_is_valid_only_if_everything_that_identifies_it_is_unchanged() {
        let mut valid_cases = 0;
        for case in 0..1 << 10_u32 {
            let is = |bit: u32| case >> bit & 1 == 1;
            let (size, modified, changed, links, number) = (is(0), is(1), is(2), is(3), is(4));
            let (identified, image_numbers, index_numbers) = (is(5), is(6), is(7));
            let (same_generation, other_kind) = (is(8), is(9));
            let (inode_there, inode_now) =
                (if image_numbers { 10 } else { 0 }, if index_numbers { 10 + u64::from(number) } else { 0 });
            let identity = Some(Identity { nlink: 1, changed: TIME, inode: inode_there });
            let file = BootFile::for_test(b"a", 100, TIME, identity.filter(|_| identified));
            let now = attributes(
                if other_kind { Kind::Symlink } else { Kind::File },
                100 + u64::from(size),
                if modified { LATER } else { TIME },
                if changed { LATER } else { TIME },
                1 + u32::from(links),
            );
            let numbers = image_numbers && index_numbers;
            let by_identity = identified && (!numbers || !number) && !changed && !links;
            let expected = !other_kind && !size && !modified && (same_generation || by_identity);
            valid_cases += u32::from(expected);
            assert_eq!(is_valid(&file, same_generation, &Inodes(inode_now), &now), expected, "{case:b}");
        }
        assert!(valid_cases > 0);
    }
}
