//! The interface of a node to the process that it is part of.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use quell_vfs::Result;
use quell_wire::job::{CheckResult, FileAttributes, FileState};

use crate::contents::CompleteFile;
use crate::meeting::OwnLink;

/// A file that was opened, and its attributes.
#[derive(Debug)]
pub struct OpenedFile {
    /// The open file.
    pub file: File,
    /// Its attributes.
    pub attributes: FileAttributes,
}

/// The process that a node is part of.
pub trait Environment: Send + Sync {
    /// Opens a file of the job on the file system, and checks that a job may read it.
    fn open(&self, path: &Path) -> std::result::Result<OpenedFile, String>;

    /// Checks that there is memory for all files together.
    ///
    /// # Errors
    /// Any error; the node then leaves the tree.
    fn admit(&self, files: &[FileState]) -> Result<()>;

    /// Performs an operation that reads a file, and reports it if it takes too long.
    fn watch_read(&self, path: &Path, file: &File, operation: &mut dyn FnMut());

    /// Compares a few entries of the trees of the files with the trees, on the reader. Returns the
    /// result for each file, at most [`quell_wire::job::RESULT_BYTES_MAX`] bytes, or `None` if
    /// each node makes this comparison itself.
    fn sample(&self, files: &[CompleteFile]) -> Vec<Option<CheckResult>>;

    /// Returns whether a process still waits for the files.
    fn is_needed(&self) -> bool;

    /// Notes the link that this node has created. If the process ends before the node has started,
    /// it must remove the link.
    fn link_created(&self, link: &Arc<OwnLink>);

    /// Prints a message for the user.
    fn print(&self, message: &str);
}
