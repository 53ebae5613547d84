//! The entries with which a new store begins, in any order: they are sorted in memory and in
//! temporary tables, and merged at the end.

use std::sync::Arc;

use quell_vfs::{Error, Result};

use crate::compaction::merge;
use crate::entry::Entry;
use crate::files::TableFiles;
use crate::key::Key;
use crate::memtable::MemTable;
use crate::merge::{InMemory, Source};
use crate::table::{BlockCache, Table, TableWriter};
use crate::table_ref::TableRef;

/// The entries of a new store.
pub struct InitialEntries {
    files: Arc<dyn TableFiles>,
    memory: MemTable,
    memory_bytes_max: usize,
    /// The temporary tables, the newest first.
    spilled: Vec<Arc<Table>>,
    next_table: u64,
}

impl std::fmt::Debug for InitialEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InitialEntries").field("next_table", &self.next_table).finish_non_exhaustive()
    }
}

/// The tables with which a new store begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialTables {
    pub(crate) tables: Vec<TableRef>,
    pub(crate) next_inode: u64,
    pub(crate) next_table: u64,
}

impl InitialEntries {
    /// Begins without entries. `files` is the directory of the image's tables. Entries of about
    /// `memory_bytes` are kept in memory, normally [`MEMORY_BYTES`](crate::MEMORY_BYTES).
    pub fn new(files: Arc<dyn TableFiles>, memory_bytes: usize) -> InitialEntries {
        let memory = MemTable::default();
        InitialEntries { files, memory, memory_bytes_max: memory_bytes, spilled: Vec::new(), next_table: 1 }
    }

    /// Adds an entry. It replaces an entry that was added before with the same key.
    ///
    /// # Errors
    /// The errors of files.
    pub fn add(&mut self, key: &Key, entry: &Entry) -> Result<()> {
        let value = entry.encode();
        let fits = self.memory.has_space(key.as_bytes(), &value);
        if !fits || self.memory.memory_bytes() > self.memory_bytes_max {
            self.spill()?;
        }
        self.memory.put(key.as_bytes(), &value);
        Ok(())
    }

    /// Writes all entries as tables, and makes them survive a power failure. `next_inode` is
    /// greater than the numbers of all inodes.
    ///
    /// # Errors
    /// The errors of files.
    pub fn finish(mut self, next_inode: u64) -> Result<InitialTables> {
        let first_final = self.next_table;
        let files = self.files.clone();
        let memory: Box<dyn Source + '_> = Box::new(InMemory(self.memory.entries()));
        let spilled = self.spilled.iter().map(|table| Box::new(table.entries()) as Box<dyn Source>);
        let sources = std::iter::once(memory).chain(spilled).collect();
        let next_table = &mut self.next_table;
        let tables = merge(&*files, sources, true, &mut || {
            let number = take(next_table);
            Ok((number, TableWriter::new(files.create(number)?)))
        })?;
        (1..first_final).try_for_each(|number| files.remove(number))?;
        files.sync()?;
        Ok(InitialTables { tables, next_inode, next_table: self.next_table })
    }

    /// Writes the entries in memory as a temporary table.
    fn spill(&mut self) -> Result<()> {
        let file = self.files.create(take(&mut self.next_table))?;
        let for_reading = file.try_clone().map_err(|cause| Error::from_io(cause, "duplicate", ""))?;
        let mut writer = TableWriter::new(file);
        for (key, value) in self.memory.entries() {
            writer.add(key, value)?;
        }
        let summary = writer.finish()?;
        let cache = Arc::new(BlockCache::default());
        self.spilled.insert(0, Arc::new(Table::open(for_reading, Some(summary.checksum), cache)?));
        self.memory.clear();
        Ok(())
    }
}

fn take(next: &mut u64) -> u64 {
    *next += 1;
    *next - 1
}
