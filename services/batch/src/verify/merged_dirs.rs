//! Directories that a part of a batch and an earlier part of it have created at the same name. They
//! become one directory: the directory of the earlier part gets the entries of the later one.
//!
//! The rules for the tables of the later part hold for its own directory. Only the output differs:
//! the keys of the entries have the number of the earlier part's directory. They are collected in
//! memory and written to tables of their own, because they are not in the order of the other keys.

use std::collections::HashMap;
use std::sync::Arc;

use quell_vfs::Result;

use super::output::Output;
use crate::entry::Entry;
use crate::files::TableFiles;
use crate::key::Key;
use crate::memtable::MemTable;
use crate::table_ref::{TableRef, first_merged_of_batch};

/// The memory for entries that are not in a table yet, in bytes.
const MEMORY_BYTES_MAX: usize = 64 << 20;

/// The directories of a part that are merged with directories of earlier parts, and their entries.
pub(super) struct MergedDirs {
    /// The directory of an earlier part for each directory of this one.
    targets: HashMap<u64, u64>,
    /// The directory of this part for each of these directories of earlier parts.
    sources: HashMap<u64, u64>,
    memory: MemTable,
    out: Output,
}

impl MergedDirs {
    pub(super) fn new(files: Arc<dyn TableFiles>, part: u64) -> MergedDirs {
        MergedDirs {
            targets: HashMap::new(),
            sources: HashMap::new(),
            memory: MemTable::default(),
            out: Output::new(files, first_merged_of_batch(part)),
        }
    }

    /// Returns the directory of an earlier part with which a directory is merged.
    pub(super) fn target_of(&self, dir: u64) -> Option<u64> {
        self.targets.get(&dir).copied()
    }

    /// Returns the directory that has the entries of `dir` in the image.
    pub(super) fn in_image(&self, dir: u64) -> u64 {
        self.target_of(dir).unwrap_or(dir)
    }

    /// Returns the directory of this part that is merged with `target`.
    pub(super) fn source_of(&self, target: u64) -> Option<u64> {
        self.sources.get(&target).copied()
    }

    /// Records that the directory `source` of this part is merged with `target`.
    pub(super) fn insert(&mut self, source: u64, target: u64) {
        self.targets.insert(source, target);
        self.sources.insert(target, source);
    }

    /// Adds an entry of a merged directory.
    ///
    /// # Errors
    /// The errors of files.
    pub(super) fn add(&mut self, key: &Key, entry: &Entry) -> Result<()> {
        let value = entry.encode();
        let fits = self.memory.has_space(key.as_bytes(), &value);
        if !fits || self.memory.memory_bytes() > MEMORY_BYTES_MAX {
            self.spill()?;
        }
        self.memory.put(key.as_bytes(), &value);
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        for (key, value) in self.memory.entries() {
            self.out.add(key, value)?;
        }
        self.memory.clear();
        self.out.end_table()
    }

    /// Removes the tables.
    pub(super) fn discard(self) -> Result<()> {
        self.out.discard()
    }

    /// Returns the tables. Each key is in one of them.
    pub(super) fn finish(&mut self) -> Result<Vec<TableRef>> {
        self.spill()?;
        self.out.finish()
    }
}
