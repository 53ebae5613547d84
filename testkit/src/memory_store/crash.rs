//! The changes that are not durable yet, how a sync makes them durable, and what a power failure
//! leaves of them.

use std::collections::{HashMap, HashSet};

use super::state::{Content, Number, ROOT, State};
use crate::random::Random;
use crate::sparse::{BLOCK_BYTES, SparseBytes};

/// The number of bytes of a file that may be unsynced.
const UNSYNCED_BYTES_MAX: usize = 64 << 20;
/// The number of changes of names that may be unsynced.
const CHANGES_MAX: usize = 10_000;

/// A change of a file's data that no sync has made durable.
#[derive(Debug, Clone)]
pub(super) struct Unsynced {
    what: ByteChange,
    /// A sync that was to write it has failed.
    doubtful: bool,
}

#[derive(Debug, Clone)]
enum ByteChange {
    Write { offset: u64, bytes: Vec<u8> },
    Size(u64),
}

impl Unsynced {
    pub(super) fn write(offset: u64, bytes: &[u8]) -> Unsynced {
        Unsynced { what: ByteChange::Write { offset, bytes: bytes.to_vec() }, doubtful: false }
    }

    pub(super) fn size(size_bytes: u64) -> Unsynced {
        Unsynced { what: ByteChange::Size(size_bytes), doubtful: false }
    }

    pub(super) fn apply(&self, to: &mut SparseBytes) {
        match &self.what {
            ByteChange::Write { offset, bytes } => to.write_at(bytes, *offset),
            ByteChange::Size(size_bytes) => to.set_size(*size_bytes),
        }
    }

    fn count(&self) -> usize {
        match &self.what {
            ByteChange::Write { bytes, .. } => bytes.len(),
            ByteChange::Size(_) => 0,
        }
    }

    pub(super) fn keep_bounded(unsynced: &mut Vec<Unsynced>, synced: &mut SparseBytes) {
        // The sum is calculated only once per 1,024 writes, or after a write of at least 1 MiB.
        if !unsynced.len().is_multiple_of(1024) && unsynced.last().is_none_or(|u| u.count() < 1 << 20) {
            return;
        }
        let mut waiting: usize = unsynced.iter().map(Unsynced::count).sum();
        let mut written = 0;
        while waiting > UNSYNCED_BYTES_MAX && written < unsynced.len() {
            unsynced[written].apply(synced);
            waiting -= unsynced[written].count();
            written += 1;
        }
        unsynced.drain(..written);
    }

    /// Applies the part of the change that a power failure leaves.
    fn apply_some(&self, to: &mut SparseBytes, mood: Mood, random: &mut Random) {
        let (offset, bytes) = match &self.what {
            ByteChange::Size(size_bytes) => {
                return if mood.arrives(random) {
                    to.set_size(*size_bytes)
                };
            }
            ByteChange::Write { offset, bytes } => (*offset, bytes),
        };
        if mood == Mood::All || mood == Mood::Nothing {
            return if mood == Mood::All {
                to.write_at(bytes, offset)
            };
        }
        let end = offset + bytes.len() as u64;
        match random.below(8) {
            0 | 1 => {}
            2 | 3 => to.write_at(bytes, offset),
            4 => to.write_at(&bytes[..random.below(bytes.len() + 1)], offset),
            5 => {
                let cut = random.below(bytes.len() + 1);
                if to.size_bytes() < offset + cut as u64 {
                    to.set_size(offset + cut as u64);
                }
                to.write_at(&bytes[cut..], offset + cut as u64);
            }
            6 => {
                // Blocks are written independently; the size is written last.
                let mut at = offset;
                while at < end {
                    let next = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES).min(end);
                    if random.one_in(2) {
                        to.write_at(&bytes[(at - offset) as usize..(next - offset) as usize], at);
                    }
                    at = next;
                }
            }
            _ => to.set_size(to.size_bytes().max(end)),
        }
    }
}

/// The data of a file after its writeback has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writeback {
    /// Zeros or the previous data: the pages were dropped.
    Dropped,
    /// The written data, while the pages stay in memory: see [`super::MemoryStore::evict`].
    Kept,
}

/// How many of the unsynced changes survive a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Nothing,
    All,
    /// On average, this many of four.
    Some(usize),
}

impl Mood {
    fn of(seed: u64) -> Mood {
        match seed % 8 {
            0 => Mood::Nothing,
            1 => Mood::All,
            2 => Mood::Some(1),
            3 => Mood::Some(3),
            _ => Mood::Some(2),
        }
    }

    fn arrives(self, random: &mut Random) -> bool {
        match self {
            Mood::Nothing => false,
            Mood::All => true,
            Mood::Some(of_four) => random.below(4) < of_four,
        }
    }
}

/// A change of one name: its inode before and after.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) dir: Number,
    pub(super) name: Vec<u8>,
    pub(super) before: Option<Number>,
    pub(super) after: Option<Number>,
}

/// A journal entry of a directory: either all slots change or none.
#[derive(Debug, Clone, Default)]
pub(super) struct NameChange {
    pub(super) slots: Vec<Slot>,
    /// A removed directory, which had lost its names before.
    pub(super) emptied: Option<Number>,
    /// If this change has happened, all earlier ones have too.
    pub(super) after_all: bool,
}

impl NameChange {
    /// Returns whether a sync of directory `dir` makes the change durable.
    fn synced_by(&self, dir: Number) -> bool {
        match self.slots.as_slice() {
            [only] => only.dir == dir,
            both => both.iter().any(|slot| slot.dir == dir && slot.after.is_some()),
        }
    }
}

/// Returns which changes have happened, given those that `happened` selects: these, and all earlier
/// changes that they depend on.
fn closure(changes: &[NameChange], mut happened: impl FnMut(&NameChange) -> bool) -> Vec<bool> {
    let mut names: HashSet<(Number, &[u8])> = HashSet::new();
    let (mut emptied, mut all) = (HashSet::new(), false);
    let mut kept = vec![false; changes.len()];
    for (i, change) in changes.iter().enumerate().rev() {
        let needed = |slot: &Slot| emptied.contains(&slot.dir) || names.contains(&(slot.dir, &*slot.name));
        // Called for every change, so that each random choice is independent of the others.
        let happened = happened(change);
        if happened || all || change.slots.iter().any(needed) {
            kept[i] = true;
            all |= change.after_all;
            emptied.extend(change.emptied);
            names.extend(change.slots.iter().map(|slot| (slot.dir, &*slot.name)));
        }
    }
    kept
}

impl State {
    fn settle(&mut self, happened: impl FnMut(&NameChange) -> bool) {
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
        self.settle(|change| change.synced_by(dir));
        let named: Vec<Number> = self.names(dir).values().copied().collect();
        for number in named.into_iter().chain([dir]) {
            let inode = self.inode_mut(number);
            inode.synced_dress = inode.dress;
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
            self.settle(|change| change.slots.iter().any(|slot| slot.after == Some(number)));
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
            let (dir, name) = self.inode(number).place.clone();
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
        let (mood, mut random) = (Mood::of(seed), Random::new(seed));
        let mut state = self.without_handles();
        let changes = std::mem::take(&mut state.changes);
        let kept = closure(&changes, |_| mood.arrives(&mut random));
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
            if !mood.arrives(&mut random) {
                inode.dress = inode.synced_dress;
            }
            (inode.writeback_errors, inode.is_reported) = (0, false);
            inode.synced_dress = inode.dress;
            if let Content::File { bytes, synced, unsynced } = &mut inode.content {
                for change in unsynced.drain(..) {
                    change.apply_some(synced, mood, &mut random);
                }
                *bytes = synced.clone();
            }
        }
        state.count_used();
        state
    }

    /// Removes all inodes without a path, and sets the place of the others.
    fn keep_reachable(&mut self) {
        let mut places = HashMap::from([(ROOT, (ROOT, Vec::new()))]);
        let mut next = vec![ROOT];
        while let Some(dir) = next.pop() {
            if let Content::Dir(names) = &self.inode(dir).content {
                for (name, number) in names {
                    let twice = places.insert(*number, (dir, name.clone()));
                    assert!(twice.is_none(), "an inode has two names after a loss of power");
                    next.push(*number);
                }
            }
        }
        self.inodes.retain(|number, _| places.contains_key(number));
        for (number, place) in places {
            let inode = self.inode_mut(number);
            (inode.place, inode.named) = (place, true);
        }
    }
}
