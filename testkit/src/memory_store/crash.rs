//! Syncs, which make changes durable, and failures: of a sync, of a writeback, of power.

use std::collections::HashMap;

use super::inode::{Content, Number, ROOT};
use super::journal::{CHANGES_MAX, NameChange, closure};
use super::state::State;
use super::unsynced::{ByteChange, Survivors};
use crate::random::Random;

/// The data of a file after its writeback has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writeback {
    /// Zeros or the previous data: the pages were dropped.
    Dropped,
    /// The written data, while the pages stay in memory: see [`super::MemoryStore::evict`].
    Kept,
}

impl State {
    fn make_durable(&mut self, happened: impl FnMut(&NameChange) -> bool) {
        let kept = closure(&self.changes, happened);
        let mut kept = kept.into_iter();
        self.changes.retain(|_| !kept.next().expect("one answer for each"));
    }

    pub(super) fn keep_changes_bounded(&mut self) {
        if self.changes.len() > CHANGES_MAX {
            self.changes.drain(..CHANGES_MAX / 2);
        }
    }

    pub(super) fn sync_dir(&mut self, dir: Number) {
        self.make_durable(|change| change.is_synced_by(dir));
        let named: Vec<Number> = self.names(dir).values().copied().collect();
        for number in named.into_iter().chain([dir]) {
            let inode = self.inode_mut(number);
            inode.synced_attributes = inode.attributes;
        }
    }

    pub(super) fn sync_file(&mut self, number: Number) {
        let mut random = self.random.clone();
        let Content::File { synced, unsynced, .. } = &mut self.inode_mut(number).content else {
            unreachable!("an open file is a file")
        };
        for change in unsynced.drain(..) {
            if !change.doubtful || random.one_in(2) {
                change.apply(synced);
            }
        }
        self.random = random;
        if self.rules.file_sync_keeps_name {
            self.make_durable(|change| change.slots.iter().any(|slot| slot.after == Some(number)));
        }
    }

    pub(super) fn sync_failed(&mut self, number: Number) {
        if let Content::File { unsynced, .. } = &mut self.inode_mut(number).content {
            unsynced.iter_mut().for_each(|change| change.doubtful = true);
        }
    }

    /// Simulates a failed writeback for the files whose paths `is_hit` selects. Returns their
    /// number.
    pub(super) fn fail_writeback(
        &mut self,
        seed: u64,
        after: Writeback,
        is_hit: &dyn Fn(&[u8]) -> bool,
    ) -> usize {
        let (loses_all, mut random) = (seed.is_multiple_of(8), Random::new(seed));
        let mut numbers: Vec<Number> = self.inodes.keys().copied().collect();
        numbers.sort_unstable();
        let mut hit = 0;
        for number in numbers {
            let (dir, name) = self.inode(number).parent_and_name.clone();
            if !is_hit(&self.path(dir, &name)) {
                continue;
            }
            let inode = self.inode_mut(number);
            let Content::File { bytes, synced, unsynced } = &mut inode.content else { continue };
            if unsynced.is_empty() {
                continue;
            }
            for change in unsynced.drain(..) {
                match &change.what {
                    ByteChange::Write { offset, bytes } if loses_all || !random.one_in(4) => {
                        // The size is part of the inode, which was written; the blocks were not.
                        synced.set_size(synced.size_bytes().max(offset + bytes.len() as u64));
                    }
                    _ => change.apply(synced),
                }
            }
            if after == Writeback::Dropped {
                *bytes = synced.clone();
            }
            inode.writeback_errors += 1;
            inode.is_reported = false;
            hit += 1;
        }
        self.count_used();
        hit
    }

    /// Drops pages that count as written but exist only in memory: files are read from storage
    /// again.
    pub(super) fn evict(&mut self) {
        for inode in self.inodes.values_mut() {
            if let Content::File { bytes, synced, unsynced } = &mut inode.content {
                *bytes = synced.clone();
                unsynced.iter().for_each(|change| change.apply(bytes));
            }
        }
        self.count_used();
    }

    pub(super) fn crashed(&self, seed: u64) -> State {
        let (survivors, mut random) = (Survivors::from_seed(seed), Random::new(seed));
        let mut state = self.without_handles();
        let changes = std::mem::take(&mut state.changes);
        let kept = closure(&changes, |_| survivors.includes(&mut random));
        // A lost change is the last one of its names, so changes are undone from the end.
        for (change, _) in changes.iter().zip(&kept).rev().filter(|(_, kept)| !**kept) {
            for slot in &change.slots {
                state.put(slot.dir, &slot.name, None);
            }
            for slot in &change.slots {
                state.put(slot.dir, &slot.name, slot.before);
            }
        }
        state.keep_reachable();
        let mut numbers: Vec<Number> = state.inodes.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            let inode = state.inode_mut(number);
            if !survivors.includes(&mut random) {
                inode.attributes = inode.synced_attributes;
            }
            (inode.writeback_errors, inode.is_reported) = (0, false);
            inode.synced_attributes = inode.attributes;
            if let Content::File { bytes, synced, unsynced } = &mut inode.content {
                for change in unsynced.drain(..) {
                    change.apply_some(synced, survivors, &mut random);
                }
                *bytes = synced.clone();
            }
        }
        state.count_used();
        state
    }

    /// Removes all inodes without a path, and sets the parent and name of the others.
    fn keep_reachable(&mut self) {
        let mut parents = HashMap::from([(ROOT, (ROOT, Vec::new()))]);
        let mut next = vec![ROOT];
        while let Some(dir) = next.pop() {
            if let Content::Dir(names) = &self.inode(dir).content {
                for (name, number) in names {
                    let twice = parents.insert(*number, (dir, name.clone()));
                    let may_be_twice = self.inode(*number).was_linked;
                    assert!(twice.is_none() || may_be_twice, "an inode has two names after a power failure");
                    next.push(*number);
                }
            }
        }
        self.inodes.retain(|number, _| parents.contains_key(number));
        for (number, parent_and_name) in parents {
            let inode = self.inode_mut(number);
            (inode.parent_and_name, inode.named) = (parent_and_name, true);
        }
    }
}
