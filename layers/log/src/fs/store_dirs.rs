//! Changes of directories that exist in every store: each change is made in one store after the
//! other, and is undone if a later store refuses it.

use std::sync::Arc;

use quell_posix::{Stat, WritableDir};
use quell_vfs::{Change, Error, ErrorKind, Rename, Result};

use crate::format::other_name;
use crate::not_found::none_if_not_found;

/// One directory in every store.
pub(crate) type Dirs = Arc<Vec<Arc<dyn WritableDir>>>;

/// Removes a directory that was found empty from every store, beginning with the first store. If
/// another mount creates an entry in the first store at this moment, the removal fails and changes
/// nothing. If a later store's directory is not empty, the directory is created again in the stores
/// before it, with a new inode, so that every mount with an open handle looks it up again in all
/// stores.
pub(crate) fn remove_everywhere(dirs: &Dirs, stored: &[u8]) -> Result<()> {
    let like = dirs[0].stat(stored)?;
    for (store, dir) in dirs.iter().enumerate() {
        match dir.remove_dir(stored) {
            Err(error) if error.kind == ErrorKind::NotFound && store > 0 => {}
            Err(error) if store > 0 => {
                // The directory is created in the first store last, so that it reappears only when
                // it is complete.
                for removed in dirs[..store].iter().rev() {
                    make_dir_like(&**removed, stored, &like)?;
                }
                return Err(error);
            }
            removed => removed?,
        }
    }
    Ok(())
}

/// Creates a removed directory again, unless another mount has created it meanwhile.
pub(crate) fn make_dir_like(dir: &dyn WritableDir, stored: &[u8], like: &Stat) -> Result<()> {
    match dir.make_dir(stored, like.mode & 0o7777) {
        Err(error) if error.kind == ErrorKind::Exists => return Ok(()),
        made => made?,
    }
    let made = dir.stat(stored)?;
    if (made.uid, made.gid) != (like.uid, like.gid) {
        dir.change(stored, &Change { uid: Some(like.uid), gid: Some(like.gid), ..Change::default() })?;
    }
    Ok(())
}

/// Undoes the rename of the directory `moved` from `old` in `from_dir` to `new` in `to_dir`.
/// Another mount may have replaced `moved`, which was empty in this store, by its own directory:
/// that directory keeps its name, and `moved` is created again.
pub(crate) fn undo_dir_rename(
    from_dir: &dyn WritableDir,
    old: &[u8],
    to_dir: &dyn WritableDir,
    new: &[u8],
    moved: &Stat,
) -> Result<()> {
    let is_moved = |dir: &dyn WritableDir, name: &[u8]| {
        let found = none_if_not_found(dir.stat(name))?;
        Ok::<_, Error>(found.is_some_and(|found| found.identity() == moved.identity()))
    };
    if is_moved(to_dir, new)? {
        none_if_not_found(rename_or_replace(to_dir, new, from_dir, old, Rename::Keep))?;
        if is_moved(from_dir, old)? {
            return Ok(());
        }
        // The directory was replaced between the two calls.
        none_if_not_found(rename_or_replace(from_dir, old, to_dir, new, Rename::Keep))?;
    }
    make_dir_like(from_dir, old, moved)
}

/// Renames an entry. If the file system does not support `Rename::Keep`, an existing entry is
/// replaced.
pub(crate) fn rename_or_replace(
    from_dir: &dyn WritableDir,
    from: &[u8],
    to_dir: &dyn WritableDir,
    to: &[u8],
    mode: Rename,
) -> Result<()> {
    match from_dir.rename(from, to_dir, to, mode) {
        Err(error) if error.kind == ErrorKind::Unsupported && mode == Rename::Keep => {
            from_dir.rename(from, to_dir, to, Rename::Replace)
        }
        renamed => renamed,
    }
}

/// Checks that the directory `name` is empty in every store, before any store is changed.
pub(crate) fn check_empty(dirs: &Dirs, name: &[u8]) -> Result<()> {
    let stored = other_name(name)?;
    for dir in dirs.iter() {
        let names = none_if_not_found(dir.open_writable_dir(&stored).and_then(|dir| dir.names()))?;
        if names.is_some_and(|names| !names.is_empty()) {
            return Err(Error::new(ErrorKind::NotEmpty, "remove", name));
        }
    }
    Ok(())
}
