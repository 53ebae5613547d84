//! Finds the virtual directory to which a path that a program passed leads.

use libc::c_int;

use crate::cwd::locate_in_cwd;
use crate::descriptors;
use crate::locate::{Located, locate_absolute, native_path, owned};
use crate::paths;
use crate::view::{VirtualDir, dirs, joined};

/// Locates `path`, which is relative to the directory `dirfd` as for openat(2).
pub fn locate(dirfd: c_int, path: &[u8]) -> Located<'_> {
    let dirs = dirs();
    if dirs.is_empty() || path.is_empty() {
        return Located::Native;
    }
    if path[0] == b'/' {
        return match descriptors::number_in(path).and_then(descriptors::directory_path) {
            Some((dir, path)) => Located::Virtual(dir, path.into()),
            None => locate_absolute(path),
        };
    }
    if dirfd == libc::AT_FDCWD {
        return locate_in_cwd(path);
    }
    if let Some((dir, base)) = descriptors::directory_path(dirfd) {
        return Located::Virtual(dir, joined(&base, path).into());
    }
    // The path of a native directory is read only if the relative path can lead into a virtual one.
    let (first, _) = paths::split(path);
    let names = |dir: &VirtualDir| {
        dir.paths.iter().flat_map(|path| path.split(|byte| *byte == b'/')).any(|name| name == first)
    };
    if !matches!(first, b"." | b"..") && !paths::has_parent(path) && !dirs.iter().any(names) {
        return Located::Native;
    }
    match native_path(dirfd) {
        Some(base) => owned(locate_absolute(&joined(&base, path))),
        None => Located::Native,
    }
}
