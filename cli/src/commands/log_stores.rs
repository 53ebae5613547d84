//! Opens the stores and files that the arguments of `quell log` name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use quell_log::{Container, ResolvedPath, Stores};
use quell_vfs::{Error, ErrorKind, Kind};

use crate::arguments::StoresArg;
use crate::failure::Failure;
use crate::inputs::shown;

/// Opens existing stores. Creates nothing.
fn open(stores: &StoresArg) -> Result<Stores, Failure> {
    for path in stores.paths() {
        if !quell_mount_spec::is_store(&path)? {
            return Err(Failure::wrong_input(format!(
                "{} is not a store; name the directory that was given to `quell mount --log`",
                shown(&path)
            )));
        }
    }
    quell_mount_spec::open_existing_stores(&stores.paths()).map_err(|error| stores_failure(stores, error))
}

/// Opens existing stores to read them.
pub(super) fn open_stores(stores: &StoresArg) -> Result<Arc<Stores>, Failure> {
    open(stores).map(Arc::new)
}

/// Opens existing stores to change them.
pub(super) fn open_stores_for_change(stores: &StoresArg) -> Result<Arc<Stores>, Failure> {
    let used = quell_mount_spec::begin_use(open(stores)?);
    used.map(Arc::new).map_err(|error| stores_failure(stores, error))
}

/// Returns the failure of an operation that concerns all stores.
pub(super) fn stores_failure(stores: &StoresArg, error: Error) -> Failure {
    let failure = Failure::from(error);
    Failure::with_code(failure.code(), format!("{}: {failure}", shown(&stores.stores)))
}

/// Resolves a path in the mount.
pub(super) fn find(stores: &Arc<Stores>, named: &StoresArg, path: &Path) -> Result<ResolvedPath, Failure> {
    quell_log::find(stores, path.as_os_str().as_bytes()).map_err(|error| {
        let is_absent = error.kind == ErrorKind::NotFound;
        let failure = Failure::from(error);
        match is_absent {
            true => {
                let advice = format!("`quell log ls {}` lists the files", shown(&named.stores));
                Failure::with_code(failure.code(), format!("{failure}; {advice}"))
            }
            false => failure,
        }
    })
}

/// Opens the container of the file at `path`.
pub(super) fn open_file(stores: &Arc<Stores>, named: &StoresArg, path: &Path) -> Result<Container, Failure> {
    match find(stores, named, path)? {
        ResolvedPath::Entry(dir, entry) if entry.kind == Kind::File => Ok(dir.open(&entry)?),
        ResolvedPath::Entry(..) => {
            Err(Failure::wrong_input(format!("{} is a symbolic link; name a file", shown(path))))
        }
        ResolvedPath::Dir(_) => {
            Err(Failure::wrong_input(format!("{} is a directory; name a file", shown(path))))
        }
    }
}

/// Returns the path of a store in messages.
pub(super) fn store_path(stores: &Stores, store: usize) -> String {
    shown(OsStr::from_bytes(stores.paths().get(store).map_or(&[][..], |path| path)))
}
