//! The master image of a store: immutable tables, and the changes since the last of them in the
//! key-value store (decision 38).

use std::collections::{HashMap, HashSet};
use std::ops::{Bound, Range};
use std::sync::Arc;

use quell_kv::{Batch as Commit, KeyRange, KeyValue};
use quell_vfs::{Error, ErrorKind, NewEntry, Result, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::batch::{BatchRecord, BatchState};
use crate::compaction::{merge, tables_to_merge};
use crate::entries::{Entries, KeyChange};
use crate::entry::{Entry, FIRST_INODE, damaged};
use crate::files::TableFiles;
use crate::key::{Key, split};
use crate::merge::{Merge, Source, list_merged};
use crate::names::Names;
use crate::table::{BlockCache, Table, TableWriter};
use crate::table_ref::{TableRef, batch_of_table};
use crate::table_set::TableSet;

/// The key of the description of the image in the key-value store.
const IMAGE_KEY: &[u8] = b"i";
/// The first byte of the keys of entries in the key-value store.
const ENTRY: u8 = b'e';
/// The first byte of the keys of batches in the key-value store.
const BATCH: u8 = b'b';
/// The version of the format of the key-value store.
const VERSION: u32 = 1;
/// The number of entries in the key-value store above which they become a table.
const ENTRIES_MAX: usize = 32 << 10;
/// The size of the entries in the key-value store above which they become a table, in bytes.
const ENTRIES_BYTES_MAX: usize = 12 << 20;
/// The number of inode numbers that are reserved at a time for synchronous operations.
const INODES_RESERVED: u64 = 1 << 20;
/// The number of entries of a list that are read from the key-value store at a time.
const PAGE_ENTRIES: usize = 1024;

/// The description of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Description {
    version: u32,
    /// A random number, which no other store has.
    store: u128,
    next_inode: u64,
    next_table: u64,
    next_batch: u64,
    /// The tables, the newest first.
    tables: Vec<TableRef>,
}

/// The master image of a store. One process at a time has it.
pub struct Image {
    store: Arc<dyn KeyValue>,
    files: Arc<dyn TableFiles>,
    cache: Arc<BlockCache>,
    description: Description,
    tables: TableSet,
    /// The inode numbers that are reserved for synchronous operations.
    inodes: Range<u64>,
    /// The number and the size of the entries in the key-value store.
    entries: usize,
    entries_bytes: usize,
    /// The number of the last change.
    change: u64,
    /// The last change of each directory since the image was opened.
    changed_dirs: HashMap<u64, u64>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Image");
        shown.field("description", &self.description).field("entries", &self.entries).finish_non_exhaustive()
    }
}

/// The changes that a commit adds to the image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Addition {
    /// New tables in the directory of the image, the newest first.
    pub(crate) tables: Vec<TableRef>,
    /// Entries that are newer than those of the tables.
    pub(crate) changes: Vec<KeyChange>,
    /// The directories of the existing entries that the tables and the changes replace.
    pub(crate) changed_dirs: Vec<u64>,
}

impl Image {
    /// Creates the image of a new store, with an empty root directory.
    ///
    /// # Errors
    /// `Exists` if the key-value store has one; those of commits.
    pub fn create(store: &dyn KeyValue, number: u128, root: NewEntry, now: Time) -> Result<()> {
        if store.get(IMAGE_KEY)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, "create a name space", ""));
        }
        let description = Description {
            version: VERSION,
            store: number,
            next_inode: FIRST_INODE,
            next_table: 1,
            next_batch: 1,
            tables: Vec::new(),
        };
        let mut commit = Commit::new();
        commit.put(IMAGE_KEY, &encode(&description));
        put_entry(&mut commit, Names::<Image>::new_root(root, now));
        store.commit(commit)?;
        store.sync()
    }

    /// Opens the image.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Damaged`; those of the tables.
    pub fn open(store: Arc<dyn KeyValue>, files: Arc<dyn TableFiles>) -> Result<Image> {
        let Some(value) = store.get(IMAGE_KEY)? else {
            return Err(Error::new(ErrorKind::NotFound, "open a name space", ""));
        };
        let description: Description = decode(&value)?;
        if description.version != VERSION {
            let reason = format!("it has version {}; this program reads {VERSION}", description.version);
            return Err(Error { source: Some(reason.into()), ..damaged("the name space") });
        }
        let cache = Arc::new(BlockCache::default());
        let open = |table: &TableRef| open_table(&*files, &cache, table);
        let tables = TableSet::new(description.tables.iter().map(open).collect::<Result<_>>()?);
        let (mut entries, mut entries_bytes) = (0, 0);
        store.scan(&KeyRange::prefix(&[ENTRY]), &mut |key, value| {
            entries += 1;
            entries_bytes += key.len() + value.len();
            true
        })?;
        Ok(Image {
            store,
            files,
            cache,
            tables,
            inodes: 0..0,
            entries,
            entries_bytes,
            change: 1,
            changed_dirs: HashMap::new(),
            description,
        })
    }

    /// Returns the random number of the store.
    pub fn store_number(&self) -> u128 {
        self.description.store
    }

    /// Returns the tables, the newest first.
    pub fn tables(&self) -> &[TableRef] {
        &self.description.tables
    }

    /// Returns the directory of the tables.
    pub(crate) fn files(&self) -> &Arc<dyn TableFiles> {
        &self.files
    }

    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// Returns the number of the last change.
    pub(crate) fn last_change(&self) -> u64 {
        self.change
    }

    /// Returns whether any of `dirs` was changed after the change with this number.
    pub(crate) fn is_changed_since(&self, change: u64, mut dirs: impl Iterator<Item = u64>) -> bool {
        dirs.any(|dir| self.changed_dirs.get(&dir).is_some_and(|last| *last > change))
    }

    /// Writes the entries of the key-value store as a table, and returns the whole image as tables.
    ///
    /// # Errors
    /// Those of files and commits. Then the image is as before.
    pub(crate) fn snapshot(&mut self) -> Result<(Vec<TableRef>, TableSet)> {
        self.flush()?;
        Ok((self.description.tables.clone(), self.tables.clone()))
    }

    /// Opens tables that a batch refers to.
    ///
    /// # Errors
    /// Those of the tables.
    pub(crate) fn open_tables(&self, tables: &[TableRef]) -> Result<TableSet> {
        let open = |table: &TableRef| open_table(&*self.files, &self.cache, table);
        Ok(TableSet::new(tables.iter().map(open).collect::<Result<_>>()?))
    }

    /// Reserves numbers of tables that a commit will write, and returns the first one.
    pub(crate) fn reserve_tables(&mut self, count: u64) -> Result<u64> {
        let mut description = self.description.clone();
        description.next_table += count;
        self.store_description(description, Commit::new())?;
        Ok(self.description.next_table - count)
    }

    /// Reserves `count` inode numbers and the number of a batch, and stores its record.
    pub(crate) fn add_batch<R: Serialize>(
        &mut self,
        inodes: u64,
        record: impl FnOnce(u64, Range<u64>) -> R,
    ) -> Result<R> {
        let mut description = self.description.clone();
        let end = description.next_inode.checked_add(inodes).filter(|end| *end < 1 << 62);
        let Some(end) = end else {
            return Err(Error::new(ErrorKind::NoSpace, "reserve inode numbers", ""));
        };
        let range = description.next_inode..end;
        description.next_inode = end;
        let number = description.next_batch;
        description.next_batch += 1;
        let record = record(number, range);
        let mut commit = Commit::new();
        commit.put(&batch_key(number), &encode(&record));
        self.store_description(description, commit)?;
        self.store.sync()?;
        Ok(record)
    }

    /// Returns the record of a batch.
    pub(crate) fn batch<R: DeserializeOwned>(&self, number: u64) -> Result<Option<R>> {
        self.store.get(&batch_key(number))?.map(|value| decode(&value)).transpose()
    }

    /// Returns the records of all batches, in the order of their numbers.
    pub(crate) fn batches<R: DeserializeOwned>(&self) -> Result<Vec<R>> {
        let mut records = Vec::new();
        self.store.scan(&KeyRange::prefix(&[BATCH]), &mut |_, value| {
            records.push(decode(value));
            true
        })?;
        records.into_iter().collect()
    }

    /// Replaces the record of a batch.
    pub(crate) fn put_batch<R: Serialize>(&mut self, number: u64, record: &R) -> Result<()> {
        let mut commit = Commit::new();
        commit.put(&batch_key(number), &encode(record));
        self.store.commit(commit)?;
        self.store.sync()
    }

    /// Adds the changes of a batch, and replaces its record, atomically. The work depends on the
    /// number of tables and of changes, not on the entries of the tables.
    ///
    /// # Errors
    /// Those of files and commits. Then the image is as before.
    pub(crate) fn add<R: Serialize>(&mut self, addition: Addition, number: u64, record: &R) -> Result<()> {
        self.compact()?;
        // Entries of the key-value store are newer than all tables, so they become a table first.
        self.flush()?;
        let mut tables = self.tables.clone();
        for table in addition.tables.iter().rev() {
            tables.add(open_table(&*self.files, &self.cache, table)?);
        }
        self.files.sync()?;
        let mut description = self.description.clone();
        description.tables.splice(0..0, addition.tables);
        let mut commit = Commit::new();
        commit.put(&batch_key(number), &encode(record));
        let dirs = addition.changed_dirs;
        let (entries, bytes) = (addition.changes.len(), sizes(&addition.changes));
        for change in addition.changes {
            put_entry(&mut commit, change);
        }
        self.store_description(description, commit)?;
        self.store.sync()?;
        self.tables = tables;
        (self.entries, self.entries_bytes) = (self.entries + entries, self.entries_bytes + bytes);
        self.note_changes(dirs);
        Ok(())
    }

    /// Writes the entries of the key-value store as a table.
    fn flush(&mut self) -> Result<()> {
        if self.entries == 0 {
            return Ok(());
        }
        let number = self.reserve_tables(1)?;
        let file = self.files.create(number)?;
        let mut writer = TableWriter::new(file);
        let mut commit = Commit::new();
        let mut failure = None;
        self.store.scan(&KeyRange::prefix(&[ENTRY]), &mut |key, value| {
            commit.delete(key);
            failure = writer.add(&key[1..], value).err();
            failure.is_none()
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        let summary = writer.finish(true)?;
        self.files.sync()?;
        let table = TableRef::new(number, &summary);
        let opened = open_table(&*self.files, &self.cache, &table)?;
        let mut description = self.description.clone();
        description.tables.insert(0, table);
        self.store_description(description, commit)?;
        self.tables.add(opened);
        (self.entries, self.entries_bytes) = (0, 0);
        Ok(())
    }

    /// Merges tables if there are many, and removes the files of tables that neither the image nor
    /// the snapshot of an open batch has.
    ///
    /// # Errors
    /// Those of files and commits. Then the image is as before.
    pub(crate) fn compact(&mut self) -> Result<()> {
        let count = tables_to_merge(&self.description.tables);
        if count == 0 {
            return Ok(());
        }
        let is_oldest = count == self.description.tables.len();
        let sources = self.tables.newest(count).sources().collect();
        let written = merge(sources, is_oldest, &mut || {
            let number = self.reserve_tables(1)?;
            Ok((number, TableWriter::new(self.files.create(number)?)))
        })?;
        self.files.sync()?;
        let mut tables = self.tables.without_newest(count);
        for table in written.iter().rev() {
            tables.add(open_table(&*self.files, &self.cache, table)?);
        }
        let mut description = self.description.clone();
        description.tables.splice(..count, written);
        self.store_description(description, Commit::new())?;
        // The new list must survive a power failure before the old tables are removed.
        self.store.sync()?;
        self.tables = tables;
        self.remove_unused_tables()
    }

    fn remove_unused_tables(&self) -> Result<()> {
        let batches: Vec<BatchRecord> = self.batches()?;
        let open = || batches.iter().filter(|batch| batch.state == BatchState::Open);
        let snapshots = open().flat_map(|batch| &batch.snapshot);
        let used: HashSet<u64> =
            self.description.tables.iter().chain(snapshots).map(|table| table.number).collect();
        // The verification of an open batch may be writing tables.
        let being_written: HashSet<u64> = open().map(|batch| batch.number).collect();
        for number in self.files.list()? {
            let is_written = batch_of_table(number).is_some_and(|batch| being_written.contains(&batch));
            if !used.contains(&number) && !is_written {
                self.files.remove(number)?;
            }
        }
        Ok(())
    }

    /// Commits a new description together with other changes.
    fn store_description(&mut self, description: Description, mut commit: Commit) -> Result<()> {
        commit.put(IMAGE_KEY, &encode(&description));
        self.store.commit(commit)?;
        self.description = description;
        Ok(())
    }

    fn note_changes(&mut self, dirs: impl IntoIterator<Item = u64>) {
        self.change += 1;
        for dir in dirs {
            self.changed_dirs.insert(dir, self.change);
        }
    }
}

impl Entries for Image {
    const IS_SHARED: bool = true;

    fn get(&self, key: &Key) -> Result<Option<Entry>> {
        let found = match self.store.get(&entry_key(key.as_bytes()))? {
            Some(value) => Some(value.to_vec()),
            None => self.tables.get(key.as_bytes())?,
        };
        match found.as_deref() {
            None | Some([]) => Ok(None),
            Some(value) => Entry::decode(value).map(Some),
        }
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], Entry) -> bool) -> Result<()> {
        let start = Key::of_name(dir, after);
        let start = start.as_bytes();
        let stored = Stored { store: &*self.store, dir, after: start.to_vec(), page: Vec::new().into_iter() };
        let mut sources: Vec<Box<dyn Source + '_>> = vec![Box::new(stored)];
        sources.extend(self.tables.sources_after(start));
        list_merged(Merge::new(sources)?, dir, visit)
    }

    fn apply(&mut self, changes: Vec<KeyChange>) -> Result<()> {
        if self.entries >= ENTRIES_MAX || self.entries_bytes >= ENTRIES_BYTES_MAX {
            self.compact()?;
            self.flush()?;
        }
        let dirs: Vec<u64> = changes.iter().filter_map(|(key, _)| dir_of(key)).collect();
        let (entries, bytes) = (changes.len(), sizes(&changes));
        let mut commit = Commit::with_capacity(changes.len());
        for change in changes {
            put_entry(&mut commit, change);
        }
        self.store.commit(commit)?;
        // A key that is changed again counts twice: the numbers are upper bounds.
        (self.entries, self.entries_bytes) = (self.entries + entries, self.entries_bytes + bytes);
        self.note_changes(dirs);
        Ok(())
    }

    fn new_inode(&mut self) -> Result<u64> {
        if self.inodes.is_empty() {
            let mut description = self.description.clone();
            let start = description.next_inode;
            description.next_inode += INODES_RESERVED;
            self.store_description(description, Commit::new())?;
            self.inodes = start..start + INODES_RESERVED;
        }
        self.inodes.next().ok_or_else(|| Error::new(ErrorKind::NoSpace, "reserve inode numbers", ""))
    }

    fn sync(&mut self) -> Result<()> {
        self.store.sync()
    }
}

/// The entries of a directory in the key-value store, a page at a time.
struct Stored<'a> {
    store: &'a dyn KeyValue,
    dir: u64,
    after: Vec<u8>,
    page: std::vec::IntoIter<(Vec<u8>, Vec<u8>)>,
}

impl Source for Stored<'_> {
    fn next(&mut self, into_key: &mut Vec<u8>, into_value: &mut Vec<u8>) -> Result<bool> {
        if self.page.len() == 0 {
            let mut page = Vec::new();
            let start = entry_key(&self.after);
            let range = KeyRange::between(Bound::Excluded(&start), Bound::Unbounded);
            self.store.scan(&range, &mut |key, value| {
                let is_here = key[0] == ENTRY && split(&key[1..]).is_some_and(|(dir, _)| dir == self.dir);
                if is_here {
                    page.push((key[1..].to_vec(), value.to_vec()));
                }
                is_here && page.len() < PAGE_ENTRIES
            })?;
            if let Some((last, _)) = page.last() {
                self.after.clone_from(last);
            }
            self.page = page.into_iter();
        }
        let Some((key, value)) = self.page.next() else { return Ok(false) };
        (*into_key, *into_value) = (key, value);
        Ok(true)
    }
}

fn open_table(files: &dyn TableFiles, cache: &Arc<BlockCache>, table: &TableRef) -> Result<Arc<Table>> {
    let file = files.open(table.number)?;
    Ok(Arc::new(Table::open(file, Some(table.checksum), cache.clone())?))
}

fn put_entry(commit: &mut Commit, (key, entry): KeyChange) {
    commit.put(&entry_key(key.as_bytes()), &entry.map_or(Vec::new(), |entry| entry.encode()));
}

fn sizes(changes: &[KeyChange]) -> usize {
    let size =
        |(key, entry): &KeyChange| key.as_bytes().len() + entry.as_ref().map_or(0, Entry::content_bytes);
    changes.iter().map(size).sum()
}

fn dir_of(key: &Key) -> Option<u64> {
    split(key.as_bytes()).map(|(dir, _)| dir)
}

fn entry_key(key: &[u8]) -> Vec<u8> {
    [&[ENTRY], key].concat()
}

fn batch_key(number: u64) -> [u8; 9] {
    let mut key = [BATCH; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("a record has no value that postcard refuses")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(damaged("a record of the name space")),
    }
}
