//! The changes of inodes of the snapshot, merged with the changes that others have made since.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use quell_vfs::{Kind, Result};

use super::access::DirAccess;
use super::merge_inode::merge;
use super::pass::Pass;
use super::refusal::refused;
use super::state::{Current, Facts, Name, RemovedName, remove_content};
use crate::batch::ConflictReason;
use crate::entry::{Content, DEPTH_MAX, Entry, Inode, LINKED, ROOT, Timestamp};
use crate::image::Addition;
use crate::key::{Key, split};
use crate::readable::has_unreadable_parts;
use crate::verdict::Verdict;

/// An inode of the snapshot that a batch changes.
#[derive(Debug)]
struct Changed {
    before: Inode,
    current: Option<Current>,
    facts: Facts,
    /// The first name that cannot be changed, and the reason. Then no name of the inode is changed.
    refusal: Option<(Name, ConflictReason)>,
}

/// For each name, the inode of the snapshot that loses the name, and the inode that gets it.
#[derive(Debug, Default)]
struct Names {
    removed_by: HashMap<Key, u64>,
    added_by: HashMap<Key, u64>,
}

impl Pass<'_> {
    /// Merges the changes of all inodes of the snapshot into the patch.
    pub(super) fn resolve(&mut self) -> Result<()> {
        let mut inodes = BTreeMap::new();
        let mut names = Names::default();
        for (number, mut facts) in std::mem::take(&mut self.facts) {
            let mut before = self.before(number, &mut facts)?;
            check_shape(&before, &facts)?;
            for RemovedName { dir, name, .. } in &facts.removed {
                names.removed_by.insert(Key::of_name(*dir, name), number);
            }
            for (dir, name) in &facts.added {
                names.added_by.insert(Key::of_name(*dir, name), number);
            }
            let mut current = self.current(number, &before, &facts)?;
            if facts.after.is_none() {
                // Contents that do not change are not kept in memory.
                remove_content(&mut before);
                current.iter_mut().for_each(Current::remove_content);
            }
            // Others may change its other names, or the names of its directory.
            self.dirs.push(LINKED);
            inodes.insert(number, Changed { before, current, facts, refusal: None });
        }
        for (number, changed) in &mut inodes {
            changed.refusal = self.first_refusal(*number, changed, &names)?;
        }
        self.refuse_dependent(&mut inodes, &names)?;
        for changed in inodes.values() {
            self.list_refusal(changed)?;
        }
        for (number, changed) in inodes {
            let Some(current) = changed.current else {
                if changed.before.kind()? == Kind::Dir {
                    self.uncount_refused(&changed.facts);
                }
                continue;
            };
            let is_refused = changed.refusal.is_some();
            if is_refused {
                self.restore_names(&changed.facts)?;
            }
            let inode = self.merged(&changed.before, &changed.facts, &current)?;
            match changed.before.kind()? {
                Kind::Dir => self.apply_dir(number, changed.facts, inode, is_refused)?,
                _ => self.apply_file(number, changed.facts, current, inode, is_refused)?,
            }
        }
        self.count_subdirs()
    }

    /// Ends the verification.
    pub(super) fn finish(&mut self) -> Result<Verdict> {
        self.check_new_tree()?;
        let changed_dirs = self.patch.keys().filter_map(|key| split(key.as_bytes())).map(|(dir, _)| dir);
        // The keys are in the order of their directories.
        let mut changed_dirs: Vec<u64> = changed_dirs.collect();
        changed_dirs.dedup();
        // The changes of existing entries are in a table that is newer than the tables of the
        // batch.
        self.out.end_table()?;
        let patch = std::mem::take(&mut self.patch);
        let mut in_image = self.submission.current.lookups();
        for (key, entry) in patch {
            let before = match self.new_inode_of_dir(&key)? {
                Some(inode) => Some(inode),
                None => in_image.get(key.as_bytes())?.map(|value| Entry::decode(&value)).transpose()?,
            };
            before.iter().for_each(|before| self.usage.remove(before));
            entry.iter().for_each(|entry| self.usage.add(entry));
            let value = entry.map_or(Vec::new(), |entry| entry.encode());
            self.out.add(key.as_bytes(), &value)?;
        }
        let mut tables = self.out.finish()?;
        // No other table of this verification has the keys of merged entries, except for the newest
        // one.
        tables.extend(self.merged.finish()?);
        let mut usage = std::mem::take(&mut self.usage);
        usage.remove_unchanged();
        let mut dirs = std::mem::take(&mut self.dirs);
        dirs.sort_unstable();
        dirs.dedup();
        let mut accesses = self.accesses.read_dirs();
        accesses.retain(|dir| dirs.binary_search(dir).is_err());
        accesses.sort_unstable();
        Ok(Verdict {
            addition: Addition { tables, changed_dirs, usage: Some(usage) },
            entries: self.entries,
            conflicts: self.conflicts.finish()?,
            dirs,
            accesses,
        })
    }

    /// Returns the inode of a new directory that was written to the tables, if `key` is its key.
    fn new_inode_of_dir(&self, key: &Key) -> Result<Option<Entry>> {
        match split(key.as_bytes()) {
            Some((dir, b"")) if self.new_dirs.contains_key(&dir) && self.merged.target_of(dir).is_none() => {
                self.submitted(key)
            }
            _ => Ok(None),
        }
    }

    /// Returns the state of an inode in the snapshot.
    fn before(&self, number: u64, facts: &mut Facts) -> Result<Inode> {
        if let Some(before) = facts.before.take() {
            return Ok(before);
        }
        let snapshot = self.submission.snapshot;
        let get = |key: &Key| -> Result<Option<Entry>> {
            let value = snapshot.get(key.as_bytes())?.filter(|value| !value.is_empty());
            value.map(|value| Entry::decode(&value)).transpose()
        };
        let first = facts.removed.first();
        let found = first.map(|removed| get(&Key::of_name(removed.dir, &removed.name))).transpose()?;
        let found = match found.flatten() {
            Some(Entry::Dir { inode }) => get(&Key::of_dir(inode))?,
            Some(Entry::Inode(inode)) => Some(Entry::Inode(inode)),
            _ => get(&Key::of_linked(number))?,
        };
        match found {
            Some(Entry::Inode(inode)) if inode.number == number => Ok(inode),
            _ => Err(refused("a name refers to an inode that is neither new nor in the snapshot")),
        }
    }

    /// Returns the state of an inode in the current image. `None` if it was removed.
    fn current(&self, number: u64, before: &Inode, facts: &Facts) -> Result<Option<Current>> {
        let image = self.submission.current.clone();
        if before.kind()? == Kind::Dir {
            return Ok(match image.entry(&Key::of_dir(number))? {
                Some(Entry::Inode(inode)) => Some(Current::new(inode, None)),
                _ => None,
            });
        }
        let removed = facts.removed.iter().map(|removed| (removed.dir, removed.name.clone()));
        for (dir, name) in facts.embedded_at.iter().cloned().chain(removed) {
            if let Some(Entry::Inode(inode)) = image.entry(&Key::of_name(dir, &name))?
                && inode.number == number
            {
                return Ok(Some(Current::new(inode, Some((dir, name)))));
            }
        }
        Ok(match image.entry(&Key::of_linked(number))? {
            Some(Entry::Inode(inode)) => Some(Current::new(inode, None)),
            _ => None,
        })
    }

    /// Returns the first name of an inode that cannot be changed, and the reason.
    fn first_refusal(
        &self,
        number: u64,
        changed: &Changed,
        names: &Names,
    ) -> Result<Option<(Name, ConflictReason)>> {
        let Facts { removed, added, .. } = &changed.facts;
        let Some(current) = &changed.current else {
            // An entry that the batch has replaced may have been removed by others.
            let not_replaced = removed.iter().find(|removed| !removed.is_replaced);
            let name = not_replaced.map(|removed| (removed.dir, removed.name.clone()));
            let name = name.or(added.first().cloned()).or(changed.facts.embedded_at.clone());
            let Some(name) = name else { return Ok(None) };
            let reason = match self.hides_names(name.0)? {
                true => ConflictReason::Denied,
                false => ConflictReason::Changed,
            };
            return Ok(Some((name, reason)));
        };
        for RemovedName { dir, name, .. } in removed {
            if let Some(reason) = self.refusal_of_removal(number, (*dir, name), &current.inode)? {
                return Ok(Some(((*dir, name.clone()), reason)));
            }
        }
        let caller = &self.submission.record.caller;
        if let ([from], [to]) = (&removed[..], &added[..])
            && current.inode.kind()? == Kind::Dir
            && from.dir != to.0
            && !caller.may_move(&current.inode)
        {
            return Ok(Some(((from.dir, from.name.clone()), ConflictReason::Denied)));
        }
        if let (Some((dir, name)), false) = (&changed.facts.embedded_at, added.is_empty())
            && !self.accesses.of(*dir)?.is_searchable
        {
            return Ok(Some(((*dir, name.clone()), ConflictReason::Denied)));
        }
        if let Some((dir, name)) = added.first()
            && current.inode.kind()? != Kind::Dir
            && !(self.is_reachable(&changed.facts, current)?
                && (added.len() <= removed.len() || caller.may_link(&current.inode)))
        {
            return Ok(Some(((*dir, name.clone()), ConflictReason::Denied)));
        }
        for (dir, name) in added {
            if let Some(reason) = self.refusal_of_addition((*dir, name), names)? {
                return Ok(Some(((*dir, name.clone()), reason)));
            }
        }
        Ok(None)
    }

    fn refusal_of_removal(
        &self,
        number: u64,
        (dir, name): (u64, &[u8]),
        inode: &Inode,
    ) -> Result<Option<ConflictReason>> {
        let current = &self.submission.current;
        if self.hides_names(dir)? {
            return Ok(Some(ConflictReason::Denied));
        }
        let found = current.entry(&Key::of_name(dir, name))?;
        if found.is_none_or(|entry| entry.inode_number() != number) {
            return Ok(Some(ConflictReason::Changed));
        }
        let Some(Entry::Inode(parent)) = current.entry(&Key::of_dir(dir))? else {
            return Ok(Some(ConflictReason::DirectoryRemoved));
        };
        let access = self.accesses.of(dir)?;
        let is_permitted =
            access.may_change_names && self.submission.record.caller.may_remove(&parent, inode);
        Ok((!is_permitted).then_some(ConflictReason::Denied))
    }

    /// Returns whether the reason of a conflict must not show which names a directory has now.
    fn hides_names(&self, dir: u64) -> Result<bool> {
        let access = self.accesses.of(dir)?;
        Ok(self.readable.is_some() && access.exists && !access.is_searchable)
    }

    fn refusal_of_addition(
        &self,
        (dir, name): (u64, &[u8]),
        names: &Names,
    ) -> Result<Option<ConflictReason>> {
        if self.numbers.contains(dir) {
            return Ok(None);
        }
        let current = &self.submission.current;
        match self.accesses.of(dir)? {
            DirAccess { exists: false, .. } => return Ok(Some(ConflictReason::DirectoryRemoved)),
            DirAccess { may_change_names: false, .. } => return Ok(Some(ConflictReason::Denied)),
            _ => {}
        }
        let key = Key::of_name(dir, name);
        let found = current.entry(&key)?.map(|entry| entry.inode_number());
        let is_free = found.is_none() || found == names.removed_by.get(&key).copied();
        Ok((!is_free).then_some(ConflictReason::Exists))
    }

    /// Refuses the changes that depend on refused ones: if one inode gets the name of another one,
    /// either both are renamed or neither is; and a directory is removed only if it becomes empty.
    fn refuse_dependent(&mut self, inodes: &mut BTreeMap<u64, Changed>, names: &Names) -> Result<()> {
        let mut candidates: Vec<u64> = inodes.keys().copied().collect();
        loop {
            let mut refused = Vec::new();
            for number in candidates {
                let Some(changed) = inodes.get(&number).filter(|changed| changed.refusal.is_none()) else {
                    continue;
                };
                let refusal = self.dependent_refusal(number, changed, inodes, names)?;
                refused.extend(refusal.map(|refusal| (number, refusal)));
            }
            if refused.is_empty() {
                refused = self.dirs_below_themselves(inodes)?;
            }
            if refused.is_empty() {
                return Ok(());
            }
            // Only inodes that depend on the refused ones can be refused next.
            let mut next = BTreeSet::new();
            for (number, refusal) in refused {
                let changed = inodes.get_mut(&number).expect("its changes were examined above");
                changed.refusal = Some(refusal);
                next.extend(dependents(&changed.facts, names));
            }
            candidates = next.into_iter().collect();
        }
    }

    /// Returns the name of an inode that cannot be changed because changes of other inodes are
    /// refused, and the reason.
    fn dependent_refusal(
        &self,
        number: u64,
        changed: &Changed,
        inodes: &BTreeMap<u64, Changed>,
        names: &Names,
    ) -> Result<Option<(Name, ConflictReason)>> {
        let Facts { removed, added, is_removed, .. } = &changed.facts;
        if let (Some(removed), true) = (removed.first(), *is_removed && changed.before.kind()? == Kind::Dir)
            && !self.becomes_empty(number, inodes, names)?
        {
            return Ok(Some(((removed.dir, removed.name.clone()), ConflictReason::NotEmpty)));
        }
        let refused = |number: &u64| inodes.get(number).filter(|changed| changed.refusal.is_some());
        let lost = |removed: &&RemovedName| {
            let other = names.added_by.get(&Key::of_name(removed.dir, &removed.name));
            other.is_some_and(|other| refused(other).is_some())
        };
        if let Some(removed) = removed.iter().find(lost) {
            return Ok(Some(((removed.dir, removed.name.clone()), ConflictReason::Changed)));
        }
        let taken = |name: &&Name| {
            let other = names.removed_by.get(&Key::of_name(name.0, &name.1));
            other.and_then(refused).is_some_and(|other| other.current.is_some())
        };
        Ok(added.iter().find(taken).map(|name| (name.clone(), ConflictReason::Exists)))
    }

    /// Returns whether the batch removes all names that a directory has in the current image.
    fn becomes_empty(&self, dir: u64, inodes: &BTreeMap<u64, Changed>, names: &Names) -> Result<bool> {
        let mut becomes_empty = true;
        self.submission.current.list(dir, b"", &mut |name, _| {
            let remover =
                names.removed_by.get(&Key::of_name(dir, name)).and_then(|number| inodes.get(number));
            becomes_empty = remover.is_some_and(|changed| changed.refusal.is_none());
            becomes_empty
        })?;
        Ok(becomes_empty)
    }

    fn list_refusal(&mut self, changed: &Changed) -> Result<()> {
        let Changed { before, current, facts, refusal } = changed;
        // Others have removed the file whose content the batch has changed.
        let kept = match (&facts.after, current) {
            (Some(after), None) => {
                self.check_limits_of_change(before, after)?;
                self.keep_content(before, after, refusal.as_ref().map(|(name, _)| name))?
            }
            _ => None,
        };
        match refusal {
            Some(((dir, name), reason)) => self.conflict(*dir, name, *reason, kept),
            None if kept.is_some() => {
                let name = before.number.to_string().into_bytes();
                self.conflict(LINKED, &name, ConflictReason::Changed, kept)
            }
            None => Ok(()),
        }
    }

    /// Gives new entries other names if they have replaced names that are not removed.
    fn restore_names(&mut self, facts: &Facts) -> Result<()> {
        for RemovedName { dir, name, is_replaced } in &facts.removed {
            let key = Key::of_name(*dir, name);
            if *is_replaced && let Some(Some(entry)) = self.patch.remove(&key) {
                if let Entry::Dir { .. } = entry {
                    *self.subdirs.entry(*dir).or_default() -= 1;
                }
                self.keep_as_other_name(*dir, name, entry, ConflictReason::Exists)?;
            }
        }
        Ok(())
    }

    /// Returns the current inode with the changes of the batch. A change that is in conflict, or
    /// that the caller may not make, is left out and listed.
    fn merged(&mut self, before: &Inode, facts: &Facts, current: &Current) -> Result<Inode> {
        let Some(after) = &facts.after else { return Ok(current.inode.clone()) };
        self.check_limits_of_change(before, after)?;
        let mut after = after.clone();
        if let (Content::Parent { dir, name }, Content::Parent { .. }) = (&after.content, &before.content) {
            // The stated parent and name of a directory change with its entry.
            let place = (self.merged.in_image(*dir), name.clone());
            if after.content != before.content && facts.added != [place] {
                return Err(refused("the inode of a directory does not state its parent and name"));
            }
            after.content = before.content.clone();
        }
        let after = &after;
        let caller = &self.submission.record.caller;
        // The result of the comparison must not show bytes that the user may not read any more.
        let is_readable = self.readable.is_none() || !has_unreadable_parts(&current.inode, caller);
        let may_change = self.is_reachable(facts, current)? && caller.may_change(before, after);
        let merged = match is_readable && may_change {
            true => merge(before, &current.inode, after),
            false => Err(ConflictReason::Denied),
        };
        let merged = merged.map(|merged| {
            let modified = self.modified(before, after, &current.inode);
            let changed = self.changed(after, &current.inode);
            Inode { modified, changed, ..merged }
        });
        // Others may have withdrawn the permission, or changed the owner, since the snapshot.
        let merged = merged.and_then(|merged| match caller.may_change(&current.inode, &merged) {
            true => Ok(merged),
            false => Err(ConflictReason::Denied),
        });
        match merged {
            Ok(merged) => Ok(merged),
            Err(reason) => {
                let removed = facts.removed.first().map(|removed| (removed.dir, removed.name.clone()));
                let place = match &before.content {
                    Content::Parent { dir, name } => Some((*dir, name.clone())),
                    _ => removed.or(current.embedded_at.clone()).or(facts.added.first().cloned()),
                };
                let kept = self.keep_content(before, after, place.as_ref())?;
                let (dir, name) = place.unwrap_or((LINKED, before.number.to_string().into()));
                self.conflict(dir, &name, reason, kept)?;
                if reason == ConflictReason::Denied {
                    return Ok(current.inode.clone());
                }
                let modified = self.modified(before, after, &current.inode);
                Ok(Inode { modified, ..current.inode.clone() })
            }
        }
    }

    /// Returns the time of the last change of the content, after the change of an inode by the
    /// batch. The owner of an inode can set it to any time, other users only to the present time
    /// (utimensat(2)).
    fn modified(&self, before: &Inode, after: &Inode, current: &Inode) -> Timestamp {
        match after.modified == before.modified {
            true => current.modified,
            false if self.submission.record.caller.owns(current) => current.modified.max(after.modified),
            false => current.modified.max(self.submission.now),
        }
    }

    /// Returns the time of the last change of the inode, which no user can set to a time in the
    /// future.
    fn changed(&self, after: &Inode, current: &Inode) -> Timestamp {
        current.changed.max(after.changed.min(self.submission.now))
    }

    /// Returns whether the caller can reach an inode whose attributes or content the batch has
    /// changed. The names of a file that has several, or was renamed, are not known: it is found by
    /// a name that the batch has removed, or by its owner.
    fn is_reachable(&self, facts: &Facts, current: &Current) -> Result<bool> {
        let inode = &current.inode;
        if self.submission.record.caller.owns(inode) {
            return Ok(true);
        }
        if let Content::Parent { dir, .. } = &inode.content {
            return Ok(inode.number == ROOT || self.accesses.of(*dir)?.is_searchable);
        }
        let removed = facts.removed.iter().map(|removed| (removed.dir, &removed.name));
        let embedded = current.embedded_at.iter().map(|(dir, name)| (*dir, name));
        for (dir, name) in embedded.chain(removed) {
            let found = self.submission.current.entry(&Key::of_name(dir, name))?;
            if found.is_some_and(|entry| entry.inode_number() == inode.number)
                && self.accesses.of(dir)?.is_searchable
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn check_limits_of_change(&self, before: &Inode, after: &Inode) -> Result<()> {
        if before.kind()? != after.kind()? || before.number != after.number {
            return Err(refused("the kind or the inode number of a node has changed"));
        }
        let is_size_changed = before.size_bytes != after.size_bytes;
        let is_symlink_changed = before.kind()? == Kind::Symlink && before.content != after.content;
        if is_symlink_changed || before.kind()? != Kind::File && is_size_changed {
            return Err(refused("the content of a node that is no file has changed"));
        }
        // A batch copies a content in a file before it changes the size.
        if is_size_changed && before.content == after.content && after.content.is_in_file() {
            return Err(refused("the size of a file was changed without a copy of its content"));
        }
        match before.content == after.content {
            // The content may be a data file of an earlier batch, or a file of the adopted tree.
            true => self.check_limits(&Inode { content: self.checked_content(after)?, ..after.clone() }),
            false => self.check_limits(after),
        }
    }

    /// Returns a content that every batch may state, for an inode whose content is unchanged.
    fn checked_content(&self, inode: &Inode) -> Result<Content> {
        Ok(match inode.content {
            Content::File(_) | Content::Adopted(_) => Content::Empty,
            _ => inode.content.clone(),
        })
    }

    /// Returns moved directories that would be below themselves, with the names that their moves
    /// remove. Without their moves, no directory is below itself. A move is also refused if another
    /// change that depends on a refused one would break its cycle.
    fn dirs_below_themselves(
        &mut self,
        inodes: &BTreeMap<u64, Changed>,
    ) -> Result<Vec<(u64, (Name, ConflictReason))>> {
        let moves = |changed: &Changed| changed.refusal.is_none() && !changed.facts.added.is_empty();
        let mut found: BTreeMap<u64, (Name, ConflictReason)> = BTreeMap::new();
        // The number of directories above each directory whose path was followed to the root.
        let mut depths: HashMap<u64, usize> = HashMap::from([(ROOT, 0)]);
        for (number, changed) in inodes {
            if changed.before.kind()? != Kind::Dir || !moves(changed) {
                continue;
            }
            let mut path = Vec::new();
            let mut positions: HashMap<u64, usize> = HashMap::new();
            let mut at = *number;
            let mut depth = loop {
                if let Some(depth) = depths.get(&at) {
                    break *depth;
                }
                if let Some(position) = positions.get(&at) {
                    let moved = path[*position..].iter().filter(|dir| !found.contains_key(dir));
                    let moved = moved.filter_map(|dir| {
                        Some((*dir, inodes.get(dir).filter(|changed| moves(changed))?.facts.removed.first()?))
                    });
                    let Some((lowest, RemovedName { dir, name, .. })) = moved.min_by_key(|(dir, _)| *dir)
                    else {
                        return Err(refused("a new directory is below itself"));
                    };
                    found.insert(lowest, ((*dir, name.clone()), ConflictReason::Cycle));
                    // The path continues above the present place of this directory.
                    let kept = positions[&lowest] + 1;
                    for dir in path.drain(kept..) {
                        positions.remove(&dir);
                    }
                    at = self.dir_above(lowest)?;
                    continue;
                }
                if self.dirs_on_paths.insert(at) {
                    self.dirs.push(at);
                }
                positions.insert(at, path.len());
                path.push(at);
                let moved = inodes.get(&at).filter(|changed| moves(changed) && !found.contains_key(&at));
                at = match moved {
                    Some(changed) => changed.facts.added[0].0,
                    None => self.dir_above(at)?,
                };
            };
            for dir in path.into_iter().rev() {
                depth += 1;
                depths.insert(dir, depth);
            }
            if depth > DEPTH_MAX {
                return Err(refused("a directory is too deep"));
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Returns the directory that contains a directory which is new, or which is not moved.
    fn dir_above(&self, dir: u64) -> Result<u64> {
        if self.numbers.contains(dir) {
            let named = self.new_dirs.get(&dir).and_then(|dir| dir.named);
            return Ok(named.ok_or_else(|| refused("a new directory has no name"))?.0);
        }
        match self.submission.current.entry(&Key::of_dir(dir))? {
            Some(Entry::Inode(Inode { content: Content::Parent { dir, .. }, .. })) => Ok(dir),
            // Others have removed the directory, so nothing is moved into it.
            _ => Ok(ROOT),
        }
    }

    /// Sets the number of links of the directories of the image whose subdirectories have changed.
    fn count_subdirs(&mut self) -> Result<()> {
        for (dir, difference) in std::mem::take(&mut self.subdirs) {
            let key = Key::of_dir(dir);
            if difference == 0 || matches!(self.patch.get(&key), Some(None)) {
                continue;
            }
            let mut inode = self.dir_inode(dir)?;
            let links = i64::from(inode.links) + difference;
            inode.links =
                u32::try_from(links).map_err(|_| refused("a directory has too many subdirectories"))?;
            self.patch.insert(key, Some(Entry::Inode(inode)));
        }
        Ok(())
    }
}

/// Returns the inodes whose changes depend on the changes of an inode: those that get its names, or
/// lose the names that it gets, and the directories that lose its names.
fn dependents(facts: &Facts, names: &Names) -> impl Iterator<Item = u64> {
    let removed = facts.removed.iter().flat_map(|removed| {
        let getter = names.added_by.get(&Key::of_name(removed.dir, &removed.name));
        getter.copied().into_iter().chain([removed.dir])
    });
    let added = facts.added.iter().filter_map(|(dir, name)| names.removed_by.get(&Key::of_name(*dir, name)));
    removed.chain(added.copied())
}

/// Checks that a sequence of operations can make the changes of an inode.
fn check_shape(before: &Inode, facts: &Facts) -> Result<()> {
    if before.kind()? != Kind::Dir {
        return Ok(());
    }
    let is_shape_of_dir = match (facts.removed.len(), facts.added.len()) {
        (0, 0) => !facts.is_removed,
        (1, 0) => facts.is_removed && facts.after.is_none(),
        (1, 1) => !facts.is_removed && facts.after.is_some(),
        _ => false,
    };
    match is_shape_of_dir {
        true => Ok(()),
        false => Err(refused("a directory is moved or removed in part")),
    }
}
