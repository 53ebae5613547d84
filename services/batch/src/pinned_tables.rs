//! The tables of the image that verifications of batches read. An auxiliary server opens them by
//! their names, so they are not removed meanwhile, even if the image does not have them any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use quell_threads::lock;

use crate::table_ref::TableRef;

/// The tables that are being read, and the number of verifications that read each of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct PinnedTables(Arc<Mutex<HashMap<u64, usize>>>);

/// Prevents the removal of tables until it is dropped.
#[derive(Debug)]
pub(crate) struct TablePins {
    pinned: PinnedTables,
    numbers: Vec<u64>,
}

impl PinnedTables {
    /// Prevents the removal of these tables until the returned value is dropped.
    pub(crate) fn pin(&self, tables: &[TableRef]) -> TablePins {
        let numbers: Vec<u64> = tables.iter().map(|table| table.number).collect();
        let mut pinned = lock(&self.0);
        for number in &numbers {
            *pinned.entry(*number).or_default() += 1;
        }
        TablePins { pinned: self.clone(), numbers }
    }

    /// Returns whether a verification reads the table with this number.
    pub(crate) fn contains(&self, number: u64) -> bool {
        lock(&self.0).contains_key(&number)
    }
}

impl Drop for TablePins {
    fn drop(&mut self) {
        let mut pinned = lock(&self.pinned.0);
        for number in &self.numbers {
            if let Some(count) = pinned.get_mut(number) {
                *count -= 1;
                if *count == 0 {
                    pinned.remove(number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_kept_until_no_verification_reads_it() {
        let pinned = PinnedTables::default();
        let table = |number| TableRef { number, bytes: 1, entries: 1, checksum: 1 };
        let first = pinned.pin(&[table(1), table(2)]);
        let second = pinned.pin(&[table(2), table(3)]);
        assert!([1, 2, 3].iter().all(|number| pinned.contains(*number)));
        drop(first);
        assert!(!pinned.contains(1) && pinned.contains(2) && pinned.contains(3));
        drop(second);
        assert!(![1, 2, 3].iter().any(|number| pinned.contains(*number)));
    }
}
