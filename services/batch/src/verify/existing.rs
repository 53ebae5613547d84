//! Entries in directories of the snapshot.

use quell_vfs::Result;

use super::access::DirAccess;
use super::pass::Pass;
use super::refusal::refused;
use super::state::{ExistingDir, RemovedName};
use crate::batch::ConflictReason;
use crate::certificate::{PreImage, ProofForm};
use crate::entry::{Entry, Inode, LINKED};
use crate::key::Key;
use crate::readable::has_unreadable_parts;

/// The reason for which a batch is refused that changes an entry which its user may not read.
const UNREADABLE: &str = "it changes an entry that the user may not read, or that does not exist";

impl Pass<'_> {
    /// Compares an entry of a directory of the snapshot with the snapshot and the current image.
    pub(super) fn existing_dir_entry(
        &mut self,
        dir: u64,
        name: &[u8],
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.check_readable_dir(dir, name)?;
        if self.dir.as_ref().is_none_or(|current| current.dir != dir) {
            self.end_existing_dir()?;
            self.begin_existing_dir(dir)?;
        }
        let before = self.in_snapshot.get(key)?;
        let current = self.dir.as_mut().expect("the directory was begun");
        current.pre_image.add(name, before.as_deref());
        let refusal = current.refusal;
        let before = before.map(|value| Entry::decode(&value)).transpose()?;
        if let (true, Some(Entry::Inode(before))) = (self.readable.is_some(), &before)
            && has_unreadable_parts(before, &self.submission.record.caller)
        {
            return Err(refused(UNREADABLE));
        }
        let after = if value.is_empty() { None } else { Some(Entry::decode(value)?) };
        match dir {
            LINKED => return self.linked_entry(name, key, value, before, after),
            _ if name.is_empty() => return self.existing_dir_inode(dir, before, after),
            _ => {}
        }
        let number = |entry: &Option<Entry>| entry.as_ref().map(Entry::inode_number);
        let is_same = number(&before) == number(&after);
        if let (Some(before), false) = (&before, is_same) {
            let is_replaced = after.is_some();
            let facts = self.facts.entry(before.inode_number()).or_default();
            facts.removed.push(RemovedName { dir, name: name.to_vec(), is_replaced });
        }
        let Some(after) = after else { return Ok(()) };
        if self.facts.get(&dir).is_some_and(|facts| facts.is_removed) {
            return Err(refused("a removed directory has an entry"));
        }
        let after_number = after.inode_number();
        if is_same {
            if let Some(Entry::Inode(inode)) = before {
                let facts = self.facts.entry(after_number).or_default();
                facts.before = Some(inode);
                facts.embedded_at = Some((dir, name.to_vec()));
            }
            if let Entry::Inode(inode) = after {
                self.inode_after(inode)?;
            }
            return Ok(());
        }
        if !self.numbers.contains(after_number) {
            return self.existing_inode_named(dir, name, &after);
        }
        self.new_name(dir, name, &after)?;
        let replaced = self.in_image.get(key)?.map(|value| Entry::decode(&value)).transpose()?;
        if refusal.is_none() && self.merge_dirs(dir, &after, replaced.as_ref())? {
            return Ok(());
        }
        if let Entry::Dir { .. } = after {
            *self.subdirs.entry(dir).or_default() += 1;
        }
        self.entries += 1;
        if let Some(reason) = refusal {
            self.undo_subdir(dir, &after);
            return self.keep_as_other_name(dir, name, after, reason);
        }
        match (number(&replaced), number(&before)) {
            (None, _) => {
                self.usage.add(&after);
                self.out.add(key, value)
            }
            // The entry that the batch has replaced is removed with the changes of its inode.
            (Some(found), Some(expected)) if found == expected => {
                self.patch.insert(Key::of_name(dir, name), Some(after));
                Ok(())
            }
            _ => {
                self.undo_subdir(dir, &after);
                let reason = ConflictReason::Exists;
                self.keep_as_other_name(dir, name, after, reason)
            }
        }
    }

    /// Checks that the user may read the entry at a name of a directory of the snapshot. The error
    /// is the same for directories that do not exist. Inodes with several names are not checked:
    /// the certificate has their hashes, so the user has read them.
    fn check_readable_dir(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        let Some(readable) = &mut self.readable else { return Ok(()) };
        let is_readable = match name {
            _ if dir == LINKED => true,
            [] => readable.may_show_inode(dir)?,
            _ => readable.may_search(dir)?,
        };
        if is_readable { Ok(()) } else { Err(refused(UNREADABLE)) }
    }

    /// Records a new name of an inode of the snapshot.
    pub(super) fn existing_inode_named(&mut self, dir: u64, name: &[u8], entry: &Entry) -> Result<()> {
        let facts = self.facts.entry(entry.inode_number()).or_default();
        facts.added.push((self.merged.in_image(dir), name.to_vec()));
        if let (Entry::Dir { .. }, Some(new)) = (entry, self.new_dirs.get_mut(&dir)) {
            new.subdirs += 1;
        }
        match entry {
            Entry::Inode(inode) => self.inode_after(inode.clone()),
            _ => Ok(()),
        }
    }

    pub(super) fn end_existing_dir(&mut self) -> Result<()> {
        let Some(ended) = self.dir.take() else { return Ok(()) };
        if self.submission.certificate.form == ProofForm::Log {
            // The operations were executed on the snapshot itself.
            return Ok(());
        }
        let found = ended.pre_image.finish(ended.dir);
        let stated = self.submission.certificate.dirs.get(self.certified);
        self.certified += 1;
        match stated == Some(&found) {
            true => Ok(()),
            false => Err(refused("the certificate does not state the changes of a directory")),
        }
    }

    fn begin_existing_dir(&mut self, dir: u64) -> Result<()> {
        let mut refusal = None;
        if dir != LINKED {
            let key = Key::of_dir(dir);
            if self.submission.snapshot.get(key.as_bytes())?.is_none_or(|value| value.is_empty()) {
                return Err(refused("a directory is neither in the snapshot nor new"));
            }
            self.accesses.check_inside(dir)?;
            let access = self.accesses.of(dir)?;
            refusal = match access {
                DirAccess { exists: false, .. } => Some(ConflictReason::DirectoryRemoved),
                DirAccess { may_change_names: false, .. } => Some(ConflictReason::Denied),
                _ => None,
            };
            // The group that new entries inherit from the directory, in the snapshot or in the
            // current image.
            const SET_GROUP_ID: u32 = 0o2000;
            let before = self.submission.snapshot.dir(dir)?;
            let could_change = before.as_ref().is_some_and(|before| {
                let caller = &self.submission.record.caller;
                caller.owns(before) || caller.may_change_names(before)
            });
            let current = self.submission.current.dir(dir)?;
            let then = before.filter(|_| could_change);
            let now = current.filter(|_| access.may_change_names);
            for inode in then.into_iter().chain(now) {
                if inode.mode & SET_GROUP_ID != 0 {
                    self.inherited_groups.insert(inode.gid);
                }
            }
        }
        self.dirs.push(dir);
        self.dir = Some(ExistingDir { dir, pre_image: PreImage::default(), refusal });
        Ok(())
    }

    fn existing_dir_inode(&mut self, dir: u64, before: Option<Entry>, after: Option<Entry>) -> Result<()> {
        let Some(Entry::Inode(before)) = before else {
            return Err(refused("a directory of the snapshot has no inode"));
        };
        match after {
            Some(Entry::Inode(after)) if after.number == dir => {
                self.inode_after(after)?;
            }
            None => self.facts.entry(dir).or_default().is_removed = true,
            _ => return Err(refused("the value for the inode of a directory is not an inode")),
        }
        self.facts.entry(dir).or_default().before = Some(before);
        Ok(())
    }

    fn linked_entry(
        &mut self,
        name: &[u8],
        key: &[u8],
        value: &[u8],
        before: Option<Entry>,
        after: Option<Entry>,
    ) -> Result<()> {
        let Ok(number) = name.try_into().map(u64::from_be_bytes) else {
            return Err(refused("the number of a linked inode is too short"));
        };
        match after {
            Some(after) if self.numbers.contains(number) => {
                self.new_linked_inode(number, &after)?;
                self.usage.add(&after);
                self.out.add(key, value)?;
            }
            Some(Entry::Inode(after)) if after.number == number => self.inode_after(after)?,
            None if before.is_some() => self.facts.entry(number).or_default().is_removed = true,
            None if self.readable.is_some() => return Err(refused(UNREADABLE)),
            _ => return Err(refused("the value for a linked inode is not an inode")),
        }
        if let Some(Entry::Inode(before)) = before {
            self.facts.entry(number).or_default().before = Some(before);
        }
        Ok(())
    }

    /// Records the state in which the batch leaves an inode of the snapshot.
    fn inode_after(&mut self, inode: Inode) -> Result<()> {
        if self.numbers.contains(inode.number) {
            return Err(refused("a new inode is in the place of one of the snapshot"));
        }
        let facts = self.facts.entry(inode.number).or_default();
        match facts.after.replace(inode) {
            None => Ok(()),
            Some(_) => Err(refused("an inode of the snapshot is stated twice")),
        }
    }

    fn undo_subdir(&mut self, dir: u64, entry: &Entry) {
        if let Entry::Dir { .. } = entry {
            *self.subdirs.entry(dir).or_default() -= 1;
        }
    }
}
