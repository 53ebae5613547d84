//! The answer of a job holder, as JSON, and the files that a command opens there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use quell_job::CompleteFile;
use quell_mount_spec::SharedFile;
use quell_wire::job::{FileAttributes, FileState};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::id_map::IdMap;
use crate::inputs::{InputFile, Origin};
use crate::protocol::plan::JobCheck;

/// The files in the memory of a process.
#[derive(Debug, Serialize, Deserialize)]
pub struct FilesInMemory {
    /// The process.
    pub holder: u32,
    /// The files, in the order of the plan.
    pub files: Vec<FileInMemory>,
    /// The socket for shared blocks, if the process shares blocks.
    pub blocks_socket: Option<PathBuf>,
}

/// A file of a job that a command has opened.
#[derive(Debug)]
pub struct JobInput {
    /// The copy in memory.
    pub file: InputFile,
    /// The directory that the user named instead of the index beside it, without symbolic links.
    pub directory: Option<PathBuf>,
    /// The checks of its tree, if one node makes them for all.
    pub check: Option<JobCheck>,
}

/// A file in the memory of a process, or the reason why it could not be opened.
#[derive(Debug, Serialize, Deserialize)]
pub enum FileInMemory {
    /// A copy of the file.
    Copy {
        /// The bytes of the path, without symbolic links.
        path: Vec<u8>,
        /// The directory that the user named instead of the index beside it.
        directory: Option<Vec<u8>>,
        /// The attributes of the original.
        origin: Origin,
        /// The copy.
        shared: SharedFile,
        /// The checks of its tree, if one node makes them for all.
        check: Option<JobCheck>,
    },
    /// The reason why the file could not be opened.
    Failed(String),
}

impl FileInMemory {
    /// Returns the copy of a file. `users`, `groups`: the maps of this process's user namespace.
    pub fn new(file: &CompleteFile, check: Option<JobCheck>, users: &IdMap, groups: &IdMap) -> FileInMemory {
        match (&file.state, file.shared) {
            (FileState::Open(attributes), Some(shared)) => FileInMemory::Copy {
                path: attributes.path.clone(),
                directory: attributes.directory.clone(),
                origin: origin(attributes, users, groups),
                shared,
                check,
            },
            (FileState::Failed(reason), _) => FileInMemory::Failed(reason.clone()),
            (FileState::Open(_), None) => FileInMemory::Failed("it is not in memory".into()),
        }
    }

    /// Opens the copy.
    pub fn open(&self, holder: u32) -> Result<JobInput, Failure> {
        match self {
            FileInMemory::Copy { path, directory, origin, shared, check } => {
                let gone = || Failure::cannot("the job holder has ended");
                let file = shared.open(holder).ok_or_else(gone)?;
                let path_of = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
                Ok(JobInput {
                    file: InputFile { path: path_of(path), file, origin: Some(*origin) },
                    directory: directory.as_deref().map(path_of),
                    check: check.clone(),
                })
            }
            FileInMemory::Failed(reason) => Err(Failure::wrong_input(reason.clone())),
        }
    }
}

fn origin(file: &FileAttributes, users: &IdMap, groups: &IdMap) -> Origin {
    Origin {
        uid: users.inside(file.uid),
        gid: groups.inside(file.gid),
        mode: file.mode,
        has_acl: file.has_acl,
        inode: file.inode,
        size_bytes: file.size_bytes,
        modified: (file.modified_seconds, file.modified_nanoseconds),
    }
}
