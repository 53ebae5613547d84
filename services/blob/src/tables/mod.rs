//! Read access to the ordered keys and values of the latest state, of a snapshot, or of a state
//! with changes that are not committed.

mod changes;
mod history;
mod snapshot;

pub(crate) use changes::{ChangeSet, Changed, Changes, batch_of, get_merged, scan_merged};
pub(crate) use history::History;
pub(crate) use snapshot::SnapshotTables;

use quell_kv::{KeyRange, KeyValue, Value};
use quell_vfs::Result;
use std::ops::Bound;

/// Read access to ordered keys and values of one state.
pub(crate) trait Tables {
    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Value>>;

    /// Passes the entries from `start` up to `end`, exclusive, to `visit`, in ascending order of
    /// the keys, until `visit` returns false.
    fn scan(&self, start: &[u8], end: &[u8], visit: &mut dyn FnMut(&[u8], &Value) -> bool) -> Result<()>;
}

/// The latest committed state.
pub(crate) struct Latest<'a>(pub(crate) &'a dyn KeyValue);

impl Tables for Latest<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.0.get(key)
    }

    fn scan(&self, start: &[u8], end: &[u8], visit: &mut dyn FnMut(&[u8], &Value) -> bool) -> Result<()> {
        let range = KeyRange::between(Bound::Included(start), Bound::Excluded(end));
        self.0.scan(&range, &mut |key, value| visit(key, &Value::from(value)))
    }
}

/// Returns the first key after all keys that begin with `prefix`, which begins with a byte below
/// 0xFF.
pub(crate) fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX).expect("the first byte is below 0xFF");
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end
}

/// Passes the entries from `start` up to `end`, exclusive, to `visit`, in ascending order of the
/// keys, until `visit` fails or returns false.
pub(crate) fn visit_range(
    tables: &dyn Tables,
    start: &[u8],
    end: &[u8],
    visit: &mut VisitSome<'_>,
) -> Result<()> {
    let mut failed = None;
    tables.scan(start, end, &mut |key, value| match visit(key, value) {
        Ok(continues) => continues,
        Err(error) => {
            failed = Some(error);
            false
        }
    })?;
    failed.map_or(Ok(()), Err)
}

/// Passes the entries whose keys begin with `prefix` to `visit`, until it fails.
pub(crate) fn visit_prefix(tables: &dyn Tables, prefix: &[u8], visit: &mut Visit<'_>) -> Result<()> {
    visit_range(tables, prefix, &end_of_prefix(prefix), &mut |key, value| visit(key, value).map(|()| true))
}

/// A function that receives a key and a value, and returns whether the visit continues.
type VisitSome<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool> + 'a;
/// A function that receives all keys and values.
type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;
