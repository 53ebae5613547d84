//! Paths in messages and events.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns a path as one printable line.
pub fn shown(path: &Path) -> String {
    quell_vfs::printable(path.as_os_str().as_bytes())
}
