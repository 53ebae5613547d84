//! The conflicts of committed batches: their paths, and their resolution.

use std::collections::HashSet;

use quell_batch_service::{Conflict, Kept, NameSpace, ROOT, Resolution, Resolved};
use quell_vfs::{Error, ErrorKind, Kind, Rename, Result};

use crate::shared::now;
use crate::store::BatchStore;
use crate::subtree::{dir_at, path_of};

/// Returns the path of a name in a directory, whose own path is `above` unless it was removed.
pub(crate) fn path_of_name(above: Result<Vec<u8>>, dir: u64, name: &[u8]) -> Vec<u8> {
    let above = above.unwrap_or_else(|_| format!("(removed directory {dir})").into_bytes());
    [&above[..], b"/", name].concat()
}

impl BatchStore {
    /// Resolves conflicts as [`StoreAccess::resolve`](crate::StoreAccess::resolve) does. `names` is
    /// the master image, which may check the permissions of a user.
    pub(crate) fn resolve(
        &self,
        names: &dyn NameSpace,
        number: u64,
        paths: Option<&[Vec<u8>]>,
        how: &Resolution,
    ) -> Result<Resolved> {
        let guard = self.primary().lock_commit(number);
        let path_of_name = |dir: u64, name: &[u8]| path_of_name(path_of(names, dir), dir, name);
        let mut wanted: Option<HashSet<&[u8]>> =
            paths.map(|paths| paths.iter().map(|path| &path[..]).collect());
        let (mut selected, mut count) = (Vec::new(), 0_u64);
        self.primary().conflicts(number, &mut |conflict| {
            let path = path_of_name(conflict.dir, &conflict.name);
            let is_selected = wanted.as_mut().is_none_or(|wanted| wanted.remove(&path[..]));
            if is_selected {
                selected.push((count, conflict));
            }
            count += 1;
            Ok(())
        })?;
        if let Some(path) = wanted.iter().flatten().next() {
            let source = Some("the batch has no such conflict".into());
            return Err(Error { source, ..Error::new(ErrorKind::NotFound, "resolve", *path) });
        }
        let mut done = HashSet::new();
        let mut result = Resolved::default();
        let mut failure = None;
        for (number, conflict) in &selected {
            match resolve_one(names, conflict, how) {
                Ok(true) => {
                    done.insert(*number);
                    result.resolved += 1;
                }
                Ok(false) => result.not_kept += 1,
                Err(error) => {
                    let subject = path_of_name(conflict.dir, &conflict.name);
                    failure = Some(Error { subject, ..error });
                    break;
                }
            }
        }
        names.sync()?;
        let mut at = 0;
        self.primary().remove_conflicts(&guard, &mut |_| {
            at += 1;
            done.contains(&(at - 1))
        })?;
        failure.map_or(Ok(result), Err)
    }
}

/// Resolves a conflict. Returns false if no entry of the batch was kept that could replace the
/// other entry.
fn resolve_one(names: &dyn NameSpace, conflict: &Conflict, how: &Resolution) -> Result<bool> {
    let Some(kept) = &conflict.kept_as else { return Ok(*how == Resolution::Theirs) };
    let found = names.lookup(kept.dir, &kept.name);
    if !matches!(found, Ok(Some(found)) if found.inode.number == kept.inode) {
        // The kept entry was removed or renamed, so the conflict is resolved already.
        return Ok(true);
    }
    match how {
        Resolution::Theirs => remove_tree(names, kept.dir, &kept.name)?,
        Resolution::Mine => replace(names, kept, conflict)?,
        Resolution::Rename(path) => {
            let split = path.iter().rposition(|byte| *byte == b'/');
            let (above, name) = split.map_or((&b""[..], &path[..]), |at| (&path[..at], &path[at + 1..]));
            let dir = dir_at(names, above)?;
            names.rename((kept.dir, &kept.name), (dir, name), Rename::Keep, now())?;
        }
    }
    if kept.dir != conflict.dir {
        remove_conflict_dir(names, kept.dir)?;
    }
    Ok(true)
}

/// Gives the entry of a batch the name of the other entry, which is removed.
fn replace(names: &dyn NameSpace, kept: &Kept, conflict: &Conflict) -> Result<()> {
    let from = (kept.dir, &kept.name[..]);
    let to = (conflict.dir, &conflict.name[..]);
    let is_dir = |dir: u64, name: &[u8]| -> Result<Option<bool>> {
        let found = names.lookup(dir, name)?;
        found.map(|found| Ok(found.inode.kind()? == Kind::Dir)).transpose()
    };
    let (mine, theirs) = (is_dir(from.0, from.1)?, is_dir(to.0, to.1)?);
    if mine == Some(false) && theirs != Some(true) {
        return names.rename(from, to, Rename::Replace, now()).map(drop);
    }
    // A directory cannot be replaced with one rename. If this process ends between the two renames,
    // the other entry has a temporary name, and the next attempt continues.
    const SUFFIX: &[u8] = b".replaced";
    // A long name is truncated before the suffix is added.
    let begin = &kept.name[..kept.name.len().min(quell_vfs::NAME_BYTES_MAX - SUFFIX.len())];
    let aside = &[begin, SUFFIX].concat()[..];
    if theirs.is_some() {
        names.rename(to, (to.0, aside), Rename::Keep, now())?;
    }
    names.rename(from, to, Rename::Keep, now())?;
    match theirs {
        Some(_) => remove_tree(names, to.0, aside),
        None => Ok(()),
    }
}

/// Removes the directory for entries in conflict if it is empty.
fn remove_conflict_dir(names: &dyn NameSpace, dir: u64) -> Result<()> {
    let (above, name) = names.parent(dir)?;
    if above != ROOT || !name.starts_with(b"quell-conflicts-") {
        return Ok(());
    }
    match names.remove_dir(above, &name, now()) {
        Err(error) if error.kind == ErrorKind::NotEmpty => Ok(()),
        removed => removed.map(drop),
    }
}

/// Removes an entry, and everything below it. The data files remain until the garbage collection
/// removes them.
fn remove_tree(names: &dyn NameSpace, dir: u64, name: &[u8]) -> Result<()> {
    /// The number of names that are read at a time.
    const PAGE_ENTRIES: usize = 512;
    let Some(top) = names.lookup(dir, name)? else { return Ok(()) };
    if top.inode.kind()? != Kind::Dir {
        return names.remove(dir, name, now()).map(drop);
    }
    let mut dirs = vec![(dir, name.to_vec(), top.inode.number)];
    let mut next = 0;
    while let Some((_, _, number)) = dirs.get(next).cloned() {
        let mut after = Vec::new();
        loop {
            let mut page = Vec::new();
            names.list(number, &after, &mut |name, inode, kind| {
                page.push((name.to_vec(), inode, kind));
                page.len() < PAGE_ENTRIES
            })?;
            let Some((last, ..)) = page.last() else { break };
            after.clone_from(last);
            for (name, inode, kind) in page {
                match kind {
                    Kind::Dir => dirs.push((number, name, inode)),
                    _ => drop(names.remove(number, &name, now())?),
                }
            }
        }
        next += 1;
    }
    for (above, name, _) in dirs.iter().rev() {
        names.remove_dir(*above, name, now())?;
    }
    Ok(())
}
