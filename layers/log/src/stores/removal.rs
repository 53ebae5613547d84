//! Removes directories of the log layer with their content. A user may have put other directories
//! into their place, so only names that the format defines are removed.

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Kind, Result};

use crate::format::{is_defined_name, is_number_name};
use crate::not_found::none_if_not_found;

/// Depth of the directories below a container, as the log layer creates them.
const DEPTH_MAX: usize = 3;

/// Removes the directory `name` and its content, except for names that the format does not define
/// and directories deeper than the log layer creates. Symbolic links are not followed. If an entry
/// cannot be removed, the others are still removed, and the first error is returned.
pub(crate) fn remove_tree(parent: &dyn WritableDir, name: &[u8]) -> Result<()> {
    remove_down_to(parent, name, DEPTH_MAX)
}

/// Removes `name`, which may be of any kind, and its content down to the depth that leftovers of
/// the log layer have.
pub(crate) fn remove_shallow(parent: &dyn WritableDir, name: &[u8]) -> Result<()> {
    match parent.stat(name)?.kind() {
        Some(Kind::Dir) => remove_down_to(parent, name, DEPTH_MAX - 1),
        _ => parent.remove(name),
    }
}

/// The largest number of times that a directory is listed before its removal fails with `NotEmpty`.
const LISTINGS_MAX: usize = 8;

/// Removes a directory down to a depth. A user may have moved a directory of a third user, or of
/// the caller, to this place; in such a directory only names that the log layer could have created
/// are removed.
///
/// Another mount that has a removed file open may rename or add names until its own directory is
/// removed: the end of a writer, or a flat index. Such names are in the next listing.
fn remove_down_to(parent: &dyn WritableDir, name: &[u8], depth: usize) -> Result<()> {
    let dir = parent.open_writable_dir(name)?;
    // Other programs use such numbers as names, too. They are removed only from a directory that
    // belongs to the owner of its parent.
    let numbers_are_ours = dir.stat_self()?.uid == parent.stat_self()?.uid;
    let mut listings = 0;
    loop {
        let mut removed = Ok(());
        for (child, kind) in dir.names_and_kinds()? {
            if !(is_defined_name(&child) || numbers_are_ours && is_number_name(&child)) {
                removed = removed.and(Err(Error {
                    source: Some("Quell did not create this name".into()),
                    ..Error::new(ErrorKind::PermissionDenied, "remove", &child)
                }));
                continue;
            }
            // A directory is removed as a directory. If this fails, it is removed as a file,
            // because another process may have replaced it by a file.
            if kind == Some(Kind::Dir)
                && depth > 0
                && none_if_not_found(remove_down_to(&*dir, &child, depth - 1)).is_ok()
            {
                continue;
            }
            removed = removed.and(match dir.remove(&child) {
                Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
                // Linux returns EISDIR for a directory, other systems EPERM.
                Err(error) if depth > 0 => remove_down_to(&*dir, &child, depth - 1).map_err(|_| error),
                removed => removed,
            });
        }
        removed?;
        listings += 1;
        match parent.remove_dir(name) {
            Err(error) if error.kind == ErrorKind::NotEmpty && listings < LISTINGS_MAX => {}
            removed => return removed,
        }
    }
}
