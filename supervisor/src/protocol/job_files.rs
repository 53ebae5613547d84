//! The answer of a job holder, as JSON, and the files that a
//! command opens there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use quell_job::SharedBytes;
use quell_mount_spec::SharedFile;
use quell_wire::job::{FileAttributes, FileState};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::inputs::{InputFile, Origin};

/// The files in the memory of a process.
#[derive(Debug, Serialize, Deserialize)]
pub struct FilesInMemory {
    /// The process.
    pub holder: u32,
    /// The files, in the order of the plan.
    pub files: Vec<FileInMemory>,
}

/// A file in the memory of a process, or the reason why it could not be opened.
#[derive(Debug, Serialize, Deserialize)]
pub enum FileInMemory {
    /// A copy of the file.
    Copy {
        /// The bytes of the path, without symbolic links.
        path: Vec<u8>,
        /// The attributes of the original.
        origin: Origin,
        /// The copy.
        shared: SharedFile,
    },
    /// It could not be opened.
    Failed(String),
}

impl From<&SharedBytes> for FileInMemory {
    fn from(file: &SharedBytes) -> FileInMemory {
        match (&file.state, file.shared) {
            (FileState::Open(attributes), Some(shared)) => {
                FileInMemory::Copy { path: attributes.path.clone(), origin: Origin::from(attributes), shared }
            }
            (FileState::Failed(reason), _) => FileInMemory::Failed(reason.clone()),
            (FileState::Open(_), None) => FileInMemory::Failed("it is not in memory".into()),
        }
    }
}

impl From<&FileAttributes> for Origin {
    fn from(file: &FileAttributes) -> Origin {
        Origin {
            uid: file.uid,
            gid: file.gid,
            mode: file.mode,
            has_acl: file.has_acl,
            inode: file.inode,
            size_bytes: file.size_bytes,
            modified: (file.modified_seconds, file.modified_nanoseconds),
        }
    }
}

impl FileInMemory {
    /// Opens the copy.
    pub fn open(&self, holder: u32) -> Result<InputFile, Failure> {
        match self {
            FileInMemory::Copy { path, origin, shared } => {
                let gone = || Failure::cannot("the job holder has ended");
                let file = shared.open(holder).ok_or_else(gone)?;
                Ok(InputFile { path: OsStr::from_bytes(path).into(), file, origin: Some(*origin) })
            }
            FileInMemory::Failed(reason) => Err(Failure::wrong_input(reason.clone())),
        }
    }
}
