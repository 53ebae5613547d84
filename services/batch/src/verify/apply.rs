//! The entries of the image after the changes of one inode of the snapshot.

use quell_vfs::Result;

use super::pass::Pass;
use super::refusal::refused;
use super::state::{Current, Facts, Name, RemovedName};
use crate::entry::{Content, Entry, Inode, damaged};
use crate::key::Key;

impl Pass<'_> {
    /// Applies the changes of a file, whose inode is merged already. If its changes of names are
    /// refused, they are left out.
    pub(super) fn apply_file(
        &mut self,
        number: u64,
        facts: Facts,
        current: Current,
        mut inode: Inode,
        is_refused: bool,
    ) -> Result<()> {
        let Facts { mut removed, mut added, .. } = facts;
        if is_refused {
            (removed, added) = (Vec::new(), Vec::new());
        }
        let links = u64::from(current.inode.links) + added.len() as u64;
        let links = links.checked_sub(removed.len() as u64).and_then(|links| u32::try_from(links).ok());
        inode.links = links.ok_or_else(|| refused("a file has a wrong number of names"))?;
        let link = Entry::Link { inode: number, type_bits: inode.kind()?.mode_bits() };
        for (dir, name) in &added {
            self.patch.insert(Key::of_name(*dir, name), Some(link.clone()));
        }
        for RemovedName { dir, name, is_replaced } in &removed {
            if !is_replaced {
                self.patch.insert(Key::of_name(*dir, name), None);
            }
        }
        let is_removed =
            |(dir, name): &Name| removed.iter().any(|removed| (removed.dir, &removed.name) == (*dir, name));
        let is_gone = match &current.embedded_at {
            Some(place) => added.is_empty() && is_removed(place),
            None => inode.links == 0,
        };
        if !is_gone && !current.is_whole {
            let whole = self.whole(number, current.embedded_at.as_ref())?;
            (inode.content, inode.xattrs) = (whole.content, whole.xattrs);
        }
        match current.embedded_at {
            Some(place) if added.is_empty() && is_removed(&place) => {}
            Some((dir, name)) if added.is_empty() => {
                self.patch.insert(Key::of_name(dir, &name), Some(Entry::Inode(inode)));
            }
            Some(place) => {
                if !is_removed(&place) {
                    self.patch.insert(Key::of_name(place.0, &place.1), Some(link));
                }
                self.patch.insert(Key::of_linked(number), Some(Entry::Inode(inode)));
            }
            None => {
                let rest = (inode.links > 0).then_some(Entry::Inode(inode));
                self.patch.insert(Key::of_linked(number), rest);
            }
        }
        Ok(())
    }

    /// Returns an inode of a file of the current image.
    fn whole(&self, number: u64, embedded_at: Option<&Name>) -> Result<Inode> {
        let key = match embedded_at {
            Some((dir, name)) => Key::of_name(*dir, name),
            None => Key::of_linked(number),
        };
        match self.submission.current.entry(&key)? {
            Some(Entry::Inode(inode)) => Ok(inode),
            _ => Err(damaged("a name")),
        }
    }

    /// Applies the changes of a directory.
    pub(super) fn apply_dir(
        &mut self,
        number: u64,
        facts: Facts,
        mut inode: Inode,
        is_refused: bool,
    ) -> Result<()> {
        let key = Key::of_dir(number);
        let [removed] = &facts.removed[..] else {
            self.patch.insert(key, Some(Entry::Inode(inode)));
            return Ok(());
        };
        if is_refused {
            self.uncount_refused(&facts);
            if !facts.is_removed {
                self.patch.insert(key, Some(Entry::Inode(inode)));
            }
            return Ok(());
        }
        let from = (removed.dir, removed.name.clone());
        if !removed.is_replaced {
            self.patch.insert(Key::of_name(from.0, &from.1), None);
        }
        *self.subdirs.entry(from.0).or_default() -= 1;
        let Some((dir, name)) = facts.added.first().cloned() else {
            self.patch.insert(key, None);
            return Ok(());
        };
        inode.content = Content::Parent { dir, name: name.clone() };
        self.patch.insert(key, Some(Entry::Inode(inode)));
        self.patch.insert(Key::of_name(dir, &name), Some(Entry::Dir { inode: number }));
        // The links of a new directory count the directory already.
        if !self.numbers.contains(dir) {
            *self.subdirs.entry(dir).or_default() += 1;
        }
        Ok(())
    }

    /// Corrects the links of a new directory if the move of a directory of the snapshot into it is
    /// refused.
    pub(super) fn uncount_refused(&mut self, facts: &Facts) {
        if let Some((dir, _)) = facts.added.first().filter(|(dir, _)| self.numbers.contains(*dir)) {
            *self.subdirs.entry(*dir).or_default() -= 1;
        }
    }
}
