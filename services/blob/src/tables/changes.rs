//! Tables with changes that are not committed.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::iter::Peekable;
use std::ops::Bound;

use quell_kv::{Batch, OPERATION_BYTES, Value};
use quell_vfs::Result;

use super::Tables;

/// The changed keys, with their new values; `None` for a key that is deleted.
pub(crate) type Changed = BTreeMap<Vec<u8>, Option<Value>>;

/// Changed keys, and their size.
#[derive(Default)]
pub(crate) struct ChangeSet {
    changed: Changed,
    size_bytes: u64,
}

impl ChangeSet {
    fn change(&mut self, key: Vec<u8>, value: Option<Value>) {
        let value_bytes = value.as_ref().map_or(0, |value| value.len() as u64);
        let entry_bytes = key.len() as u64 + OPERATION_BYTES;
        match self.changed.insert(key, value) {
            Some(before) => {
                self.size_bytes =
                    self.size_bytes + value_bytes - before.map_or(0, |value| value.len() as u64);
            }
            None => self.size_bytes += entry_bytes + value_bytes,
        }
    }

    /// Adds changes.
    pub(crate) fn add(&mut self, changed: Changed) {
        for (key, value) in changed {
            self.change(key, value);
        }
    }

    /// Returns the changed keys.
    pub(crate) fn changed(&self) -> &Changed {
        &self.changed
    }

    /// Returns the size of a batch with the changes, in bytes, as `quell_kv` counts it.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

/// Tables with changes, which only the reader of this value sees.
pub(crate) struct Changes<'a> {
    base: &'a dyn Tables,
    set: ChangeSet,
}

impl<'a> Changes<'a> {
    /// Returns `base`, without changes so far.
    pub(crate) fn new(base: &'a dyn Tables) -> Changes<'a> {
        Changes { base, set: ChangeSet::default() }
    }

    /// Sets the value of a key.
    pub(crate) fn put(&mut self, key: Vec<u8>, value: &[u8]) {
        self.set.change(key, Some(Value::from(value)));
    }

    /// Removes a key.
    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.set.change(key, None);
    }

    /// Returns the size of a batch with the changes, in bytes, as `quell_kv` counts it.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.set.size_bytes()
    }

    /// Returns the changes.
    pub(crate) fn into_changed(self) -> Changed {
        self.set.changed
    }

    /// Adds changes.
    pub(crate) fn add(&mut self, changed: Changed) {
        self.set.add(changed);
    }
}

/// Returns the batch with changes.
pub(crate) fn batch_of(changed: &Changed) -> Batch {
    let mut batch = Batch::with_capacity(changed.len());
    for (key, value) in changed {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
    }
    batch
}

impl Tables for Changes<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        get_merged(self.base, &self.set.changed, key)
    }

    fn scan(&self, start: &[u8], end: &[u8], visit: &mut dyn FnMut(&[u8], &Value) -> bool) -> Result<()> {
        scan_merged(self.base, &self.set.changed, start, end, visit)
    }
}

/// Returns the value of a key in `base` with changed keys.
pub(crate) fn get_merged(base: &dyn Tables, changed: &Changed, key: &[u8]) -> Result<Option<Value>> {
    match changed.get(key) {
        Some(value) => Ok(value.clone()),
        None => base.get(key),
    }
}

/// Scans `base` with changed keys, as [`Tables::scan`] does.
pub(crate) fn scan_merged(
    base: &dyn Tables,
    changed: &Changed,
    start: &[u8],
    end: &[u8],
    visit: &mut dyn FnMut(&[u8], &Value) -> bool,
) -> Result<()> {
    if start >= end {
        return Ok(());
    }
    let bounds = (Bound::Included(start), Bound::Excluded(end));
    let mut merge = Merge { changed: changed.range::<[u8], _>(bounds).peekable(), visit, has_ended: false };
    base.scan(start, end, &mut |key, value| merge.base_entry(key, value))?;
    merge.rest();
    Ok(())
}

/// Merges the changed entries into a scan of the unchanged ones.
pub(super) struct Merge<'a, 'v> {
    pub(super) changed: Peekable<Range<'a, Vec<u8>, Option<Value>>>,
    pub(super) visit: &'v mut dyn FnMut(&[u8], &Value) -> bool,
    pub(super) has_ended: bool,
}

impl Merge<'_, '_> {
    /// Passes the changed entries up to a key to `visit`, and then the entry of the key unless it
    /// was changed. Returns whether the scan continues.
    pub(super) fn base_entry(&mut self, key: &[u8], value: &Value) -> bool {
        while let Some((changed_key, changed_value)) =
            self.changed.next_if(|(changed, _)| changed[..] <= *key)
        {
            self.pass(changed_key, changed_value.as_ref());
            if self.has_ended {
                return false;
            }
            if changed_key[..] == *key {
                return true;
            }
        }
        self.pass(key, Some(value));
        !self.has_ended
    }

    /// Passes the changed entries after the last unchanged one to `visit`.
    pub(super) fn rest(&mut self) {
        while !self.has_ended {
            let Some((key, value)) = self.changed.next() else { return };
            self.pass(key, value.as_ref());
        }
    }

    fn pass(&mut self, key: &[u8], value: Option<&Value>) {
        if let Some(value) = value {
            self.has_ended = !(self.visit)(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Latest;
    use super::*;
    use quell_kv::{Batch, KeyValue, MemoryStore};

    fn entries(tables: &dyn Tables, start: &[u8], end: &[u8], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        let mut visit = |key: &[u8], value: &Value| {
            found.push((key.to_vec(), value.to_vec()));
            found.len() < limit
        };
        tables.scan(start, end, &mut visit).expect("scanned");
        found
    }

    #[test]
    fn a_scan_merges_changes_of_two_levels() {
        let store = MemoryStore::new();
        let mut batch = Batch::new();
        for key in [b"b", b"d", b"f", b"h"] {
            batch.put(key, b"0");
        }
        store.commit(batch).expect("committed");
        let latest = Latest(&store);
        let mut group = Changes::new(&latest);
        group.put(b"a".to_vec(), b"1");
        group.put(b"d".to_vec(), b"1");
        group.delete(b"f".to_vec());
        let mut transaction = Changes::new(&group);
        transaction.put(b"f".to_vec(), b"2");
        transaction.put(b"i".to_vec(), b"2");
        transaction.delete(b"a".to_vec());
        let found = entries(&transaction, b"a", b"z", 9);
        let text: Vec<String> =
            found.iter().map(|(k, v)| format!("{}{}", k.escape_ascii(), v.escape_ascii())).collect();
        assert_eq!(text, ["b0", "d1", "f2", "h0", "i2"]);
        assert_eq!(entries(&transaction, b"d", b"h", 9).len(), 2);
        assert_eq!(entries(&transaction, b"a", b"z", 1).len(), 1);
        let changed = transaction.into_changed();
        group.add(changed);
        assert_eq!(entries(&group, b"a", b"z", 9), found);
    }
}
