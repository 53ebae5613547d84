//! The subject of a recording: a tree or a disk. Its files have names in the image: paths below the
//! root of a tree, or positions in the backing chain of a disk image.

use std::sync::Arc;

use quell_vfs::{Attributes, Context, FileSystem, NodeId, Result};

use crate::disk_name::{disk_name, parse_disk_name};
use crate::identity::Identity;
use crate::image::{BootImage, ImageKind};
use crate::validity::{IndexedTree, identity_of, valid_file};

/// The subject of a recording.
#[derive(Debug, Clone)]
pub enum Subject {
    /// Files of a tree.
    Tree(Arc<dyn IndexedTree>),
    /// The files of a disk, by their paths at the time of the recording: node n + 1 is the file at
    /// position n.
    Disk(Vec<Vec<u8>>),
}

impl Subject {
    /// Returns the kind of an image of this subject.
    pub fn kind(&self) -> ImageKind {
        match self {
            Subject::Tree(tree) => ImageKind::Tree(tree.generation()),
            Subject::Disk(_) => ImageKind::Disk,
        }
    }

    /// Returns whether an older image can be merged with a recording of this subject: it must be of
    /// the same generation of the tree, have a file that is the same in the tree, or be of the same
    /// disk with no file changed.
    pub fn can_merge(&self, fs: &dyn FileSystem, old: &BootImage) -> bool {
        let same_kind = old.kind() == self.kind();
        let mut files = 0..old.files();
        match self {
            Subject::Tree(_) => same_kind || files.any(|number| self.valid_file(fs, old, number).is_some()),
            Subject::Disk(_) => same_kind && files.all(|number| self.valid_file(fs, old, number).is_some()),
        }
    }

    /// Returns the attributes of a file of an older image if the blocks in the image are still the
    /// blocks of the file.
    pub fn valid_file(&self, fs: &dyn FileSystem, old: &BootImage, number: u32) -> Option<Attributes> {
        if let Subject::Tree(tree) = self {
            return valid_file(old, number, fs, &**tree);
        }
        let file = old.file(number);
        let now = self.find(fs, file.name)?;
        (now.size_bytes == file.size_bytes && now.modified == file.modified).then_some(now)
    }

    /// Returns the number of blocks of an older image whose files have not changed.
    pub fn valid_blocks(&self, fs: &dyn FileSystem, old: &BootImage) -> u64 {
        let valid = (0..old.files()).filter(|number| self.valid_file(fs, old, *number).is_some());
        valid.map(|number| old.blocks_of(number)).sum()
    }

    /// Returns the identity of a file for its row in an image.
    pub(crate) fn identity(&self, now: &Attributes) -> Option<Identity> {
        match self {
            Subject::Tree(tree) => identity_of(&**tree, now),
            Subject::Disk(_) => None,
        }
    }

    pub(crate) fn name(&self, fs: &dyn FileSystem, node: NodeId) -> Result<Vec<u8>> {
        match self {
            Subject::Tree(_) => fs.path(node),
            Subject::Disk(paths) => {
                let position = node.0 as usize - 1;
                Ok(disk_name(position, &paths[position]))
            }
        }
    }

    /// Returns the file with this name in an image of the same subject.
    pub fn find(&self, fs: &dyn FileSystem, name: &[u8]) -> Option<Attributes> {
        match self {
            Subject::Tree(_) => fs.attributes_of_path(&Context::OWN, name).ok().flatten(),
            Subject::Disk(paths) => {
                let position = parse_disk_name(name)
                    .map(|(position, _)| position)
                    .filter(|position| *position < paths.len())?;
                fs.attributes(&Context::OWN, NodeId(position as u64 + 1)).ok()
            }
        }
    }
}
