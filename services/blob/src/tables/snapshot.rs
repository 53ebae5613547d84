//! The tables in the state after an earlier commit.

use std::ops::Bound;

use quell_kv::{KeyRange, KeyValue, Value};
use quell_vfs::Result;
use quell_wire::blob::Version;

use super::Tables;
use super::changes::Merge;
use crate::versions::Versions;

/// The number of entries that are read at a time, before the entries that a later commit has
/// changed are replaced.
const ENTRIES_AT_ONCE: usize = 1024;

/// The state after the commit `version`, for which a snapshot is registered.
pub(crate) struct SnapshotTables<'a> {
    pub(crate) latest: &'a dyn KeyValue,
    pub(crate) versions: &'a Versions,
    pub(crate) version: Version,
}

impl Tables for SnapshotTables<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        // The key-value store is read first: a commit adds the old values to the history, and then
        // writes. So if this value is later than the state, the history has an entry.
        let latest = self.latest.get(key)?;
        match self.versions.before(key, self.version)? {
            Some(before) => Ok(before),
            None => Ok(latest),
        }
    }

    fn scan(&self, start: &[u8], end: &[u8], visit: &mut dyn FnMut(&[u8], &Value) -> bool) -> Result<()> {
        let mut first = start.to_vec();
        let mut has_ended = false;
        while first[..] < *end && !has_ended {
            let mut latest = Vec::new();
            let range = KeyRange::between(Bound::Included(&first[..]), Bound::Excluded(end));
            self.latest.scan(&range, &mut |key, value| {
                latest.push((key.to_vec(), Value::from(value)));
                latest.len() < ENTRIES_AT_ONCE
            })?;
            // The part that was scanned ends after the last entry that was read, or at `end`.
            let next = match latest.last() {
                Some((key, _)) if latest.len() == ENTRIES_AT_ONCE => [key, &[0][..]].concat(),
                _ => end.to_vec(),
            };
            let changed = self.versions.changed_after(&first, &next, self.version)?;
            let mut merge =
                Merge { changed: changed.range::<[u8], _>(..).peekable(), visit: &mut *visit, has_ended };
            for (key, value) in &latest {
                if !merge.base_entry(key, value) {
                    break;
                }
            }
            merge.rest();
            has_ended = merge.has_ended;
            first = next;
        }
        Ok(())
    }
}
