//! Paths in messages and events.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns a path as one printable line; control characters and bytes that are not UTF-8 are
/// escaped.
pub fn shown(path: impl AsRef<Path>) -> String {
    quell_vfs::printable(path.as_ref().as_os_str().as_bytes())
}
