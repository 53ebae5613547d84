//! The values of keys before commits, for the snapshots of earlier states (multi-version
//! concurrency control, section 3.2.1 of the BigStorage report, part 3). They are in memory only:
//! no snapshot outlives the process.

use std::collections::{BTreeMap, VecDeque};
use std::mem::size_of;
use std::ops::Bound;

use quell_kv::Value;
use quell_wire::blob::Version;

use super::changes::Changed;

/// The memory for a value besides its bytes and its key.
const VALUE_BYTES: u64 = (4 * size_of::<Value>() + 64) as u64;

/// The values that commits have replaced, for each key.
#[derive(Default)]
pub(crate) struct History {
    /// For each key, the versions of the commits that changed it, ascending, with the value before.
    keys: BTreeMap<Vec<u8>, VecDeque<(Version, Option<Value>)>>,
    /// The commits in ascending order, with the keys that they changed and the memory for the
    /// values of these keys.
    commits: VecDeque<(Version, Vec<Vec<u8>>, u64)>,
    bytes: u64,
}

impl History {
    /// Adds the values before a commit, whose version is larger than the versions of all earlier
    /// commits.
    pub(crate) fn add(&mut self, version: Version, before: Vec<(Vec<u8>, Option<Value>)>) {
        let mut keys = Vec::with_capacity(before.len());
        let mut bytes = 0;
        for (key, value) in before {
            bytes += 2 * key.len() as u64 + value.as_ref().map_or(0, |v| v.len() as u64) + VALUE_BYTES;
            self.keys.entry(key.clone()).or_default().push_back((version, value));
            keys.push(key);
        }
        self.bytes += bytes;
        self.commits.push_back((version, keys, bytes));
    }

    /// Returns the value that a key had in a state, if a later commit has changed it.
    pub(crate) fn before(&self, key: &[u8], state: Version) -> Option<&Option<Value>> {
        let versions = self.keys.get(key)?;
        let later = versions.partition_point(|(version, _)| *version <= state);
        versions.get(later).map(|(_, value)| value)
    }

    /// Returns the keys from `start` up to `end`, exclusive, that commits after a state have
    /// changed, with their values in that state.
    pub(crate) fn changed_after(&self, start: &[u8], end: &[u8], state: Version) -> Changed {
        let mut changed = Changed::new();
        if start < end {
            for (key, versions) in self.keys.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)))
            {
                let later = versions.partition_point(|(version, _)| *version <= state);
                if let Some((_, value)) = versions.get(later) {
                    changed.insert(key.clone(), value.clone());
                }
            }
        }
        changed
    }

    /// Forgets the values before the oldest commit, and returns its version.
    fn forget_oldest(&mut self) -> Option<Version> {
        let (version, keys, bytes) = self.commits.pop_front()?;
        self.bytes -= bytes;
        for key in keys {
            if let Some(versions) = self.keys.get_mut(&key) {
                versions.pop_front();
                if versions.is_empty() {
                    self.keys.remove(&key);
                }
            }
        }
        Some(version)
    }

    /// Forgets the values before the last commit, if its version is `version`.
    pub(crate) fn forget_last(&mut self, version: Version) {
        if self.commits.back().is_none_or(|(last, ..)| *last != version) {
            return;
        }
        let Some((_, keys, bytes)) = self.commits.pop_back() else { return };
        self.bytes -= bytes;
        for key in keys {
            if let Some(versions) = self.keys.get_mut(&key) {
                versions.pop_back();
                if versions.is_empty() {
                    self.keys.remove(&key);
                }
            }
        }
    }

    /// Forgets the values before commits up to `version`. No snapshot of an earlier state may
    /// exist.
    pub(crate) fn forget_up_to(&mut self, version: Version) {
        while self.commits.front().is_some_and(|(oldest, ..)| *oldest <= version) {
            self.forget_oldest();
        }
    }

    /// Forgets the oldest values until the rest needs at most `bytes_max`. Returns the version of
    /// the last commit whose values are forgotten: snapshots of earlier states cannot be read.
    pub(crate) fn shrink(&mut self, bytes_max: u64) -> Option<Version> {
        let mut forgotten = None;
        while self.bytes > bytes_max {
            forgotten = self.forget_oldest().or(forgotten);
        }
        forgotten
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether no values are kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }
}
