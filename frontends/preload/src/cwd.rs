//! The working directory of the process, native or virtual.

use std::sync::{RwLock, RwLockWriteGuard};

use quell_threads::{read_lock, write_lock};

use crate::locate::{Located, locate_absolute, owned};
use crate::paths::{self, Relation, strip_slashes};
use crate::view::{VirtualDir, dirs, joined};

static CWD: RwLock<Option<Cwd>> = RwLock::new(None);

/// The working directory of the process.
#[derive(Clone)]
enum Cwd {
    /// The absolute path of the working directory.
    Native(Vec<u8>),
    /// The path below a virtual directory, without a slash at its beginning.
    Virtual(&'static VirtualDir, Vec<u8>),
}

/// Locates a path that is relative to the working directory.
pub fn locate_in_cwd<'p>(path: &'p [u8]) -> Located<'p> {
    if let Some(cwd) = &*read_lock(&CWD) {
        return locate_below(cwd, path);
    }
    let path_of_cwd = current_directory();
    let cwd = match locate_absolute(&path_of_cwd) {
        Located::Virtual(dir, below) => Cwd::Virtual(dir, strip_slashes(&below).to_vec()),
        Located::Native => Cwd::Native(path_of_cwd),
    };
    let located = locate_below(&cwd, path);
    set_cwd(cwd);
    located
}

fn locate_below<'p>(cwd: &Cwd, path: &'p [u8]) -> Located<'p> {
    let base = match cwd {
        Cwd::Virtual(dir, base) => return Located::Virtual(dir, joined(base, path).into()),
        Cwd::Native(base) => base,
    };
    let can_enter = |name: &Vec<u8>| {
        matches!(paths::compare(base, &name[1..]), Relation::Ancestor(rest)
            if !matches!(paths::compare(path, rest), Relation::Outside | Relation::Ancestor(_)))
    };
    match paths::has_parent(path) || dirs().iter().flat_map(|dir| &dir.paths).any(can_enter) {
        true => owned(locate_absolute(&joined(base, path))),
        false => Located::Native,
    }
}

fn set_cwd(cwd: Cwd) {
    *write_lock(&CWD) = Some(cwd);
}

/// Records that the working directory is native; its path is read when it is needed.
pub fn enter_native() {
    *write_lock(&CWD) = None;
}

/// Makes the directory `path` of a virtual directory the working directory.
pub fn enter_virtual(dir: &'static VirtualDir, path: Vec<u8>) {
    set_cwd(Cwd::Virtual(dir, path));
}

/// Returns the working directory if it is virtual.
pub fn virtual_cwd() -> Option<(&'static VirtualDir, Vec<u8>)> {
    match read_lock(&CWD).as_ref()? {
        Cwd::Virtual(dir, path) => Some((dir, path.clone())),
        Cwd::Native(_) => None,
    }
}

fn current_directory() -> Vec<u8> {
    rustix::process::getcwd(Vec::new()).map(|path| path.into_bytes()).unwrap_or_default()
}

/// Locks the working directory for a fork.
pub fn lock_for_fork() -> ForkLock {
    ForkLock { _cwd: write_lock(&CWD) }
}

/// The lock of the working directory.
pub struct ForkLock {
    _cwd: RwLockWriteGuard<'static, Option<Cwd>>,
}
