//! The directory of a writable layer.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::display::shown;
use crate::failure::Failure;
use crate::mount_point::END_TIMEOUT;
use crate::protocol::plan::Writes;
use crate::socket::connection::RETRY_INTERVAL;

/// Creates and locks the directory of a writable layer, if the view has one. Waits up to
/// [`END_TIMEOUT`] for another view of the layer to end: a view is removed after its last program
/// has ended, so the view of a previous command may still exist. The lock lasts as long as the
/// returned file is open. `trees`: the sources and the covered directories, in which the layer must
/// not be.
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
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
            Err(Errno::WOULDBLOCK) => {
                return Err(Failure::cannot(format!(
                    "the writable layer {} is in use by another view, which has not ended after {} s: name another \
                     directory, or wait until that view ends",
                    shown(directory),
                    END_TIMEOUT.as_secs()
                )));
            }
            Err(e) => return Err(cannot(e.into())),
        }
    }
}
