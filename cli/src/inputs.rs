//! Files and directories that the user named, opened and checked before they are used.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_index::{BuildOptions, Image, Progress, Tree, Trust};
use quell_posix::PosixDir;
use quell_vfs::Result;

use crate::failure::Failure;
use crate::{memory, progress};

/// Returns a path as one printable line; control characters and bytes that are not UTF-8 are
/// escaped.
pub fn shown(path: impl AsRef<Path>) -> String {
    quell_vfs::printable(path.as_ref().as_os_str().as_bytes())
}

/// Returns a path as a string for JSON, which escapes control characters itself. Bytes that are not
/// UTF-8 are escaped.
pub fn text_of(path: impl AsRef<Path>) -> String {
    match path.as_ref().to_str() {
        Some(text) => text.into(),
        None => path.as_ref().as_os_str().as_bytes().escape_ascii().to_string(),
    }
}

/// Does the same as `text_of`, for the bytes of a path within an index.
pub fn text_of_bytes(path: &[u8]) -> String {
    text_of(OsStr::from_bytes(path))
}

/// Does the same as `shown`, for the bytes of a path within an index.
pub fn shown_bytes(path: &[u8]) -> String {
    shown(OsStr::from_bytes(path))
}

/// Returns the path with all symbolic links resolved.
pub fn real_path(path: &Path) -> std::result::Result<PathBuf, Failure> {
    path.canonicalize().map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))
}

/// A file that was looked up and opened once. Later uses take the descriptor, so that they cause no
/// further requests to the file system. Every launch on every node would repeat them.
#[derive(Debug)]
pub struct Named {
    /// The path with all symbolic links resolved.
    pub path: PathBuf,
    pub file: File,
}

impl Named {
    pub fn open(path: &Path) -> std::result::Result<Named, Failure> {
        let failed = |e: std::io::Error| Failure::wrong_input(format!("{}: {e}", shown(path)));
        // Opening a FIFO must not block until a writer opens it.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let file =
            File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path).map_err(failed)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(failed)?;
        Ok(Named { path, file })
    }

    /// Loads the index in the file.
    pub fn index(&self) -> std::result::Result<Image, Failure> {
        memory::load_index(&self.file, &self.path)
    }

    pub fn is_dir(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.is_dir())
    }
}

/// Reads a small input file, or a pipe.
///
/// Errors: wrong input, if the file cannot be read or has more than `bytes_max` bytes.
pub fn read_small(path: &Path, bytes_max: u64) -> std::result::Result<Vec<u8>, Failure> {
    let failed = |e: std::io::Error| Failure::wrong_input(format!("{}: {e}", shown(path)));
    let mut content = Vec::new();
    File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut content)).map_err(failed)?;
    if content.len() as u64 > bytes_max {
        return Err(Failure::wrong_input(format!(
            "{} has more than {}, the most that is read of such a file",
            shown(path),
            indicatif::BinaryBytes(bytes_max)
        )));
    }
    Ok(content)
}

/// Returns the path of the directory that an index describes.
pub fn root_of(image: &Image) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(image.root_path()))
}

/// A request to read a tree.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// The tree's current location.
    pub directory: &'a Path,
    /// The path at which it was indexed first, which is the root path in the index.
    pub root_path: &'a Path,
    pub options: &'a BuildOptions,
    /// Number of requests in flight.
    pub threads: u16,
    pub trust: Option<Trust<'a>>,
    /// The number of entries of an older index, if there is one.
    pub expected: Option<u64>,
    pub quiet: bool,
}

impl Reading<'_> {
    /// Reads the tree with a progress bar, until Ctrl-C.
    pub fn read(&self) -> std::result::Result<Tree, Failure> {
        let interrupted = progress::interruption();
        let tree = self.read_unless(&|| interrupted.load(Ordering::Relaxed));
        match interrupted.load(Ordering::Relaxed) {
            true => Err(Failure::interrupted(
                "interrupted: nothing was written, and if there was an index, the old one is as it was",
            )),
            false => Ok(tree?),
        }
    }

    /// Does the same as `read`, but fails as soon as `unwanted` returns true.
    pub fn read_unless(&self, unwanted: &dyn Fn() -> bool) -> Result<Tree> {
        let progress = Progress::default();
        let what = format!("indexing {}", shown(self.directory));
        // The work runs in another thread, so it must not borrow `self`.
        let Reading { directory, root_path, options, threads, trust, .. } = *self;
        progress::watch(&what, &progress, self.expected, self.quiet, unwanted, || {
            let root = Arc::new(PosixDir::open(directory)?);
            let root_path = root_path.as_os_str().as_bytes();
            quell_index::build(root, root_path, options, threads.into(), trust, &progress)
        })
    }
}

/// Returns the index of a tree that was just read, with the same checks as for every index.
pub fn image_of(tree: &Tree) -> std::result::Result<Image, Failure> {
    Image::parse(quell_index::encode(tree)?)
        .map_err(|damage| Failure::cannot(format!("the index just made is not readable: {damage}")))
}
