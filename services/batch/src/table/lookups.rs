//! Look-ups of ascending keys in a table.

use std::cmp::Ordering;
use std::sync::Arc;

use quell_vfs::Result;

use super::block::BlockCursor;
use super::reader::Table;

/// Look-ups of ascending keys in a table. A look-up continues in the block of the previous one. The
/// filter is read, and a block is searched from its beginning, only if the key is after the end of
/// this block.
#[derive(Debug)]
pub(crate) struct TableLookups {
    table: Arc<Table>,
    /// The block that was read last, and its first entry that is not less than the last key, or its
    /// last entry.
    block: Option<(Arc<Vec<u8>>, BlockCursor)>,
}

impl TableLookups {
    pub(crate) fn new(table: Arc<Table>) -> TableLookups {
        TableLookups { table, block: None }
    }

    /// Returns the value of a key, or `None` if the table has none. An empty value is a removal.
    /// The key must be greater than the key of the previous look-up.
    ///
    /// # Errors
    /// `Damaged`; the errors of read(2).
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some((block, cursor)) = &mut self.block {
            match find_from(block, cursor, key)? {
                Ordering::Less => {}
                Ordering::Equal => return Ok(Some(cursor.last(block).1.to_vec())),
                Ordering::Greater => return Ok(None),
            }
        }
        // The key is after the block.
        let Some(block) = self.table.block_of(key)? else { return Ok(None) };
        let mut cursor = BlockCursor::default();
        // A block is not empty, and its last key is not less than this one, unless it is damaged.
        if cursor.next(&block)?.is_none() {
            return Ok(None);
        }
        let found = match find_from(&block, &mut cursor, key)? {
            Ordering::Equal => Some(cursor.last(&block).1.to_vec()),
            _ => None,
        };
        self.block = Some((block, cursor));
        Ok(found)
    }
}

/// Moves from the entry that was read last to the first one whose key is not less than `key`, and
/// compares the entry's key with `key`. Returns `Less` at the last entry if no entry has such a
/// key.
fn find_from(block: &[u8], cursor: &mut BlockCursor, key: &[u8]) -> Result<Ordering> {
    loop {
        let order = cursor.last(block).0.cmp(key);
        if order != Ordering::Less || cursor.next(block)?.is_none() {
            return Ok(order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{BlockCache, TableWriter};

    #[test]
    fn look_ups_of_ascending_keys_find_the_same_as_single_look_ups() {
        // Several blocks. The table has every third key.
        let key = |number: u64| format!("{:08}", number * 3).into_bytes();
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = TableWriter::new(file.reopen().unwrap());
        for number in 0..3000 {
            let value = vec![number as u8; next(40) as usize];
            writer.add(&key(number), &value).unwrap();
        }
        writer.finish().unwrap();
        let cache = Arc::new(BlockCache::default());
        let table = Arc::new(Table::open(file.reopen().unwrap(), None, cache).unwrap());
        let mut found = 0;
        for step in [1, 2, 7, 100, 5000] {
            let mut lookups = TableLookups::new(table.clone());
            let mut at = 0;
            while at < 9100 {
                let key = format!("{at:08}").into_bytes();
                let expected = table.get(&key).unwrap();
                found += usize::from(expected.is_some());
                assert_eq!(lookups.get(&key).unwrap(), expected, "{at}");
                at += 1 + next(step);
            }
        }
        assert!(found > 3000, "{found}");
    }
}
