//! The subject of a recording: a tree or a disk. Its files have names in the image: paths below the
//! root of a tree, or positions in the backing chain of a disk image.

use quell_vfs::{Attributes, Context, FileSystem, NodeId, Result};

use crate::disk_name::{disk_name, parse_disk_name};
use crate::image::{BootImage, ImageKind};

/// The subject of a recording.
#[derive(Debug, Clone)]
pub enum Subject {
    /// Files of the tree whose index has this generation.
    Tree(u128),
    /// The files of a disk, by their paths at the time of the recording: node n + 1 is the file at
    /// position n.
    Disk(Vec<Vec<u8>>),
}

impl Subject {
    /// Returns the kind of an image of this subject.
    pub fn kind(&self) -> ImageKind {
        match self {
            Subject::Tree(generation) => ImageKind::Tree(*generation),
            Subject::Disk(_) => ImageKind::Disk,
        }
    }

    /// Returns whether an older image can be merged with a recording of this subject: it must be of
    /// the same generation of the tree, or of the same disk with no file changed.
    pub fn can_merge(&self, fs: &dyn FileSystem, old: &BootImage) -> bool {
        let as_now = |number| {
            let file = old.file(number);
            let now = self.find(fs, file.name);
            now.is_some_and(|now| now.size_bytes == file.size_bytes && now.modified == file.modified)
        };
        let is_disk = matches!(self, Subject::Disk(_));
        old.kind() == self.kind() && (!is_disk || (0..old.files()).all(as_now))
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
