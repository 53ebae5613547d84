//! Files and directories that the user named, opened and checked before they are used.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_index::{BuildOptions, BuildProgress, Image, Tree, Trust};
use quell_posix::PosixDir;
pub use quell_supervisor::{InputFile, real_path, root_of, shown, shown_bytes};

use crate::failure::Failure;
use crate::progress;

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

/// Returns the index file that `path` names: the file itself, or for a directory the index beside
/// it, as `quell run -i` finds it.
///
/// Errors: wrong input, if the directory has no index.
pub fn index_file(path: &Path) -> std::result::Result<PathBuf, Failure> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let directory = real_path(path)?;
    let index = quell_mount_spec::default_index_path(&directory);
    index.filter(|index| index.is_file()).ok_or_else(|| {
        let directory = shown(&directory);
        Failure::wrong_input(format!(
            "{directory} is a directory without an index beside it; create {directory}.quell with `quell index {directory}`, \
             or name an index file"
        ))
    })
}

/// Reads a small input file, or a pipe.
///
/// Errors: wrong input, if the file cannot be read or has more than `bytes_max` bytes.
pub fn read_small(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Failure> {
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
    pub fn read(&self) -> Result<Tree, Failure> {
        let interrupted = progress::interruption();
        let is_unwanted = || interrupted.load(Ordering::Relaxed);
        let progress = BuildProgress::default();
        let title = format!("indexing {}", shown(self.directory));
        // The work runs in another thread, so it must not borrow `self`.
        let Reading { directory, root_path, options, threads, trust, .. } = *self;
        let tree = progress::watch(&title, &progress, self.expected, self.quiet, &is_unwanted, || {
            let root = Arc::new(PosixDir::open(directory)?);
            let root_path = root_path.as_os_str().as_bytes();
            quell_index::build(root, root_path, options, threads.into(), trust, &progress)
        });
        match interrupted.load(Ordering::Relaxed) {
            true => Err(Failure::interrupted(
                "interrupted: nothing was written, and an existing index is unchanged",
            )),
            false => Ok(tree?),
        }
    }
}

/// Returns the index of a tree that was just read, with the same checks as for every index.
pub fn image_of(tree: &Tree) -> Result<Image, Failure> {
    Image::parse(quell_index::encode(tree)?)
        .map_err(|damage| Failure::cannot(format!("the new index is damaged, and was not written: {damage}")))
}

/// Returns random text, which no other program has chosen.
pub fn random_text() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Failure::cannot(format!("no random number: {e}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
