//! Finds the virtual directory to which an absolute path leads.

use std::borrow::Cow;

use libc::c_int;

use crate::paths::{self, Relation};
use crate::view::{VirtualDir, dirs, joined};

/// Whether a path leads into a virtual directory, and the rest of the path below the directory.
pub enum Located<'p> {
    /// Outside of all virtual directories.
    Native,
    /// Below a virtual directory. The rest may contain `.`, `..` and symbolic links.
    Virtual(&'static VirtualDir, Cow<'p, [u8]>),
}

/// Locates an absolute path.
pub fn locate_absolute<'p>(path: &'p [u8]) -> Located<'p> {
    for (dir, name) in dirs().iter().flat_map(|dir| dir.paths.iter().map(move |name| (dir, name))) {
        match paths::compare(path, &name[1..]) {
            Relation::Inside(rest) if dir.is_served() => return Located::Virtual(dir, rest.into()),
            Relation::Unknown => return locate_with_parents(path),
            Relation::Inside(_) | Relation::Outside | Relation::Ancestor(_) => {}
        }
    }
    Located::Native
}

/// Locates an absolute path that contains `..`. The kernel resolves the part up to the last `..`,
/// because this part may contain symbolic links.
fn locate_with_parents(path: &[u8]) -> Located<'static> {
    let Some((above, rest)) = paths::split_after_parent(path) else { return Located::Native };
    match open_path(above).and_then(|fd| native_path(fd.number())) {
        Some(base) => owned(locate_absolute(&joined(&base, rest))),
        None => Located::Native,
    }
}

/// Copies the rest of the path, so that the result does not borrow from the argument.
pub fn owned(located: Located<'_>) -> Located<'static> {
    match located {
        Located::Native => Located::Native,
        Located::Virtual(dir, rest) => Located::Virtual(dir, rest.into_owned().into()),
    }
}

/// A descriptor that is closed when the value is dropped.
struct PathFd(rustix::fd::OwnedFd);

impl PathFd {
    fn number(&self) -> c_int {
        rustix::fd::AsRawFd::as_raw_fd(&self.0)
    }
}

fn open_path(path: &[u8]) -> Option<PathFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok().map(PathFd)
}

/// Returns the path of a native directory.
pub fn native_path(fd: c_int) -> Option<Vec<u8>> {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).ok()?.into_bytes();
    link.starts_with(b"/").then_some(link)
}
