//! The directory of a writable layer.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::display::shown;
use crate::failure::Failure;
use crate::protocol::plan::Writes;

/// Creates and locks the directory of a writable layer, if the view has one. The lock lasts as long
/// as the returned file is open. `trees`: the sources and the covered directories, in which the
/// layer must not be.
pub fn lock_writable_layer<'a>(
    writes: &Writes,
    trees: impl Iterator<Item = (&'a Path, &'a Path)>,
) -> Result<Option<File>, Failure> {
    let Writes::Kept(directory) = writes else { return Ok(None) };
    let mut trees = trees;
    let covered_by =
        trees.find(|(source, covered)| directory.starts_with(source) || directory.starts_with(covered));
    if let Some((source, _)) = covered_by {
        return Err(Failure::refused(format!(
            "the writable layer {} lies inside the tree {}, which writing to it would change: name a directory outside of the tree",
            shown(directory),
            shown(source)
        )));
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(directory))))?;
    let cannot = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(directory)));
    let file = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(directory.join("lock"))
        .map_err(cannot)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Failure::cannot(format!("the writable layer {} is in use by another view: name another directory, or wait until that view ends", shown(directory)))
    })?;
    Ok(Some(file))
}
