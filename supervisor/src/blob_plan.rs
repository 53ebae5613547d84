//! The plan of a mount of blobs.

use std::path::Path;

use quell_blob::Location;

use crate::display::shown;
use crate::failure::Failure;
use crate::protocol::plan::BlobPlan;

/// Checks the location of a store, makes its paths absolute, and returns the plan. `mountpoint` has
/// no symbolic links.
pub fn blob_plan(store: &str, prefix: &str, mountpoint: &Path) -> Result<BlobPlan, Failure> {
    let absolute = |path: &Path| {
        let absolute = std::path::absolute(path);
        absolute.map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))
    };
    let location = match store.parse()? {
        Location::Directory(path) => {
            let path = absolute(&path)?;
            // The mount would hide the files of the store, which need not exist yet.
            let existing = path.ancestors().find_map(|path| path.canonicalize().ok());
            if existing.is_some_and(|path| path.starts_with(mountpoint)) {
                return Err(Failure::wrong_input(format!(
                    "the store {} is in its mount point: name another directory",
                    shown(&path)
                )));
            }
            Location::Directory(path)
        }
        Location::Socket(path) => Location::Socket(absolute(&path)?),
        Location::Server { address, key, is_encrypted } => {
            Location::Server { address, key: absolute(&key)?, is_encrypted }
        }
        Location::Rados { pool, key, is_encrypted } => {
            Location::Rados { pool, key: key.as_deref().map(absolute).transpose()?, is_encrypted }
        }
    };
    Ok(BlobPlan { store: location.to_string(), prefix: prefix.to_owned() })
}
