//! The subject of an image, and its names for files: paths below the root of a tree, or positions
//! in the backing chain of a disk image. The format is described in docs/formats/boot.md.

use quell_vfs::{Attributes, FileSystem, NodeId, Result, resolve};

use crate::image::{BootImage, Kind};

/// Maximum number of files in one backing chain.
pub const DISK_FILES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 4095;

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
    pub fn kind(&self) -> Kind {
        match self {
            Subject::Tree(generation) => Kind::Tree(*generation),
            Subject::Disk(_) => Kind::Disk,
        }
    }

    /// Returns whether an older image can be merged with a recording of this subject: it must be of
    /// the same generation of the tree, or of the same disk with no file changed.
    pub fn joins(&self, fs: &dyn FileSystem, old: &BootImage) -> bool {
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
                let place = node.0 as usize - 1;
                Ok(disk_name(place, &paths[place]))
            }
        }
    }

    /// Returns the file with this name in an image of the same subject.
    pub fn find(&self, fs: &dyn FileSystem, name: &[u8]) -> Option<Attributes> {
        match self {
            Subject::Tree(_) => resolve(fs, name).ok(),
            Subject::Disk(paths) => {
                let place = disk_place(name).map(|(place, _)| place).filter(|place| *place < paths.len())?;
                fs.attributes(NodeId(place as u64 + 1)).ok()
            }
        }
    }
}

/// Returns the name of the file at this position of a chain.
pub fn disk_name(place: usize, path: &[u8]) -> Vec<u8> {
    [place.to_string().as_bytes(), path].concat()
}

/// Returns a file's position in the chain, and its path when it was recorded; `None` for an invalid
/// name.
pub fn disk_place(name: &[u8]) -> Option<(usize, &[u8])> {
    let (digits, path) = name.split_at(name.iter().position(|b| *b == b'/')?);
    let place: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let is_plain = place < DISK_FILES_MAX && place.to_string().as_bytes() == digits;
    let is_path = path.len() > 1 && path.len() <= PATH_BYTES_MAX && !path.contains(&0);
    (is_plain && is_path).then_some((place, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disks_file_is_named_by_its_place_and_path() {
        assert_eq!(disk_place(&disk_name(12, b"/srv/a b")), Some((12, &b"/srv/a b"[..])));
        for name in [
            &b""[..],
            b"0",
            b"/srv",
            b"00/srv",
            b"+1/srv",
            b"64/srv",
            b"1/",
            b"1/a\0b",
            b"99999999999999999999/a",
        ] {
            assert_eq!(disk_place(name), None, "{name:?}");
        }
    }
}
