//! The plan of a disk image: opens its backing chain before anything is served.

use std::path::Path;

use quell_mount_spec::{ChainFile, disk_chain};

use crate::display::shown;
use crate::failure::Failure;
use crate::protocol::plan::{BootPlan, DiskPlan, ImageFormat};

/// Returns the plan of a disk image. Fails if a file of its backing chain cannot be opened.
pub fn disk_plan(
    path: &Path,
    format: Option<ImageFormat>,
    boot: BootPlan,
    rechecks_per_second: f64,
) -> Result<DiskPlan, Failure> {
    let chain = disk_chain(path, format.map(Into::into))?;
    let state = chain_state(&chain);
    let files = chain.into_iter().map(|file| file.path).collect();
    let path =
        std::path::absolute(path).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))?;
    Ok(DiskPlan { path, format, files, state, boot, rechecks_per_second })
}

/// Checks that a disk image and its backing chain can be opened.
pub fn check_disk_image(path: &Path, format: Option<ImageFormat>) -> Result<(), Failure> {
    disk_chain(path, format.map(Into::into))?;
    Ok(())
}

/// Returns a text that identifies the state of the files. Machines whose files are in the same
/// state share one view.
pub fn chain_state(chain: &[ChainFile]) -> String {
    let file_state = |ChainFile { stat, .. }: &ChainFile| {
        let modified = stat.modified;
        let (device, inode) = stat.identity();
        format!("{device}.{inode}.{}.{}.{}", stat.size_bytes, modified.seconds, modified.nanoseconds)
    };
    chain.iter().map(file_state).collect::<Vec<_>>().join(" ")
}
