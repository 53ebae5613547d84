//! Writes a file of the operation log.

use std::fs::File;

use quell_vfs::Result;

use super::block::OperationBlock;
use super::format::{ENTRIES_BYTES, HEADER};
use crate::files::TableFiles;
use crate::table::{BlockFile, TableSummary};

/// A file of the log that is being written.
#[derive(Debug)]
pub struct OperationsWriter {
    file: BlockFile,
    block: OperationBlock,
    encoded: Vec<u8>,
}

impl OperationsWriter {
    /// Begins the log of the batch with this number in an empty file.
    pub fn new(file: File, batch: u64) -> OperationsWriter {
        let file = BlockFile::new(file, HEADER);
        OperationsWriter { file, block: OperationBlock::new(batch), encoded: Vec::new() }
    }

    /// Adds the operation that turns the snapshot's entry for a key into this one. An empty value
    /// is a removal.
    ///
    /// # Errors
    /// `InvalidInput` if the key is not greater than the last one, or if the key or the value is
    /// too long; the errors of write(2).
    pub fn add(&mut self, key: &[u8], value: &[u8], before: Option<&[u8]>) -> Result<()> {
        self.file.count("add to a log", self.block.last_key(), key, value)?;
        let bytes = self.block.entries_bytes();
        if bytes > 0 && bytes + key.len() + value.len() > ENTRIES_BYTES {
            self.end_block()?;
        }
        self.block.add(key, value, before)
    }

    /// Returns the approximate size of the log so far, in bytes.
    pub fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Writes the rest of the log, and makes it survive a power failure. `number` is the number of
    /// the file in `files`.
    ///
    /// # Errors
    /// The errors of write(2) and fsync(2).
    pub fn finish_synced(mut self, files: &dyn TableFiles, number: u64) -> Result<TableSummary> {
        let summary = self.write_rest()?;
        self.file.sync(files, number)?;
        Ok(summary)
    }

    /// Writes the rest of the log.
    ///
    /// # Errors
    /// The errors of write(2).
    pub fn finish(mut self) -> Result<TableSummary> {
        self.write_rest()
    }

    fn write_rest(&mut self) -> Result<TableSummary> {
        if self.block.entries_bytes() > 0 {
            self.end_block()?;
        }
        self.file.finish(&[], self.block.last_key())
    }

    fn end_block(&mut self) -> Result<()> {
        self.encoded.clear();
        self.block.finish(&mut self.encoded);
        self.file.add_block(&self.encoded, self.block.last_key())
    }
}
