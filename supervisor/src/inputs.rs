//! Files that the user named, opened once.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use quell_index::Image;

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
        Ok(InputFile { path, file })
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
