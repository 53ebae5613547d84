//! Tables that a thread or an auxiliary server reads or writes. The image may not refer to them
//! yet, or may stop referring to them meanwhile. They are opened by their names, so they must not
//! be removed meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use quell_threads::lock;

/// The tables that are in use, and the number of uses of each of them.
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
    pub(crate) fn pin(&self, numbers: impl IntoIterator<Item = u64>) -> TablePins {
        let numbers: Vec<u64> = numbers.into_iter().collect();
        let mut pinned = lock(&self.0);
        for number in &numbers {
            *pinned.entry(*number).or_default() += 1;
        }
        TablePins { pinned: self.clone(), numbers }
    }

    /// Returns whether the table with this number is in use.
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
    fn a_table_is_kept_until_its_last_use_ends() {
        let pinned = PinnedTables::default();
        let first = pinned.pin([1, 2]);
        let second = pinned.pin([2, 3]);
        assert!([1, 2, 3].iter().all(|number| pinned.contains(*number)));
        drop(first);
        assert!(!pinned.contains(1) && pinned.contains(2) && pinned.contains(3));
        drop(second);
        assert!(![1, 2, 3].iter().any(|number| pinned.contains(*number)));
    }
}
