//! The access of the caller to the directories of the image.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use quell_vfs::Result;

use super::refusal::refused;
use crate::batch::BatchRecord;
use crate::entry::{DEPTH_MAX, ROOT};
use crate::table_set::TableSet;

/// The access of the caller to one directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DirAccess {
    /// Whether the directory still exists.
    pub(super) exists: bool,
    /// Whether the caller may look names up in it.
    pub(super) is_searchable: bool,
    /// Whether the caller may create and remove names in it.
    pub(super) may_change_names: bool,
}

/// The accesses that were computed so far. The owner of a directory has access even if the mode
/// denies it, unless others have changed the mode since the snapshot: the batch may have changed
/// the mode for a time.
pub(super) struct Accesses<'a> {
    record: &'a BatchRecord,
    snapshot: &'a TableSet,
    current: TableSet,
    /// The inode numbers of earlier parts of the batch.
    earlier: &'a [Range<u64>],
    known: RefCell<HashMap<u64, DirAccess>>,
    /// Whether a directory was in the subtree of the batch when it began.
    inside: RefCell<HashMap<u64, bool>>,
}

impl<'a> Accesses<'a> {
    pub(super) fn new(
        record: &'a BatchRecord,
        snapshot: &'a TableSet,
        current: TableSet,
        earlier: &'a [Range<u64>],
    ) -> Accesses<'a> {
        let (known, inside) = (RefCell::default(), RefCell::default());
        Accesses { record, snapshot, current, earlier, known, inside }
    }

    /// Returns the access to a directory of the current image.
    pub(super) fn of(&self, dir: u64) -> Result<DirAccess> {
        let mut chain = Vec::new();
        let mut at = dir;
        let mut access = loop {
            if let Some(known) = self.known.borrow().get(&at) {
                break *known;
            }
            let Some(inode) = self.current.dir(at)? else {
                self.known.borrow_mut().insert(at, DirAccess::default());
                break DirAccess::default();
            };
            let above = inode.above()?;
            chain.push((at, inode));
            if at == ROOT {
                break DirAccess { exists: true, is_searchable: true, may_change_names: true };
            }
            if chain.len() > DEPTH_MAX {
                return Err(crate::entry::damaged("the path of a directory"));
            }
            at = above;
        };
        let caller = &self.record.caller;
        for (number, inode) in chain.into_iter().rev() {
            let before = self.snapshot.dir(number)?;
            // Other processes see a directory of an earlier part only after the commit.
            let is_unchanged = self.earlier.iter().any(|numbers| numbers.contains(&number))
                || before.is_some_and(|before| before.mode == inode.mode);
            let could_change_mode = caller.uid == inode.uid && is_unchanged;
            let is_searchable =
                access.exists && access.is_searchable && (caller.may_search(&inode) || could_change_mode);
            let may_change_names = is_searchable && (caller.may_change_names(&inode) || could_change_mode);
            access = DirAccess { exists: true, is_searchable, may_change_names };
            self.known.borrow_mut().insert(number, access);
        }
        Ok(access)
    }

    /// Checks that a directory of the snapshot was in the subtree of the batch when it began.
    pub(super) fn check_inside(&self, dir: u64) -> Result<()> {
        let mut path = Vec::new();
        let mut at = dir;
        let is_inside = loop {
            if at == self.record.subtree {
                break true;
            }
            if let Some(known) = self.inside.borrow().get(&at) {
                break *known;
            }
            path.push(at);
            match self.snapshot.dir(at)? {
                Some(inode) if at != ROOT && path.len() <= DEPTH_MAX => at = inode.above()?,
                _ => break false,
            }
        };
        self.inside.borrow_mut().extend(path.into_iter().map(|dir| (dir, is_inside)));
        match is_inside {
            true => Ok(()),
            false => Err(refused("a directory is outside of the subtree of the batch")),
        }
    }

    /// Returns the directories of the current image that were read.
    pub(super) fn read_dirs(&self) -> Vec<u64> {
        self.known.borrow().keys().copied().collect()
    }
}
