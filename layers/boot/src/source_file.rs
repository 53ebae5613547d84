//! A file of the file system below a layer, which the first use opens.

use std::sync::{Arc, Mutex, OnceLock};

use quell_threads::lock;
use quell_vfs::{Attributes, Context, File, FileSystem, NodeId, Result};

/// A file that is opened by its first use, and only once.
pub struct SourceFile {
    file_system: Arc<dyn FileSystem>,
    node: NodeId,
    file: OnceLock<Box<dyn File>>,
    /// Held while the file is opened. A program that reads ahead causes many reads at once, and
    /// each open is two operations on the file system below.
    opening: Mutex<()>,
}

impl std::fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceFile").field("node", &self.node).finish_non_exhaustive()
    }
}

impl SourceFile {
    /// Returns the file of a node, and does not open it.
    pub fn new(file_system: Arc<dyn FileSystem>, node: NodeId) -> SourceFile {
        SourceFile { file_system, node, file: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// Returns whether the file is open.
    pub fn is_open(&self) -> bool {
        self.file.get().is_some()
    }

    /// Returns the file, and opens it if it is not open.
    ///
    /// # Errors
    /// Those of the open.
    pub fn open(&self) -> Result<&dyn File> {
        if let Some(file) = self.file.get() {
            return Ok(&**file);
        }
        // Only readers that need the file, too, wait for it.
        let _opening = lock(&self.opening);
        if self.file.get().is_none() {
            // The file is opened with the permissions of this process, because the kernel has
            // already checked access.
            let _ = self.file.set(self.file_system.open(&Context::OWN, self.node)?);
        }
        Ok(&**self.file.get().expect("just set"))
    }

    /// Returns the attributes of the node, and does not open the file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn attributes(&self) -> Result<Attributes> {
        self.file_system.attributes(&Context::OWN, self.node)
    }
}
