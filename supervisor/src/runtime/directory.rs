//! The runtime directory, with the error type of this crate.

use std::path::PathBuf;

use crate::failure::Failure;

/// Returns the runtime directory of this user on this node, as [`quell_runtime::runtime_directory`]
/// does.
pub fn runtime_directory() -> Result<PathBuf, Failure> {
    Ok(quell_runtime::runtime_directory()?)
}
