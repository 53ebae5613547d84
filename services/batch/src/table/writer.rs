//! Writes a table.

use std::fs::File;

use quell_vfs::Result;

use super::block::{BLOCK_BYTES, BlockBuilder};
use super::block_file::{BlockFile, TableSummary};
use super::filter;
use super::footer::HEADER;
use crate::files::TableFiles;

/// A table that is being written.
#[derive(Debug)]
pub struct TableWriter {
    file: BlockFile,
    block: BlockBuilder,
    hashes: Vec<u64>,
}

impl TableWriter {
    /// Begins a table in an empty file.
    pub fn new(file: File) -> TableWriter {
        let file = BlockFile::new(file, HEADER);
        TableWriter { file, block: BlockBuilder::default(), hashes: Vec::new() }
    }

    /// Adds an entry. An empty value is a removal.
    ///
    /// # Errors
    /// `InvalidInput` if the key is not greater than the last one, or if the key or the value is
    /// too long; the errors of write(2).
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.file.count("add to a table", self.block.last_key(), key, value)?;
        if self.block.len() > 0 && self.block.len() + key.len() + value.len() > BLOCK_BYTES {
            self.end_block()?;
        }
        self.block.add(key, value);
        self.hashes.push(filter::hash(key));
        Ok(())
    }

    /// Returns the approximate size of the table so far, in bytes.
    pub fn bytes(&self) -> u64 {
        self.file.bytes() + self.block.len() as u64
    }

    /// Writes the rest of the table, and makes it survive a power failure. `number` is the number
    /// of the file in `files`.
    ///
    /// # Errors
    /// The errors of write(2) and fsync(2).
    pub fn finish_synced(mut self, files: &dyn TableFiles, number: u64) -> Result<TableSummary> {
        let summary = self.write_rest()?;
        self.file.sync(files, number)?;
        Ok(summary)
    }

    /// Writes the rest of the table.
    ///
    /// # Errors
    /// The errors of write(2).
    pub fn finish(mut self) -> Result<TableSummary> {
        self.write_rest()
    }

    fn write_rest(&mut self) -> Result<TableSummary> {
        if self.block.len() > 0 {
            self.end_block()?;
        }
        self.file.finish(&filter::build(&self.hashes), self.block.last_key())
    }

    fn end_block(&mut self) -> Result<()> {
        self.file.add_block(self.block.bytes(), self.block.last_key())?;
        self.block.clear();
        Ok(())
    }
}
