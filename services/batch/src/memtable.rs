//! The changes of a private name space that are not in a table yet.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::{DefaultHashBuilder, HashTable};
use quell_threads::lock;
use quell_vfs::{Error, Result};

use crate::key::split;
use crate::table::{BlockCache, Table, TableSummary, TableWriter};

/// The largest number of bytes of keys and values.
const BYTES_MAX: usize = 1 << 30;
/// The number of entries that a list of a directory reads at a time.
const PAGE_RECORDS: usize = 1024;

/// Keys and values in memory. All bytes are in one buffer, one after the other. A hash table finds
/// a key, and each directory has the list of its keys.
#[derive(Debug, Default)]
pub(crate) struct MemTable {
    bytes: Vec<u8>,
    records: Vec<Record>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    dirs: BTreeMap<u64, Mutex<DirKeys>>,
}

/// The positions of a key and its value in the buffer.
#[derive(Debug, Clone, Copy)]
struct Record {
    key_at: u32,
    value_at: u32,
    value_bytes: u32,
    /// The space for the value, in bytes.
    capacity_bytes: u32,
    key_bytes: u16,
}

impl Record {
    fn key(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.key_at as usize..][..usize::from(self.key_bytes)]
    }

    fn value(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.value_at as usize..][..self.value_bytes as usize]
    }
}

/// The records of a directory. The first `sorted` of them are in the order of their keys.
#[derive(Debug, Default)]
struct DirKeys {
    records: Vec<u32>,
    sorted: usize,
}

impl MemTable {
    /// Returns the approximate memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let per_record = size_of::<Record>() + 2 * size_of::<u32>() + size_of::<u8>();
        self.bytes.len() + self.records.len() * per_record
    }

    /// Returns whether a change of these sizes fits.
    pub(crate) fn has_space(&self, key: &[u8], value: &[u8]) -> bool {
        self.bytes.len() + key.len() + value.len() <= BYTES_MAX
    }

    /// Sets the value of a key. An empty value is a removal.
    ///
    /// # Panics
    /// If there is no space ([`has_space`](Self::has_space)), or the key has no directory.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        assert!(self.has_space(key, value), "a table in memory has at most {BYTES_MAX} bytes");
        if let Some(found) = self.find(key) {
            let record = &mut self.records[found as usize];
            if value.len() > record.capacity_bytes as usize {
                // A value that grows again, as that of a file to which a program appends, gets
                // twice the space, so all its copies together have at most four times its size.
                let space = 2 * record.capacity_bytes as usize;
                let capacity = value.len().max(space.min(BYTES_MAX - self.bytes.len()));
                record.value_at = self.bytes.len() as u32;
                record.capacity_bytes = capacity as u32;
                self.bytes.extend_from_slice(value);
                self.bytes.resize(record.value_at as usize + capacity, 0);
            } else {
                let at = record.value_at as usize;
                self.bytes[at..at + value.len()].copy_from_slice(value);
            }
            record.value_bytes = value.len() as u32;
            return;
        }
        let (dir, _) = split(key).expect("a key has the number of a directory");
        let number = self.records.len() as u32;
        let key_at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.records.push(Record {
            key_at,
            value_at: key_at + key.len() as u32,
            value_bytes: value.len() as u32,
            capacity_bytes: value.len() as u32,
            key_bytes: key.len() as u16,
        });
        let (bytes, records, hasher) = (&self.bytes, &self.records, &self.hasher);
        let hash_of = |record: &u32| hasher.hash_one(key_of(bytes, records, *record));
        self.index.insert_unique(hasher.hash_one(key), number, hash_of);
        let keys = self.dirs.entry(dir).or_default();
        let keys = keys.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ascends = keys.records.last().is_none_or(|last| key_of(bytes, records, *last) < key);
        if ascends && keys.sorted == keys.records.len() {
            keys.sorted += 1;
        }
        keys.records.push(number);
    }

    /// Returns the value of a key; an empty value is a removal. `None` if it was not set.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.find(key).map(|record| self.value(record))
    }

    /// Returns the entries of a directory after the key `after`, in the order of their keys.
    pub(crate) fn dir_after(&self, dir: u64, after: &[u8]) -> DirEntries<'_> {
        DirEntries { table: self, dir, after: after.to_vec(), page: Vec::new().into_iter() }
    }

    /// Returns all entries, in the order of their keys.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let sorted = |keys: &Mutex<DirKeys>| lock(keys).sorted(&self.bytes, &self.records).to_vec();
        let records = self.dirs.values().flat_map(sorted);
        records.map(|record| (self.key(record), self.value(record)))
    }

    /// Writes all entries to an empty file, and opens it as a table.
    pub(crate) fn write(&self, file: File, cache: &Arc<BlockCache>) -> Result<(Arc<Table>, TableSummary)> {
        let for_reading = file.try_clone().map_err(|cause| Error::from_io(cause, "duplicate", ""))?;
        let mut writer = TableWriter::new(file);
        for (key, value) in self.entries() {
            writer.add(key, value)?;
        }
        let summary = writer.finish()?;
        let table = Table::open(for_reading, Some(summary.checksum), cache.clone())?;
        Ok((Arc::new(table), summary))
    }

    /// Returns a copy of all entries.
    pub(crate) fn copy(&self) -> MemCopy {
        MemCopy { bytes: self.bytes.clone(), records: self.records.clone() }
    }

    /// Removes all entries, and keeps the memory for new ones.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
        self.index.clear();
        self.dirs.clear();
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        let is_key = |record: &u32| self.key(*record) == key;
        self.index.find(self.hasher.hash_one(key), is_key).copied()
    }

    fn key(&self, record: u32) -> &[u8] {
        key_of(&self.bytes, &self.records, record)
    }

    fn value(&self, record: u32) -> &[u8] {
        self.records[record as usize].value(&self.bytes)
    }
}

/// A copy of the entries of a table, in no particular order: copying takes less time than sorting.
#[derive(Debug)]
pub(crate) struct MemCopy {
    bytes: Vec<u8>,
    records: Vec<Record>,
}

impl MemCopy {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Passes all entries to `visit`, in the order of their keys. An empty value is a removal.
    ///
    /// # Errors
    /// The errors of `visit`.
    pub(crate) fn visit_sorted(mut self, mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let bytes = &self.bytes;
        self.records.sort_unstable_by(|a, b| a.key(bytes).cmp(b.key(bytes)));
        self.records.iter().try_for_each(|record| visit(record.key(bytes), record.value(bytes)))
    }
}

/// The entries of a directory, a page at a time.
pub(crate) struct DirEntries<'a> {
    table: &'a MemTable,
    dir: u64,
    /// The last key of the page.
    after: Vec<u8>,
    page: std::vec::IntoIter<u32>,
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.len() == 0 {
            let mut keys = lock(self.table.dirs.get(&self.dir)?);
            let records = keys.sorted(&self.table.bytes, &self.table.records);
            let start = records.partition_point(|record| self.table.key(*record) <= &*self.after);
            let end = records.len().min(start + PAGE_RECORDS);
            let page = records[start..end].to_vec();
            drop(keys);
            if let Some(last) = page.last() {
                self.after = self.table.key(*last).to_vec();
            }
            self.page = page.into_iter();
        }
        self.page.next().map(|record| (self.table.key(record), self.table.value(record)))
    }
}

impl DirKeys {
    /// Returns the records in the order of their keys.
    fn sorted(&mut self, bytes: &[u8], records: &[Record]) -> &[u32] {
        if self.sorted < self.records.len() {
            // A stable sort is fast for keys that consist of a few sorted runs.
            self.records.sort_by(|a, b| key_of(bytes, records, *a).cmp(key_of(bytes, records, *b)));
            self.sorted = self.records.len();
        }
        &self.records
    }
}

fn key_of<'a>(bytes: &'a [u8], records: &[Record], record: u32) -> &'a [u8] {
    records[record as usize].key(bytes)
}

#[cfg(test)]
mod tests {
    use quell_testkit::Random;

    use super::*;
    use crate::key::Key;

    #[test]
    fn it_has_the_entries_of_an_ordered_map() {
        let mut random = Random::new(7);
        let (mut table, mut model) = (MemTable::default(), BTreeMap::new());
        for _ in 0..20_000 {
            let key = Key::of_name(random.below(5) as u64, format!("{}", random.below(1000)).as_bytes());
            let length = random.below(12);
            let value = random.bytes(length);
            table.put(key.as_bytes(), &value);
            model.insert(key.as_bytes().to_vec(), value);
            let dir = random.below(6) as u64;
            if random.one_in(200) {
                let after = Key::of_name(dir, b"5");
                let found = table.dir_after(dir, after.as_bytes());
                let expected = model.range(after.as_bytes().to_vec()..);
                let expected = expected.filter(|(key, _)| **key != after.as_bytes());
                let expected = expected.take_while(|(key, _)| split(key).unwrap().0 == dir);
                assert!(found.eq(expected.map(|(key, value)| (&**key, &**value))));
            }
        }
        for (key, value) in &model {
            assert_eq!(table.get(key), Some(&**value));
        }
        assert_eq!(table.get(Key::of_name(9, b"1").as_bytes()), None);
        assert!(table.entries().eq(model.iter().map(|(key, value)| (&**key, &**value))));
        let mut copied = Vec::new();
        let copy = |key: &[u8], value: &[u8]| {
            copied.push((key.to_vec(), value.to_vec()));
            Ok(())
        };
        table.copy().visit_sorted(copy).unwrap();
        assert_eq!(copied, model.into_iter().collect::<Vec<_>>());
        table.clear();
        assert!(table.get(&copied[0].0).is_none());
    }
}
