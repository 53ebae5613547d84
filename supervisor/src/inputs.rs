//! Files that the user named, opened once.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use quell_index::Image;
use quell_mount_spec::Ownership;
use serde::{Deserialize, Serialize};

use crate::display::shown;
use crate::failure::Failure;
use crate::resources;

/// Returns the path with all symbolic links resolved.
pub fn real_path(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))
}

/// A file that was looked up and opened once. Later uses take the descriptor, so that they cause no
/// further requests to the file system. Every launch on every node would repeat them.
#[derive(Debug)]
pub struct InputFile {
    /// The path with all symbolic links resolved.
    pub path: PathBuf,
    /// The open file or directory.
    pub file: File,
    /// The attributes of the original, if `file` is a copy in memory that another node has sent.
    pub origin: Option<Origin>,
}

/// The attributes of a file on the shared file system, of which this node has a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The mode, with the type of the file.
    pub mode: u32,
    /// Whether the group bits of the mode are the mask of an access control list.
    pub has_acl: bool,
    /// The number of the inode.
    pub inode: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The time of the last modification: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
}

impl Origin {
    /// Returns the attributes of an open file.
    pub fn read(file: &File, path: &Path) -> quell_vfs::Result<Origin> {
        let Ownership { uid, gid, mode, has_acl } = Ownership::read(file, path)?;
        let found =
            file.metadata().map_err(|e| quell_vfs::Error::from_io(e, "stat", path.as_os_str().as_bytes()))?;
        let modified = (found.mtime(), u32::try_from(found.mtime_nsec()).unwrap_or(0));
        Ok(Origin { uid, gid, mode, has_acl, inode: found.ino(), size_bytes: found.size(), modified })
    }
}

impl InputFile {
    /// Opens a file or a directory for reading.
    pub fn open(path: &Path) -> Result<InputFile, Failure> {
        let failed = |e: std::io::Error| Failure::wrong_input(format!("{}: {e}", shown(path)));
        // Opening a FIFO must not block until a writer opens it.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let file =
            File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path).map_err(failed)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(failed)?;
        Ok(InputFile { path, file, origin: None })
    }

    /// Returns the same open file with another descriptor.
    pub fn try_clone(&self) -> std::io::Result<InputFile> {
        let InputFile { path, file, origin } = self;
        Ok(InputFile { path: path.clone(), file: file.try_clone()?, origin: *origin })
    }

    /// Returns the owner and the mode of the file, for the rules of trust. For a copy in memory,
    /// returns the owner and the mode of the original.
    pub fn ownership(&self) -> quell_vfs::Result<Ownership> {
        match self.origin {
            None => Ownership::read(&self.file, &self.path),
            Some(Origin { uid, gid, mode, has_acl, .. }) => Ok(Ownership { uid, gid, mode, has_acl }),
        }
    }

    /// Returns a text that differs for another file, and for another state of the same file.
    pub fn identity(&self) -> Result<String, Failure> {
        let (inode, size_bytes, (seconds, nanoseconds)) = match self.origin {
            Some(Origin { inode, size_bytes, modified, .. }) => (inode, size_bytes, modified),
            None => {
                let failed = |e| Failure::wrong_input(format!("{}: {e}", shown(&self.path)));
                let found = self.file.metadata().map_err(failed)?;
                (found.ino(), found.size(), (found.mtime(), found.mtime_nsec() as u32))
            }
        };
        Ok(format!("{inode}.{size_bytes}.{seconds}.{nanoseconds}"))
    }

    /// Loads the index in the file.
    pub fn index(&self) -> Result<Image, Failure> {
        resources::load_index(&self.file, &self.path)
    }

    /// Returns whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.is_dir())
    }
}

/// Returns the path of the directory that an index describes.
pub fn root_of(image: &Image) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(image.root_path()))
}
