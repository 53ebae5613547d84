//! Decides whether a new directory is merged with a directory of an earlier part, and adds the
//! entries of merged directories.

use quell_vfs::{Kind, Result};

use super::pass::Pass;
use crate::batch::ConflictReason;
use crate::entry::{Content, Entry, Inode};
use crate::key::Key;

impl Pass<'_> {
    /// Merges a new directory, which has its name in the directory `above` of this part or of the
    /// snapshot, with the entry that the current image has at this name. Returns false if they
    /// remain two entries.
    pub(super) fn merge_dirs(&mut self, above: u64, entry: &Entry, found: Option<&Entry>) -> Result<bool> {
        let (&Entry::Dir { inode: source }, Some(&Entry::Dir { inode: target })) = (entry, found) else {
            return Ok(false);
        };
        // The entries of the directory must not have been read yet.
        if !self.is_of_earlier_part(target) || source <= above {
            return Ok(false);
        }
        let (Some(Entry::Inode(new)), Some(old)) =
            (self.submitted(&Key::of_dir(source))?, self.submission.current.dir(target)?)
        else {
            return Ok(false);
        };
        let attributes = |inode: &Inode| (inode.mode, inode.uid, inode.gid);
        let are_equal = attributes(&new) == attributes(&old) && new.xattrs == old.xattrs;
        if !are_equal || new.kind()? != Kind::Dir {
            return Ok(false);
        }
        self.merged.insert(source, target);
        let (modified, changed) = (old.modified.max(new.modified), old.changed.max(new.changed));
        let inode = Inode { modified, changed, ..old };
        self.patch.insert(Key::of_dir(target), Some(Entry::Inode(inode)));
        Ok(true)
    }

    /// Adds a new entry of the directory `dir`, which is merged with `target`.
    pub(super) fn merged_entry(&mut self, dir: u64, target: u64, name: &[u8], entry: Entry) -> Result<()> {
        let key = Key::of_name(target, name);
        let found = self.submission.current.entry(&key)?;
        if self.merge_dirs(dir, &entry, found.as_ref())? {
            return Ok(());
        }
        self.entries += 1;
        if found.is_some() {
            return self.keep_as_other_name(target, name, entry, ConflictReason::Exists);
        }
        if let Entry::Dir { inode } = entry {
            *self.subdirs.entry(target).or_default() += 1;
            // The inode of the subdirectory was read before, and states the directory of this part
            // as parent.
            if inode < dir {
                let moved = self.dir_inode(inode)?;
                let content = Content::Parent { dir: target, name: name.to_vec() };
                self.patch.insert(Key::of_dir(inode), Some(Entry::Inode(Inode { content, ..moved })));
            }
        }
        self.usage.add(&entry);
        self.merged.add(&key, &entry)
    }

    /// Returns whether an inode was created by an earlier part of the batch.
    fn is_of_earlier_part(&self, number: u64) -> bool {
        self.submission.earlier.iter().any(|numbers| numbers.contains(&number))
    }
}
