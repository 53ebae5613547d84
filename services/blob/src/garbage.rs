//! Removes data that the latest state does not need, when no snapshot needs it either.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use quell_kv::{Batch, KeyValue};
use quell_threads::{lock, try_lock};
use quell_vfs::Result;
use quell_wire::blob::Version;

use crate::apply::is_stale_entry;
use crate::content::{NewExtent, remove_deleted};
use crate::epoch::first_of;
use crate::extents::{ExtentId, Extents};
use crate::keys::{self, ContentId};
use crate::tables::{Changed, Changes, Latest, Tables, batch_of, visit_prefix};

/// The number of entries or extents that one step removes.
pub(crate) const REMOVED_IN_A_STEP: usize = 2048;
/// The number of extents and contents that must wait before a step removes some of them.
const REMOVED_TOGETHER: usize = 64;

/// The unneeded data of a store.
pub(crate) struct Garbage {
    tables: Arc<dyn KeyValue>,
    extents: Arc<dyn Extents>,
    waiting: Mutex<Waiting>,
    /// Held by the thread that removes data.
    removal: Mutex<()>,
}

/// Unneeded data, with the version of the first state that does not need it.
#[derive(Default)]
struct Waiting {
    extents: VecDeque<(Version, ExtentId, u64)>,
    /// The sum of the lengths of these extents.
    extent_bytes: u64,
    contents: VecDeque<(Version, ContentId)>,
    /// The names of blobs with content that a truncation has left.
    truncated: VecDeque<Vec<u8>>,
}

impl Garbage {
    /// Finds the unneeded data that an earlier process has left in a store. `opened` is the version
    /// of the first state of this process.
    pub(crate) fn find(
        tables: Arc<dyn KeyValue>,
        extents: Arc<dyn Extents>,
        opened: Version,
    ) -> Result<Garbage> {
        let mut waiting = Waiting::default();
        let latest = Latest(&*tables);
        visit_prefix(&latest, &keys::deleted_contents(), &mut |key, _| {
            waiting.contents.push_back((opened, keys::deleted_content_of(key)?));
            Ok(())
        })?;
        visit_prefix(&latest, &keys::unused_extents(), &mut |key, value| {
            waiting.add_extent(opened, keys::extent_of(key)?, keys::decode(value)?);
            Ok(())
        })?;
        Ok(Garbage { tables, extents, waiting: Mutex::new(waiting), removal: Mutex::new(()) })
    }

    /// Records the data that is not needed any more after a commit.
    pub(crate) fn note(&self, version: Version, changed: &Changed) {
        let mut waiting = lock(&self.waiting);
        for (key, value) in changed.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
            if key.starts_with(&keys::unused_extents()) {
                if let (Ok(id), Ok(length)) = (keys::extent_of(key), keys::decode(value)) {
                    waiting.add_extent(version, id, length);
                }
            } else if key.starts_with(&keys::deleted_contents()) {
                if let Ok(id) = keys::deleted_content_of(key) {
                    waiting.contents.push_back((version, id));
                }
            } else if let Ok(name) = keys::name_of(key)
                && is_stale_entry(value)
                && !waiting.truncated.iter().any(|other| other == name)
            {
                waiting.truncated.push_back(name.to_vec());
            }
        }
    }

    /// Adds an extent to which no commit refers or will refer. If the store is opened again before
    /// the extent is removed, the opening removes it.
    pub(crate) fn add_uncommitted(&self, extent: NewExtent) {
        let mut waiting = lock(&self.waiting);
        // No state needs the extent, so it can be removed first.
        waiting.extents.push_front((Version(0), extent.id, extent.length_bytes));
        waiting.extent_bytes += extent.length_bytes;
    }

    /// If the extents that are kept for states from `oldest` on have more than `bytes_max` bytes,
    /// returns the first state for which they would have only about half of `bytes_max`.
    pub(crate) fn excess(&self, oldest: Version, bytes_max: u64) -> Option<Version> {
        let waiting = lock(&self.waiting);
        if waiting.extent_bytes <= bytes_max {
            return None;
        }
        let (mut kept_bytes, mut half) = (0, None);
        for (version, _, length) in waiting.extents.iter().rev().filter(|(version, ..)| *version > oldest) {
            kept_bytes += length;
            if half.is_none() && kept_bytes > bytes_max / 2 {
                half = Some(*version);
            }
        }
        half.filter(|_| kept_bytes > bytes_max)
    }

    /// Returns the number and the size in bytes of the extents that the latest state does not need.
    pub(crate) fn unused_extents(&self) -> (u64, u64) {
        let waiting = lock(&self.waiting);
        (waiting.extents.len() as u64, waiting.extent_bytes)
    }

    /// Returns the names of blobs with content that a truncation has left, and removes them from
    /// the list.
    pub(crate) fn take_truncated(&self) -> VecDeque<Vec<u8>> {
        std::mem::take(&mut lock(&self.waiting).truncated)
    }

    /// Returns whether there is enough data that a step is worth its commit: many entries, or at
    /// least `extent_bytes` of extents.
    pub(crate) fn is_worth_a_step(&self, extent_bytes: u64) -> bool {
        let waiting = lock(&self.waiting);
        waiting.extent_bytes >= extent_bytes.max(1)
            || waiting.extents.len() + waiting.contents.len() + waiting.truncated.len() >= REMOVED_TOGETHER
    }

    /// Removes at most about `limit` entries and extents that no state from `oldest` on needs,
    /// unless another thread is removing data.
    pub(crate) fn try_remove(&self, oldest: Version, limit: usize) -> Result<()> {
        match try_lock(&self.removal) {
            Some(_removal) => self.remove_step(oldest, limit),
            None => Ok(()),
        }
    }

    /// Removes all data that no state from `oldest` on needs.
    pub(crate) fn remove(&self, oldest: Version) -> Result<()> {
        let _removal = lock(&self.removal);
        self.remove_step(oldest, usize::MAX)
    }

    fn remove_step(&self, oldest: Version, limit: usize) -> Result<()> {
        let mut left = limit;
        while left > 0 {
            let Some((version, id)) = lock(&self.waiting).next_content(oldest) else { break };
            let step = left.min(REMOVED_IN_A_STEP);
            let removed = self.remove_content(version, id, step);
            if !matches!(removed, Ok(true)) {
                lock(&self.waiting).contents.push_front((version, id));
            }
            removed?;
            left -= step;
        }
        while left > 0 {
            let step = left.min(REMOVED_IN_A_STEP);
            if self.remove_extents(oldest, step)? < step {
                break;
            }
            left -= step;
        }
        Ok(())
    }

    /// Removes at most `step` entries of a content, and returns whether all are removed.
    fn remove_content(&self, version: Version, id: ContentId, step: usize) -> Result<bool> {
        let latest = Latest(&*self.tables);
        let mut changes = Changes::new(&latest);
        let is_removed = remove_deleted(&mut changes, id, step)?;
        let changed = changes.into_changed();
        self.tables.commit(batch_of(&changed))?;
        self.note(version, &changed);
        Ok(is_removed)
    }

    /// Removes at most `limit` extents, and returns their number.
    fn remove_extents(&self, oldest: Version, limit: usize) -> Result<usize> {
        let mut removed = Vec::new();
        while removed.len() < limit {
            let Some(next) = lock(&self.waiting).next_extent(oldest) else { break };
            removed.push(next);
        }
        let extents: Vec<_> = removed.iter().map(|(_, id, length)| (*id, *length)).collect();
        if let Err(error) = self.extents.remove_all(&extents) {
            let mut waiting = lock(&self.waiting);
            removed.into_iter().for_each(|(version, id, length)| waiting.add_extent(version, id, length));
            return Err(error);
        }
        let mut batch = Batch::new();
        extents.iter().for_each(|(id, _)| batch.delete(&keys::unused_extent(*id)));
        // If the commit fails, the next opening tries to remove the extents again, although they no
        // longer exist.
        self.tables.commit(batch)?;
        Ok(extents.len())
    }
}

impl Waiting {
    fn add_extent(&mut self, version: Version, id: ExtentId, length_bytes: u64) {
        self.extents.push_back((version, id, length_bytes));
        self.extent_bytes += length_bytes;
    }

    fn next_content(&mut self, oldest: Version) -> Option<(Version, ContentId)> {
        self.contents.front().filter(|(version, _)| *version <= oldest)?;
        self.contents.pop_front()
    }

    fn next_extent(&mut self, oldest: Version) -> Option<(Version, ExtentId, u64)> {
        self.extents.front().filter(|(version, ..)| *version <= oldest)?;
        let next = self.extents.pop_front()?;
        self.extent_bytes -= next.2;
        Some(next)
    }
}

/// Removes the extents of some epochs to which no commit refers, because their process ended before
/// the commit. Returns their number. No process that can still commit may use the epochs for new
/// extents. Extents of later epochs are not removed: another process, which has opened the store
/// meanwhile, may have committed them.
pub(crate) fn remove_uncommitted(
    tables: &dyn Tables,
    extents: &dyn Extents,
    epochs: Range<u64>,
) -> Result<usize> {
    let end = ExtentId(first_of(epochs.end));
    let mut found = Vec::new();
    extents.list(ExtentId(first_of(epochs.start)), &mut |id| {
        if id < end {
            found.push(id);
        }
    })?;
    let mut removed = 0;
    for id in found {
        // A commit turns an extent in use into an unused extent, and never the reverse, so this
        // order of the look-ups finds every extent that a commit knows.
        let is_used = tables.get(&keys::extent(id))?.is_some();
        if !is_used && tables.get(&keys::unused_extent(id))?.is_none() {
            extents.remove(id)?;
            removed += 1;
        }
    }
    Ok(removed)
}
