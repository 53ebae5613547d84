//! A mount that this process and its children see at another directory, and other processes do not.

use std::path::Path;

use rustix::mount::mount_bind;

use crate::display::shown;
use crate::failure::Failure;
use crate::holder::privileges::{isolate, isolation};

/// Moves this process into a mount namespace of its own, in which the mount at `point` is also at
/// `directory`. The process must have a single thread. Its working directory keeps its path.
pub fn enter_mount(point: &Path, directory: &Path) -> Result<(), Failure> {
    let failed = |path: &Path, error: std::io::Error| Failure::cannot(format!("{}: {error}", shown(path)));
    let current = std::env::current_dir().map_err(|error| failed(Path::new("."), error))?;
    isolate(isolation())?;
    mount_bind(point, directory).map_err(|error| failed(directory, error.into()))?;
    // A directory below `directory` may exist only outside of the mount.
    if current.starts_with(directory) {
        std::env::set_current_dir(&current).map_err(|error| failed(&current, error))?;
    }
    Ok(())
}
