//! Writes a table.

use std::fs::File;
use std::io::Write;

use quell_vfs::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::block::{BLOCK_BYTES, BLOCK_BYTES_MAX, BlockBuilder, KEY_BYTES_MAX};
use super::filter;
use super::footer::{BlockInfo, Footer, HEADER};
use crate::files::TableFiles;

/// Blocks are written to the file in pieces of this many bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// A table that is being written.
#[derive(Debug)]
pub struct TableWriter {
    file: File,
    buffer: Vec<u8>,
    written_bytes: u64,
    block: BlockBuilder,
    hashes: Vec<u64>,
    footer: Footer,
}

/// The description of a table that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSummary {
    /// The size of the file, in bytes.
    pub bytes: u64,
    /// The number of entries, including removals.
    pub entries: u64,
    /// The first key.
    pub first_key: Vec<u8>,
    /// The last key.
    pub last_key: Vec<u8>,
    /// The checksum of the footer, which has the checksums of all other parts.
    pub checksum: u64,
}

impl TableWriter {
    /// Begins a table in an empty file.
    pub fn new(file: File) -> TableWriter {
        let footer = Footer {
            entries: 0,
            first_key: Vec::new(),
            filter_bytes: 0,
            filter_checksum: 0,
            blocks: Vec::new(),
        };
        let mut buffer = Vec::with_capacity(BUFFER_BYTES + BLOCK_BYTES_MAX);
        buffer.extend_from_slice(&HEADER);
        TableWriter {
            file,
            buffer,
            written_bytes: 0,
            block: BlockBuilder::default(),
            hashes: Vec::new(),
            footer,
        }
    }

    /// Adds an entry. An empty value is a removal.
    ///
    /// # Errors
    /// `InvalidInput` if the key is not greater than the last one, or if the key or the value is
    /// too long; the errors of write(2).
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let ascends = self.footer.entries == 0 || key > self.block.last_key();
        if !ascends || key.len() > KEY_BYTES_MAX || value.len() > BLOCK_BYTES_MAX / 2 {
            return Err(Error::new(ErrorKind::InvalidInput, "add to a table", key));
        }
        if self.block.len() > 0 && self.block.len() + key.len() + value.len() > BLOCK_BYTES {
            self.end_block()?;
        }
        if self.footer.entries == 0 {
            self.footer.first_key = key.to_vec();
        }
        self.block.add(key, value);
        self.hashes.push(filter::hash(key));
        self.footer.entries += 1;
        Ok(())
    }

    /// Returns the approximate size of the table so far, in bytes.
    pub fn bytes(&self) -> u64 {
        self.written_bytes + (self.buffer.len() + self.block.len()) as u64
    }

    /// Writes the rest of the table, and makes it survive a power failure. `number` is that of its
    /// file in `files`.
    ///
    /// # Errors
    /// Those of write(2) and fsync(2).
    pub fn finish_synced(mut self, files: &dyn TableFiles, number: u64) -> Result<TableSummary> {
        let summary = self.write_rest()?;
        files.sync_content(number, &self.file)?;
        Ok(summary)
    }

    /// Writes the rest of the table.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn finish(mut self) -> Result<TableSummary> {
        self.write_rest()
    }

    fn write_rest(&mut self) -> Result<TableSummary> {
        if self.block.len() > 0 {
            self.end_block()?;
        }
        let filter = filter::build(&self.hashes);
        self.footer.filter_bytes = filter.len() as u64;
        self.footer.filter_checksum = xxh3_64(&filter);
        let (footer, checksum) = self.footer.encode();
        self.buffer.extend_from_slice(&filter);
        self.buffer.extend_from_slice(&footer);
        self.flush()?;
        Ok(TableSummary {
            bytes: self.written_bytes,
            entries: self.footer.entries,
            first_key: std::mem::take(&mut self.footer.first_key),
            last_key: self.block.last_key().to_vec(),
            checksum,
        })
    }

    fn end_block(&mut self) -> Result<()> {
        let start = self.buffer.len();
        let raw_bytes = self.block.finish(&mut self.buffer) as u32;
        let stored = &self.buffer[start..];
        self.footer.blocks.push(BlockInfo {
            last_key: self.block.last_key().to_vec(),
            stored_bytes: stored.len() as u32,
            raw_bytes,
            checksum: xxh3_64(stored),
        });
        match self.buffer.len() >= BUFFER_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.buffer).map_err(|cause| Error::from_io(cause, "write a table", ""))?;
        self.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}
