//! A snapshot whose tables this process may not open. The server returns the entries that the user
//! of the batch may read. A directory is requested when it is used for the first time. Its entries
//! are kept, because a snapshot does not change.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use quell_threads::{read_lock, write_lock};
use quell_vfs::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::entry::{Entry, LINKED, damaged};
use crate::files::TableFiles;
use crate::key::split;
use crate::memtable::MemTable;
use crate::merge::{InMemory, Source};
use crate::readable::{EncodedEntry, EntriesOf, ListedEntries};
use crate::table::BlockCache;
use crate::table_set::TableSet;

/// The memory for entries that are not in a table yet, in bytes.
const MEMORY_BYTES_MAX: usize = 32 << 20;
/// The number of the first table. The name of its file is removed before the first write, so no
/// file remains. Processes of one node use different numbers.
const FIRST_TABLE: u64 = 1 << 56;
const TABLES_OF_PROCESS: u64 = 1 << 20;

/// The server of a snapshot.
pub trait SnapshotServer: Send + Sync {
    /// Returns entries of a directory that the user of the batch may read.
    ///
    /// # Errors
    /// The errors of requests. They are not kept: a later request can succeed.
    fn entries(&self, dir: u64, of: EntriesOf) -> Result<ListedEntries>;
}

/// A snapshot that is read by requests to the server.
pub(crate) struct ServedSnapshot {
    server: Arc<dyn SnapshotServer>,
    files: Arc<dyn TableFiles>,
    cache: Arc<BlockCache>,
    known: RwLock<KnownEntries>,
}

/// The entries that the server has returned. An empty value states that a key has no entry.
#[derive(Default)]
pub(crate) struct KnownEntries {
    memory: MemTable,
    tables: TableSet,
    dirs: HashMap<u64, KnownDir>,
    /// The hashes of the keys of entries that lack parts.
    reduced: HashSet<u64>,
}

/// A directory that was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KnownDir {
    /// All names are known.
    Whole,
    /// The user may look names up, but may not list them.
    Unlisted,
}

impl ServedSnapshot {
    pub(crate) fn new(
        server: Arc<dyn SnapshotServer>,
        files: Arc<dyn TableFiles>,
        cache: Arc<BlockCache>,
    ) -> ServedSnapshot {
        ServedSnapshot { server, files, cache, known: RwLock::default() }
    }

    /// Returns the value of a key. `None` if there is none.
    ///
    /// # Errors
    /// `PermissionDenied` if the user may not read the entry; as for [`SnapshotServer::entries`];
    /// the errors of tables.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some((dir, name)) = split(key) else { return Ok(None) };
        let found = match self.known(key, dir, name)? {
            Some(value) => value,
            None => {
                match name {
                    [] => self.request_entry(key, dir, EntriesOf::Inode)?,
                    name if self.request_dir(dir)? == KnownDir::Unlisted => {
                        self.request_entry(key, dir, EntriesOf::Name(name.to_vec()))?;
                    }
                    _ => {}
                }
                self.known(key, dir, name)?.unwrap_or_default()
            }
        };
        Ok(Some(found).filter(|value| !value.is_empty()))
    }

    /// Returns whether a directory was requested already.
    pub(crate) fn is_known(&self, dir: u64) -> bool {
        read_lock(&self.known).dirs.contains_key(&dir)
    }

    /// Returns the known value of a key, which is empty if the key has no entry. `None` if it
    /// must be requested.
    fn known(&self, key: &[u8], dir: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let known = read_lock(&self.known);
        // The inode of a file with several names is returned with each of the names.
        let is_absent = dir == LINKED || !name.is_empty() && known.dirs.get(&dir) == Some(&KnownDir::Whole);
        Ok(known.get(key)?.or_else(|| is_absent.then(Vec::new)))
    }

    /// Returns the known entries, with all names of a directory. No entry can be added until the
    /// returned value is dropped.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(crate) fn with_dir(&self, dir: u64) -> Result<RwLockReadGuard<'_, KnownEntries>> {
        match self.request_dir(dir)? {
            KnownDir::Whole => Ok(read_lock(&self.known)),
            KnownDir::Unlisted => Err(denied("list")),
        }
    }

    /// Returns whether the entry of one of the keys lacks parts. The hashes of two keys are equal
    /// with a probability of 2^-64, and then a change is refused that could be made.
    pub(crate) fn has_reduced<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>) -> bool {
        let known = read_lock(&self.known);
        !known.reduced.is_empty() && keys.any(|key| known.reduced.contains(&xxh3_64(key)))
    }

    /// Requests one entry, and records that it does not exist if the server does not return it.
    fn request_entry(&self, key: &[u8], dir: u64, of: EntriesOf) -> Result<()> {
        let listed = match self.server.entries(dir, of)? {
            ListedEntries::Last(entries) => entries,
            ListedEntries::Missing => Vec::new(),
            ListedEntries::Denied => return Err(denied("look up names in")),
            ListedEntries::Part(_) | ListedEntries::NotListable => return Err(unexpected()),
        };
        let mut known = write_lock(&self.known);
        self.add(&mut known, dir, &listed)?;
        match known.get(key)? {
            Some(_) => Ok(()),
            None => self.add_one(&mut known, key, b""),
        }
    }

    /// Requests all names of a directory, unless they are known. No lock is held meanwhile: if
    /// another thread does the same, it adds the same entries.
    pub(crate) fn request_dir(&self, dir: u64) -> Result<KnownDir> {
        if let Some(known) = read_lock(&self.known).dirs.get(&dir) {
            return Ok(*known);
        }
        let mut after = Vec::new();
        let state = loop {
            match self.server.entries(dir, EntriesOf::NamesAfter(after.clone()))? {
                ListedEntries::Last(entries) => {
                    self.add(&mut write_lock(&self.known), dir, &entries)?;
                    break KnownDir::Whole;
                }
                ListedEntries::Part(entries) => {
                    let last = self.add(&mut write_lock(&self.known), dir, &entries)?;
                    after = last.filter(|last| *last > after).ok_or_else(unexpected)?;
                }
                ListedEntries::Missing if after.is_empty() => break KnownDir::Whole,
                ListedEntries::NotListable if after.is_empty() => break KnownDir::Unlisted,
                ListedEntries::Denied => return Err(denied("look up names in")),
                ListedEntries::Missing | ListedEntries::NotListable => return Err(unexpected()),
            }
        };
        write_lock(&self.known).dirs.insert(dir, state);
        Ok(state)
    }

    /// Adds entries that the server has returned for a directory, and returns the last name in the
    /// directory.
    fn add(&self, known: &mut KnownEntries, dir: u64, entries: &[EncodedEntry]) -> Result<Option<Vec<u8>>> {
        let mut last = None;
        for EncodedEntry { key, entry: value, is_reduced } in entries {
            match split(key) {
                Some((found, name)) if found == dir && !name.is_empty() => last = Some(name.to_vec()),
                Some((found, name)) if found == LINKED || name.is_empty() => {}
                _ => return Err(unexpected()),
            }
            Entry::decode(value)?;
            if *is_reduced {
                known.reduced.insert(xxh3_64(key));
            }
            self.add_one(known, key, value)?;
        }
        Ok(last)
    }

    fn add_one(&self, known: &mut KnownEntries, key: &[u8], value: &[u8]) -> Result<()> {
        if known.memory.memory_bytes() > MEMORY_BYTES_MAX || !known.memory.has_space(key, value) {
            self.spill(known)?;
        }
        known.memory.put(key, value);
        Ok(())
    }

    /// Writes the entries in memory as a table.
    fn spill(&self, known: &mut KnownEntries) -> Result<()> {
        let process = u64::from(std::process::id());
        let number = FIRST_TABLE + process * TABLES_OF_PROCESS + known.tables.len() as u64;
        let file = self.files.create(number)?;
        self.files.remove(number)?;
        let (table, _) = known.memory.write(file, &self.cache)?;
        known.tables.add(table);
        known.memory.clear();
        Ok(())
    }
}

impl KnownEntries {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.memory.get(key) {
            Some(value) => Ok(Some(value.to_vec())),
            None => self.tables.get(key),
        }
    }

    /// Returns the known entries of a directory after a key, the newest source first.
    pub(crate) fn sources_after<'k>(&'k self, dir: u64, key: &[u8]) -> Vec<Box<dyn Source + 'k>> {
        let memory: Box<dyn Source> = Box::new(InMemory(self.memory.dir_after(dir, key)));
        std::iter::once(memory).chain(self.tables.sources_after(key)).collect()
    }
}

fn denied(operation: &'static str) -> Error {
    Error::new(ErrorKind::PermissionDenied, operation, "a directory")
}

fn unexpected() -> Error {
    damaged("a reply of the server")
}
