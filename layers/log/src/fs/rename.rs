//! Renames and exchanges entries. A directory is renamed in every store, a file within its store.

use std::sync::Arc;

use quell_posix::{Stat, WritableDir};
use quell_vfs::{Error, ErrorKind, Kind, NodeId, Rename, Result, check_name};

use crate::container::rename_object;
use crate::format::{container_name, other_name};
use crate::fs::mount::{EntryName, Mount};
use crate::fs::remove::{RemovedNode, StoredFile, discard, discard_by};
use crate::fs::search::{FoundEntry, has_moved, is_another, search};
use crate::fs::store_dirs::{Dirs, check_empty, make_dir_like, rename_or_replace, undo_dir_rename};
use crate::not_found::none_if_not_found;
use crate::stores::StoreList;

/// One side of a rename: a name, its directory in all stores, and the entry that was found there.
#[derive(Clone, Copy)]
struct Side<'a, T> {
    at: EntryName<'a>,
    dirs: &'a Dirs,
    entry: T,
}

type Source<'a> = Side<'a, FoundEntry>;
type Target<'a> = Side<'a, Option<FoundEntry>>;

/// The outcome of one attempt.
enum Attempt {
    Done,
    /// Another mount has changed one of the names, or a store was added, meanwhile.
    Repeat,
}

/// Renames as rename(2) does.
pub(crate) fn rename(mount: &Mount, from: EntryName<'_>, to: EntryName<'_>, mode: Rename) -> Result<()> {
    check_name(to.name)?;
    if mount.is_hidden(to) {
        return Err(Error::new(ErrorKind::PermissionDenied, "rename", from.name));
    }
    mount.begin_name(to);
    loop {
        match try_rename(mount, from, to, mode)? {
            Attempt::Done => return Ok(()),
            Attempt::Repeat => {}
        }
    }
}

fn try_rename(mount: &Mount, from: EntryName<'_>, to: EntryName<'_>, mode: Rename) -> Result<Attempt> {
    let refused = |kind| Err(Error::new(kind, "rename", from.name));
    let store_list = mount.stores.list();
    let (first, second) = (search(mount, from)?, search(mount, to)?);
    let Some(found) = first.found else { return refused(ErrorKind::NotFound) };
    let source = Source { at: from, dirs: &first.dirs, entry: found };
    let target = Target { at: to, dirs: &second.dirs, entry: second.found };
    let is_dir = |found: &FoundEntry| found.kind == Kind::Dir;
    // A directory is renamed in every store.
    if (is_dir(&source.entry) || target.entry.as_ref().is_some_and(is_dir))
        && mount.stores.has_changed(&store_list)?
    {
        return Ok(Attempt::Repeat);
    }
    if source.dirs.len() != target.dirs.len() {
        // Either a store was just added, or one of the directories was removed before.
        return match mount.open_dir(from.dir)?.len() == mount.open_dir(to.dir)?.len() {
            true => Ok(Attempt::Repeat),
            false => refused(ErrorKind::NotFound),
        };
    }
    if from == to {
        return if mode == Rename::Keep { refused(ErrorKind::Exists) } else { Ok(Attempt::Done) };
    }
    if is_into_itself(mount, from, to.dir) || mode == Rename::Exchange && is_into_itself(mount, to, from.dir)
    {
        return refused(ErrorKind::InvalidInput);
    }
    match (mode, &target.entry) {
        (Rename::Keep, Some(_)) => return refused(ErrorKind::Exists),
        (Rename::Exchange, None) => return refused(ErrorKind::NotFound),
        (Rename::Exchange, Some(other)) => {
            exchange(source, Side { at: to, dirs: target.dirs, entry: *other })?;
            mount.nodes.lock().exchanged(from.dir, from.name, to.dir, to.name);
            mount.forget_unused();
            return Ok(Attempt::Done);
        }
        (Rename::Replace, Some(other)) if is_dir(&source.entry) && !is_dir(other) => {
            return refused(ErrorKind::NotADirectory);
        }
        (Rename::Replace, Some(other)) if !is_dir(&source.entry) && is_dir(other) => {
            return refused(ErrorKind::IsADirectory);
        }
        (Rename::Replace, Some(other)) if is_dir(other) => check_empty(target.dirs, to.name)?,
        _ => {}
    }
    let removed = match target.entry {
        Some(_) => RemovedNode::before_removal(mount, to, target.dirs)?,
        None => None,
    };
    let replaced = mount.named(to);
    let attempt = match source.entry.kind {
        Kind::File => rename_file(mount, source, target, replaced)?,
        _ => rename_other(mount, source, target, replaced, mode, &store_list)?,
    };
    if let Attempt::Done = attempt {
        if let Some(removed) = removed {
            removed.keep(mount);
        }
        let mut nodes = mount.nodes.lock();
        nodes.removed(to.dir, to.name);
        nodes.renamed(from.dir, from.name, to.dir, to.name);
    }
    Ok(attempt)
}

/// Returns true if the directory `dir` is `moved` or lies below it.
fn is_into_itself(mount: &Mount, moved: EntryName<'_>, dir: NodeId) -> bool {
    let nodes = mount.nodes.lock();
    nodes.named(moved.dir, moved.name).is_some_and(|moved| nodes.is_below(dir, moved))
}

/// Renames a file. `replaced` is the node of the target.
fn rename_file(
    mount: &Mount,
    source: Source<'_>,
    target: Target<'_>,
    replaced: Option<NodeId>,
) -> Result<Attempt> {
    let (from, to) = (source.at, target.at);
    match rename_container(mount, source, target, replaced) {
        Err(error) if error.kind == ErrorKind::NotFound && has_moved(mount, from, &source.entry)? => {
            Ok(Attempt::Repeat)
        }
        // Another mount has created, replaced or removed an object with this name meanwhile.
        // Containers are never empty.
        Err(error)
            if (is_in_use(&error) || error.kind == ErrorKind::NotFound)
                && is_another(mount, to, target.entry.as_ref())?
                && search(mount, from)?.found.is_some() =>
        {
            Ok(Attempt::Repeat)
        }
        renamed => renamed.map(|()| Attempt::Done),
    }
}

/// Returns true if a rename has failed because the new name belongs to a container or, if a
/// container was renamed, to an object.
fn is_in_use(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::Exists | ErrorKind::NotEmpty | ErrorKind::IsADirectory | ErrorKind::NotADirectory
    )
}

/// Renames a file to a name that is not used. A container does not replace another container,
/// because containers are never empty. An object replaces another object unless the mode excludes
/// it.
fn rename_to_free_name(
    file: &FoundEntry,
    (from_dir, old): (&dyn WritableDir, &[u8]),
    (to_dir, new): (&dyn WritableDir, &[u8]),
) -> Result<()> {
    match is_object(file) {
        true => rename_object(from_dir, old, to_dir, new),
        false => from_dir.rename(old, to_dir, new, Rename::Replace),
    }
}

/// Returns true if the file began as an object.
fn is_object(file: &FoundEntry) -> bool {
    file.kind == Kind::File && file.stat.kind() == Some(Kind::File)
}

/// Renames the container of a file within its store.
fn rename_container(
    mount: &Mount,
    source: Source<'_>,
    target: Target<'_>,
    replaced: Option<NodeId>,
) -> Result<()> {
    let (old, new) = (container_name(source.at.name)?, container_name(target.at.name)?);
    let store = source.entry.store;
    let (from_dir, to_dir) = (&*source.dirs[store], &*target.dirs[store]);
    let rename = || rename_to_free_name(&source.entry, (from_dir, &old), (to_dir, &new));
    let Some(other) = target.entry else { return rename() };
    // Another mount that renames to the same name may have removed the replaced object already.
    let removed = |result| none_if_not_found(result).map(drop);
    if other.kind == Kind::Symlink {
        rename()?;
        return removed(target.dirs[0].remove(&other_name(target.at.name)?));
    }
    if other.store != store {
        match rename() {
            // Another mount has renamed a file of this store to this name meanwhile. Containers are
            // never empty.
            Err(error) if is_in_use(&error) => {
                from_dir.rename(&old, to_dir, &new, Rename::Exchange)?;
                let file = StoredFile { dir: &source.dirs[store], store, kind: None, identity: None };
                removed(discard(mount, file, &old, None))?;
            }
            renamed => renamed?,
        }
        let file = StoredFile::found(&target.dirs[other.store], other.store, &other);
        return removed(discard(mount, file, &new, replaced));
    }
    if is_object(&source.entry) && source.entry.is_same(&other) {
        // Both names belong to the same file, and both stay, as with rename(2). The mount that
        // renames the object at this moment will remove the old name.
        return Ok(());
    }
    let replaced_file = StoredFile::found(&target.dirs[store], store, &other);
    if is_object(&source.entry) && is_object(&other) {
        let replace = || from_dir.rename(&old, to_dir, &new, Rename::Replace);
        return discard_by(mount, replaced_file, &new, replaced, &replace);
    }
    // The names are exchanged in one step if the file system supports it, so that there is always a
    // file with this name.
    match from_dir.rename(&old, to_dir, &new, Rename::Exchange) {
        Ok(()) => {
            let exchanged = StoredFile { dir: &source.dirs[store], ..replaced_file };
            removed(discard(mount, exchanged, &old, replaced))
        }
        Err(error) if error.kind == ErrorKind::Unsupported => {
            discard(mount, replaced_file, &new, replaced)?;
            rename()
        }
        Err(error) => Err(error),
    }
}

/// Renames a directory in all stores, or a symbolic link in the first one. `store_list` contains
/// the stores that were known when the names were found.
fn rename_other(
    mount: &Mount,
    source: Source<'_>,
    target: Target<'_>,
    replaced: Option<NodeId>,
    mode: Rename,
    store_list: &Arc<StoreList>,
) -> Result<Attempt> {
    let (old, new) = (other_name(source.at.name)?, other_name(target.at.name)?);
    let is_dir = source.entry.kind == Kind::Dir;
    let stores = if is_dir { source.dirs.len() } else { 1 };
    let mut renamed = Vec::with_capacity(stores);
    for store in 0..stores {
        let (from_dir, to_dir) = (&*source.dirs[store], &*target.dirs[store]);
        if is_dir && stores > 1 {
            renamed.push(none_if_not_found(from_dir.stat(&old))?);
        }
        // The first store decides whether the name is free; other stores may have remains of a
        // removed directory.
        let store_mode = match store {
            // A directory that another mount has just created must not be replaced, because its
            // files may be in another store.
            0 if is_dir && target.entry.is_none() && stores > 1 => Rename::Keep,
            0 => mode,
            _ => Rename::Replace,
        };
        match rename_or_replace(from_dir, &old, to_dir, &new, store_mode) {
            Err(error)
                if store == 0 && error.kind == ErrorKind::Exists && is_another(mount, target.at, None)? =>
            {
                return Ok(Attempt::Repeat);
            }
            Err(error) if error.kind == ErrorKind::NotFound && store > 0 => {}
            Err(error) => {
                // Another mount has created entries in the target in this store.
                undo_rename(source, target, &renamed[..store.min(renamed.len())])?;
                return Err(error);
            }
            Ok(()) => {}
        }
    }
    if is_dir && mount.stores.has_changed(store_list)? {
        // A store was added meanwhile, and objects moved there may have the old name.
        let (from_dirs, to_dirs) = (mount.open_dir(source.at.dir)?, mount.open_dir(target.at.dir)?);
        for (from_dir, to_dir) in from_dirs.iter().zip(&**to_dirs).skip(store_list.len()) {
            none_if_not_found(from_dir.rename(&old, &**to_dir, &new, Rename::Replace))?;
        }
    }
    if let Some(other) = target.entry.filter(|other| other.kind == Kind::File) {
        let file = StoredFile::found(&target.dirs[other.store], other.store, &other);
        discard(mount, file, &container_name(target.at.name)?, replaced)?;
    }
    Ok(Attempt::Done)
}

/// Undoes the renames of a directory in the first stores. `renamed` contains the attributes that
/// the directory had before in each of these stores.
fn undo_rename(source: Source<'_>, target: Target<'_>, renamed: &[Option<Stat>]) -> Result<()> {
    let (old, new) = (other_name(source.at.name)?, other_name(target.at.name)?);
    let replaced_dir = target.entry.filter(|other| other.kind == Kind::Dir).map(|other| other.stat);
    for (store, moved) in renamed.iter().enumerate().rev() {
        let (from_dir, to_dir) = (&*source.dirs[store], &*target.dirs[store]);
        let Some(moved) = moved else { continue };
        undo_dir_rename(from_dir, &old, to_dir, &new, moved)?;
        if let Some(like) = &replaced_dir {
            make_dir_like(to_dir, &new, like)?;
        }
    }
    Ok(())
}

/// Exchanges two names: in one step if their entries are of the same kind and in the same store,
/// otherwise in two steps.
fn exchange(first: Source<'_>, second: Source<'_>) -> Result<()> {
    let stored_as = |side: &Source<'_>, name: &[u8]| match side.entry.kind {
        Kind::File => container_name(name),
        _ => other_name(name),
    };
    let is_in = |side: &Source<'_>, store| side.entry.kind == Kind::Dir || side.entry.store == store;
    let (first_old, first_new) = (stored_as(&first, first.at.name)?, stored_as(&first, second.at.name)?);
    let (second_old, second_new) = (stored_as(&second, second.at.name)?, stored_as(&second, first.at.name)?);
    for store in 0..first.dirs.len() {
        let (first_dir, second_dir) = (&*first.dirs[store], &*second.dirs[store]);
        let (has_first, has_second) = (is_in(&first, store), is_in(&second, store));
        if has_first && has_second && first_old == second_new {
            first_dir.rename(&first_old, second_dir, &first_new, Rename::Exchange)?;
            continue;
        }
        // Names of files and other objects never collide, nor do names in different stores.
        if has_first {
            rename_to_free_name(&first.entry, (first_dir, &first_old), (second_dir, &first_new))?;
        }
        if has_second {
            rename_to_free_name(&second.entry, (second_dir, &second_old), (first_dir, &second_new))?;
        }
    }
    Ok(())
}
