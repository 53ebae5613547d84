//! Writes a file of blocks: a header, the blocks, a filter and the footer. Tables and the operation
//! log of a batch have this layout.

use std::fs::File;
use std::io::Write;

use quell_vfs::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::block::{BLOCK_BYTES_MAX, KEY_BYTES_MAX, compress};
use super::footer::{BlockInfo, Footer, HEADER_BYTES};
use crate::files::TableFiles;

/// Blocks are written to the file in pieces of this many bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// A file of blocks that is being written.
#[derive(Debug)]
pub(crate) struct BlockFile {
    file: File,
    buffer: Vec<u8>,
    written_bytes: u64,
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

impl BlockFile {
    /// Begins with a header in an empty file.
    pub(crate) fn new(file: File, header: [u8; HEADER_BYTES]) -> BlockFile {
        let footer = Footer {
            entries: 0,
            first_key: Vec::new(),
            filter_bytes: 0,
            filter_checksum: 0,
            blocks: Vec::new(),
        };
        let mut buffer = Vec::with_capacity(BUFFER_BYTES + BLOCK_BYTES_MAX);
        buffer.extend_from_slice(&header);
        BlockFile { file, buffer, written_bytes: 0, footer }
    }

    /// Checks and counts an entry of the next block. `operation` is that of the error.
    ///
    /// # Errors
    /// `InvalidInput` if the key is not greater than the last one, or if the key or the value is
    /// too long.
    pub(crate) fn count(
        &mut self,
        operation: &'static str,
        last_key: &[u8],
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let ascends = self.footer.entries == 0 || key > last_key;
        if !ascends || key.len() > KEY_BYTES_MAX || value.len() > BLOCK_BYTES_MAX / 2 {
            return Err(Error::new(ErrorKind::InvalidInput, operation, key));
        }
        if self.footer.entries == 0 {
            self.footer.first_key = key.to_vec();
        }
        self.footer.entries += 1;
        Ok(())
    }

    /// Returns the size of the file so far, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.written_bytes + self.buffer.len() as u64
    }

    /// Compresses a block, and adds it.
    ///
    /// # Errors
    /// The errors of write(2).
    pub(crate) fn add_block(&mut self, block: &[u8], last_key: &[u8]) -> Result<()> {
        let start = self.buffer.len();
        compress(block, &mut self.buffer);
        let stored = &self.buffer[start..];
        self.footer.blocks.push(BlockInfo {
            last_key: last_key.to_vec(),
            stored_bytes: stored.len() as u32,
            raw_bytes: block.len() as u32,
            checksum: xxh3_64(stored),
        });
        match self.buffer.len() >= BUFFER_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Writes the filter and the footer.
    ///
    /// # Errors
    /// The errors of write(2).
    pub(crate) fn finish(&mut self, filter: &[u8], last_key: &[u8]) -> Result<TableSummary> {
        self.footer.filter_bytes = filter.len() as u64;
        self.footer.filter_checksum = xxh3_64(filter);
        let (footer, checksum) = self.footer.encode();
        self.buffer.extend_from_slice(filter);
        self.buffer.extend_from_slice(&footer);
        self.flush()?;
        Ok(TableSummary {
            bytes: self.written_bytes,
            entries: self.footer.entries,
            first_key: std::mem::take(&mut self.footer.first_key),
            last_key: last_key.to_vec(),
            checksum,
        })
    }

    /// Makes the file survive a power failure. `number` is the number of the file in `files`.
    ///
    /// # Errors
    /// The errors of fsync(2).
    pub(crate) fn sync(&self, files: &dyn TableFiles, number: u64) -> Result<()> {
        files.sync_content(number, &self.file)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.buffer).map_err(|cause| Error::from_io(cause, "write a table", ""))?;
        self.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}
