//! The conflicts of committed batches: their paths, and their resolution.

use std::collections::HashSet;

use quell_batch_service::{BatchCaller, Conflict, Kept, NameSpace, ROOT, Resolution, Resolved};
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
    /// the master image, which checks the permissions of `caller`, unless it is `None`.
    ///
    /// # Errors
    /// As for [`StoreAccess::resolve`](crate::StoreAccess::resolve); `Busy` if another thread
    /// commits the batch or resolves its conflicts.
    pub(crate) fn resolve(
        &self,
        (names, caller): (&dyn NameSpace, Option<&BatchCaller>),
        number: u64,
        paths: Option<&[Vec<u8>]>,
        how: &Resolution,
    ) -> Result<Resolved> {
        let guard = self.primary().try_lock_commit(number).ok_or_else(|| Error {
            source: Some("another command commits, aborts or resolves it; repeat the command".into()),
            ..Error::new(ErrorKind::Busy, "use batch", number.to_string())
        })?;
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
            match resolve_one((names, caller), conflict, how) {
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
        if !done.is_empty() {
            names.sync()?;
            let mut at = 0;
            self.primary().remove_conflicts(&guard, &mut |_| {
                at += 1;
                done.contains(&(at - 1))
            })?;
        }
        failure.map_or(Ok(result), Err)
    }
}

/// Resolves a conflict. Returns false if no entry of the batch was kept that could replace the
/// other entry.
fn resolve_one(
    (names, caller): (&dyn NameSpace, Option<&BatchCaller>),
    conflict: &Conflict,
    how: &Resolution,
) -> Result<bool> {
    let Some(kept) = &conflict.kept_as else { return Ok(*how == Resolution::Theirs) };
    let at_kept = number_at(names, kept.dir, &kept.name)?;
    if at_kept != Some(kept.inode) {
        let at_name = || number_at(names, conflict.dir, &conflict.name);
        if at_kept.is_some() && at_name()? == Some(kept.inode) {
            return Err(exchanged(kept));
        }
        // The kept entry was removed or renamed, so the conflict is resolved already.
        return Ok(true);
    }
    match how {
        Resolution::Theirs => remove_tree(names, kept.dir, &kept.name)?,
        Resolution::Mine => replace((names, caller), kept, conflict)?,
        Resolution::Rename(path) => {
            let split = path.iter().rposition(|byte| *byte == b'/');
            let (above, name) = split.map_or((&b""[..], &path[..]), |at| (&path[..at], &path[at + 1..]));
            let dir = dir_at(names, above)?;
            names.rename((kept.dir, &kept.name), (dir, name), Rename::Keep, now())?;
        }
    }
    if kept.dir != conflict.dir
        && let Err(error) = remove_conflict_dir(names, kept.dir)
    {
        // The conflict is resolved. The user may be unable to remove the directory, and another
        // process may already have removed it.
        tracing::debug!(%error, "a directory for entries in conflict remains");
    }
    Ok(true)
}

/// Returns the error for a conflict whose two entries were exchanged. A replacement that was
/// interrupted leaves this state, but the entry at the name of the kept one may also be any other
/// entry, so it is not removed.
fn exchanged(kept: &Kept) -> Error {
    let name = quell_vfs::printable(&kept.name);
    let reason = format!(
        "the entry of the batch has this name already, and another entry has the name {name}: a replacement was \
         interrupted, or the names were exchanged; remove or rename that entry, then repeat the command"
    );
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Exists, "resolve", &kept.name) }
}

/// Returns the inode number of the entry at a name.
fn number_at(names: &dyn NameSpace, dir: u64, name: &[u8]) -> Result<Option<u64>> {
    match names.lookup(dir, name) {
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Stale) => Ok(None),
        found => Ok(found?.map(|found| found.inode.number)),
    }
}

/// Gives the entry of a batch the name of the other entry, which is removed.
fn replace(
    (names, caller): (&dyn NameSpace, Option<&BatchCaller>),
    kept: &Kept,
    conflict: &Conflict,
) -> Result<()> {
    let from = (kept.dir, &kept.name[..]);
    let to = (conflict.dir, &conflict.name[..]);
    let inode_at = |(dir, name): (u64, &[u8])| names.lookup(dir, name);
    let Some(theirs) = inode_at(to)? else { return names.rename(from, to, Rename::Keep, now()).map(drop) };
    let is_dir = theirs.inode.kind()? == Kind::Dir;
    let is_mine_dir = inode_at(from)?.map(|mine| mine.inode.kind()).transpose()? == Some(Kind::Dir);
    if theirs.inode.number == kept.inode {
        // A rename to another name of the same file would change nothing.
        return names.remove(from.0, from.1, now()).map(drop);
    }
    if !is_dir && !is_mine_dir {
        return names.rename(from, to, Rename::Replace, now()).map(drop);
    }
    if is_dir && let Some(caller) = caller {
        check_removable(names, caller, to.0, to.1)?;
    }
    // A rename cannot replace a directory that is not empty, or one kind by the other.
    names.rename(from, to, Rename::Exchange, now())?;
    remove_tree(names, from.0, from.1)
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

/// The number of names that are read at a time.
const PAGE_ENTRIES: usize = 512;

/// A name of a directory, with its inode number and kind.
type Listed = (Vec<u8>, u64, Kind);

/// Returns the next names of a directory after a name.
fn next_names(names: &dyn NameSpace, dir: u64, after: &[u8]) -> Result<Vec<Listed>> {
    let mut page = Vec::new();
    names.list(dir, after, &mut |name, inode, kind| {
        page.push((name.to_vec(), inode, kind));
        page.len() < PAGE_ENTRIES
    })?;
    Ok(page)
}

/// Checks that a user may remove everything below a directory, so that a removal does not end in
/// the middle.
fn check_removable(names: &dyn NameSpace, caller: &BatchCaller, dir: u64, name: &[u8]) -> Result<()> {
    let mut dirs = vec![(dir, name.to_vec())];
    while let Some((above, name)) = dirs.pop() {
        let Some(found) = names.lookup(above, &name)? else { continue };
        let mut after = Vec::new();
        loop {
            let page = next_names(names, found.inode.number, &after)?;
            let Some((last, ..)) = page.last() else { break };
            let mut is_permitted = caller.may_list_and_change(&found.inode);
            if caller.needs_ownership(&found.inode) {
                for (entry, ..) in &page {
                    let entry = names.lookup(found.inode.number, entry)?;
                    is_permitted &= entry.is_none_or(|entry| caller.may_remove(&found.inode, &entry.inode));
                }
            }
            if !is_permitted {
                let source = Some("it has entries that the user must not remove".into());
                return Err(Error { source, ..Error::new(ErrorKind::PermissionDenied, "remove", name) });
            }
            after.clone_from(last);
            let below = page.into_iter().filter(|(_, _, kind)| *kind == Kind::Dir);
            dirs.extend(below.map(|(name, ..)| (found.inode.number, name)));
        }
    }
    Ok(())
}

/// Removes an entry, and everything below it. The data files remain until the garbage collection
/// removes them.
///
/// # Errors
/// `Busy` if another process moves one of the directories meanwhile.
fn remove_tree(names: &dyn NameSpace, dir: u64, name: &[u8]) -> Result<()> {
    let Some(top) = names.lookup(dir, name)? else { return Ok(()) };
    if top.inode.kind()? != Kind::Dir {
        return names.remove(dir, name, now()).map(drop);
    }
    let mut dirs = vec![(dir, name.to_vec(), top.inode.number)];
    let mut next = 0;
    while let Some((above, name, number)) = dirs.get(next).cloned() {
        let mut after = Vec::new();
        loop {
            if names.parent(number)? != (above, name.clone()) {
                let source = Some("another process has moved the directory".into());
                return Err(Error { source, ..Error::new(ErrorKind::Busy, "remove", name) });
            }
            let page = next_names(names, number, &after)?;
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
