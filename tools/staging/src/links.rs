//! Copies one symbolic link.

use quell_posix::Stat;
use quell_vfs::{ErrorKind, Kind, Rename, Result};

use crate::context::Context;
use crate::directories::{Directory, attributes_of};

/// Copies a link. Returns whether it differed from an existing one.
pub fn copy_link(context: &Context<'_>, dir: &Directory, name: &[u8]) -> Result<bool> {
    let target = dir.source.read_link(name)?;
    let found = dir.source.stat(name)?;
    if !dir.is_new && is_same(dir, name, &target, &found)? {
        return Ok(false);
    }
    let temporary = context.temporary_name();
    dir.target.make_symlink(&temporary, &target)?;
    let mut change = attributes_of(&found, context.options.owners);
    // A link has no permissions.
    change.permissions = None;
    let renamed = dir
        .target
        .change(&temporary, &change)
        .and_then(|()| dir.target.rename(&temporary, &*dir.target, name, Rename::Replace));
    if renamed.is_err()
        && let Err(error) = dir.target.remove(&temporary)
    {
        context.fail(&dir.path_of(&temporary), &error);
    }
    renamed.map(|()| true)
}

fn is_same(dir: &Directory, name: &[u8], target: &[u8], found: &Stat) -> Result<bool> {
    let existing = match dir.target.stat(name) {
        Ok(existing) => existing,
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(existing.kind() == Some(Kind::Symlink)
        && existing.modified == found.modified
        && dir.target.read_link(name)? == target)
}
