//! What users name on the command line, looked at before anything is done with it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_backing::PosixDir;
use quell_fs::Result;
use quell_index::{BuildOptions, Image, Progress, Tree, Trust};

use crate::failure::Failure;
use crate::{memory, progress};

/// A path as people read it, on one line; control characters and bytes that are not text are shown escaped.
pub fn shown(path: impl AsRef<Path>) -> String {
    quell_fs::printable(path.as_ref().as_os_str().as_bytes())
}

/// A path as a string for JSON, which escapes control characters itself. Bytes that are not text are escaped.
pub fn text_of(path: impl AsRef<Path>) -> String {
    match path.as_ref().to_str() {
        Some(text) => text.into(),
        None => path.as_ref().as_os_str().as_bytes().escape_ascii().to_string(),
    }
}

/// The bytes of a path within an index, likewise.
pub fn text_of_bytes(path: &[u8]) -> String {
    text_of(OsStr::from_bytes(path))
}

/// The bytes of a path within an index, likewise.
pub fn shown_bytes(path: &[u8]) -> String {
    shown(OsStr::from_bytes(path))
}

/// The path with all symbolic links resolved.
pub fn real_path(path: &Path) -> std::result::Result<PathBuf, Failure> {
    path.canonicalize().map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))
}

/// A file that was looked up and opened once: whoever needs it later gets the descriptor, and the file system that it
/// lies on is asked nothing more. Every launch on every node costs what is saved here.
#[derive(Debug)]
pub struct Named {
    /// With all symbolic links resolved.
    pub path: PathBuf,
    pub file: File,
}

impl Named {
    pub fn open(path: &Path) -> std::result::Result<Named, Failure> {
        let failed = |e: std::io::Error| Failure::wrong_input(format!("{}: {e}", shown(path)));
        // A pipe must not wait for somebody to write.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let file =
            File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path).map_err(failed)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(failed)?;
        Ok(Named { path, file })
    }

    /// The index in the file.
    pub fn index(&self) -> std::result::Result<Image, Failure> {
        memory::load_index(&self.file, &self.path)
    }

    pub fn is_dir(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.is_dir())
    }
}

/// The content of a small input file, or of a pipe.
///
/// Errors: wrong input, where the file cannot be read or has more than `bytes_max` bytes.
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

/// The directory that an index describes, as a path.
pub fn root_of(image: &Image) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(image.root_path()))
}

/// How a tree is to be read.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// Where it lies.
    pub directory: &'a Path,
    /// Where it lay when it was indexed first: what the index calls its root.
    pub root_path: &'a Path,
    pub options: &'a BuildOptions,
    /// Requests in flight.
    pub threads: u16,
    pub trust: Option<Trust<'a>>,
    /// Entries of an older index, where there is one.
    pub expected: Option<u64>,
    pub quiet: bool,
}

impl Reading<'_> {
    /// Reads it with a progress bar, until Ctrl-C.
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

    /// The same, but ends with an error as soon as it is `unwanted`.
    pub fn read_unless(&self, unwanted: &dyn Fn() -> bool) -> Result<Tree> {
        let progress = Progress::default();
        let what = format!("indexing {}", shown(self.directory));
        // Not `self` whole: the work is sent to another thread.
        let Reading { directory, root_path, options, threads, trust, .. } = *self;
        progress::watch(&what, &progress, self.expected, self.quiet, unwanted, || {
            let root = Arc::new(PosixDir::open(directory)?);
            let root_path = root_path.as_os_str().as_bytes();
            quell_index::build(root, root_path, options, threads.into(), trust, &progress)
        })
    }
}

/// The index of a tree just read, checked as every index is before it is used.
pub fn image_of(tree: &Tree) -> std::result::Result<Image, Failure> {
    Image::parse(quell_index::encode(tree)?)
        .map_err(|damage| Failure::cannot(format!("the index just made is not readable: {damage}")))
}
