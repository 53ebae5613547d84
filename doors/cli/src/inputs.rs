//! What users name on the command line, looked at before anything is done with it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_backing::PosixDir;
use quell_fs::Result;
use quell_index::{BuildOptions, Image, Progress, Tree, Trust};

use crate::failure::Failure;
use crate::progress;

/// A path as people read it; bytes that are not text are shown escaped.
pub fn shown(path: impl AsRef<Path>) -> String {
    match path.as_ref().to_str() {
        Some(text) => text.into(),
        None => path.as_ref().as_os_str().as_bytes().escape_ascii().to_string(),
    }
}

/// The bytes of a path within an index, likewise.
pub fn shown_bytes(path: &[u8]) -> String {
    shown(OsStr::from_bytes(path))
}

/// The path with all symbolic links resolved.
pub fn real_path(path: &Path) -> std::result::Result<PathBuf, Failure> {
    path.canonicalize().map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))
}

/// The directory that an index describes, as a path.
pub fn root_of(image: &Image) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(image.root_path()))
}

/// Reads a tree with a progress bar. The second answer is whether the user broke it off.
pub fn read_tree(
    directory: &Path,
    root_path: &Path,
    options: &BuildOptions,
    threads: u16,
    trust: Option<Trust<'_>>,
    expected: Option<u64>,
    quiet: bool,
) -> (Result<Tree>, bool) {
    let progress = Progress::default();
    let what = format!("indexing {}", shown(directory));
    progress::watch(&what, &progress, expected, quiet, || {
        let root = Arc::new(PosixDir::open(directory)?);
        let root_path = root_path.as_os_str().as_bytes();
        quell_index::build(root, root_path, options, threads.into(), trust, &progress)
    })
}
