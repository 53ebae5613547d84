//! The plan of a mount of a store for batches.

use std::path::Path;

use quell_batch::split_path;

use crate::display::shown;
use crate::failure::Failure;
use crate::protocol::plan::{BatchMode, BatchPlan};

/// Resolves the path of a store, which a path of a directory in it may follow, and returns the
/// plan. `mountpoint` has no symbolic links. `trust_owners`: further users who may own the store.
pub fn batch_plan(
    store: &Path,
    mode: BatchMode,
    mountpoint: &Path,
    trust_owners: &[u32],
) -> Result<BatchPlan, Failure> {
    let (store, subtree) = split_path(store);
    let found = store.canonicalize().map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(store))))?;
    // The mount would hide the files of the store.
    if found.starts_with(mountpoint) {
        return Err(Failure::wrong_input(format!(
            "the store {} is in its mount point: name another directory",
            shown(store)
        )));
    }
    let (subtree, trust_owners) = (subtree.to_owned(), trust_owners.to_vec());
    Ok(BatchPlan { store: found, subtree, mode, trust_owners })
}
