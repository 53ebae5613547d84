//! The state of a rebalance that all threads share, and its result.

use std::sync::{Arc, Mutex};

use quell_posix::WritableDir;
use quell_threads::{into_inner, lock};
use quell_vfs::{Error, Result};

use crate::container::Container;
use crate::stores::Stores;
use crate::tools::progress::ToolProgress;

/// The result of a rebalance.
#[derive(Debug, Default)]
pub struct RebalanceResult {
    /// Files in the store that the map gives, including moved files.
    pub files: u64,
    /// Number of files that were moved.
    pub moved: u64,
    /// Log directories that were moved separately from their containers.
    pub moved_log_dirs: u64,
    /// Size of the logs that were moved.
    pub bytes: u64,
    /// Files that are being written.
    pub busy: Vec<Vec<u8>>,
    /// Files that could not be moved, and the reasons.
    pub failed: Vec<(Vec<u8>, Error)>,
    /// The drained stores are empty and were removed from the map.
    pub is_complete: bool,
}

/// The outcome of the move of a file or a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveResult {
    /// The whole file or container is in the right store.
    Placed,
    /// The file is being written and was not moved.
    Busy,
    /// There is no such file, or it was removed meanwhile.
    Absent,
}

/// One directory in every store.
pub type Dirs = Arc<Vec<Arc<dyn WritableDir>>>;

/// A rebalance that is running.
pub struct Rebalance<'a> {
    pub stores: &'a Arc<Stores>,
    pub progress: &'a ToolProgress,
    result: Mutex<RebalanceResult>,
}

/// Returns true if a writer is open that is not known to be dead.
pub fn is_being_written(container: &Container) -> Result<bool> {
    let host = container.host();
    Ok(container.summary()?.is_being_written(&host.is_gone))
}

/// Returns the names in `meta`, sorted. If they are the same before and after a copy, no writer has
/// opened the file meanwhile.
pub fn meta_names(container: &Container) -> Result<Vec<Vec<u8>>> {
    let mut names = container.meta()?.names()?;
    names.sort();
    Ok(names)
}

impl<'a> Rebalance<'a> {
    pub fn new(stores: &'a Arc<Stores>, progress: &'a ToolProgress) -> Rebalance<'a> {
        Rebalance { stores, progress, result: Mutex::default() }
    }

    pub fn into_result(self) -> RebalanceResult {
        into_inner(self.result)
    }

    pub fn update(&self, update: impl FnOnce(&mut RebalanceResult)) {
        update(&mut lock(&self.result));
    }

    /// Returns the number of moves.
    pub fn moves(&self) -> u64 {
        let result = lock(&self.result);
        result.moved + result.moved_log_dirs
    }

    /// Returns true if a file was not placed because it was busy, or because of an error.
    pub fn has_remaining(&self) -> bool {
        let result = lock(&self.result);
        !result.busy.is_empty() || !result.failed.is_empty()
    }
}
