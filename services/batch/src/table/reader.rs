//! Reads a table.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use quell_vfs::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::block::{BlockCursor, decompress};
use super::cache::BlockCache;
use super::filter;
use super::footer::{BlockInfo, Footer, HEADER, HEADER_BYTES, TRAILER_BYTES};
use crate::entry::damaged;

/// The largest filter that is read, in bytes. A table with a larger filter is read without the
/// filter.
const FILTER_BYTES_MAX: u64 = 256 << 20;

/// Makes the entries of a block from the decompressed block of the file.
pub(crate) trait BlockDecoder: std::fmt::Debug + Send + Sync {
    /// Returns the block in the form that a table has.
    ///
    /// # Errors
    /// `Damaged` if the bytes do not have their format, or the block would be larger than
    /// [`BLOCK_BYTES_MAX`](super::BLOCK_BYTES_MAX) and one entry.
    fn decode(&self, stored: &[u8]) -> Result<Vec<u8>>;
}

/// An open table. Its file is not trusted: everything that is read from it is checked against
/// checksums and limits, and a change of the file makes reads fail.
#[derive(Debug)]
pub struct Table {
    file: File,
    footer: Footer,
    checksum: u64,
    footer_bytes: u64,
    /// The offset of each block in the file.
    offsets: Vec<u64>,
    filter: OnceLock<Vec<u8>>,
    /// Decodes the decompressed blocks of a file that stores them in another form.
    decoder: Option<Box<dyn BlockDecoder>>,
    /// Distinguishes the tables of a process in the cache.
    number: u64,
    cache: Arc<BlockCache>,
}

impl Table {
    /// Opens the table in `file`.
    ///
    /// # Errors
    /// `Damaged` if it is not a table, or its footer does not have `checksum`; the errors of
    /// read(2).
    pub fn open(file: File, checksum: Option<u64>, cache: Arc<BlockCache>) -> Result<Table> {
        Table::open_file(file, HEADER, None, checksum, cache)
    }

    /// Opens a file of blocks that `decoder` decodes, as the table of these entries.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub(crate) fn open_encoded(
        file: File,
        header: [u8; HEADER_BYTES],
        decoder: Box<dyn BlockDecoder>,
        checksum: Option<u64>,
        cache: Arc<BlockCache>,
    ) -> Result<Table> {
        Table::open_file(file, header, Some(decoder), checksum, cache)
    }

    fn open_file(
        file: File,
        expected_header: [u8; HEADER_BYTES],
        decoder: Option<Box<dyn BlockDecoder>>,
        checksum: Option<u64>,
        cache: Arc<BlockCache>,
    ) -> Result<Table> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let failed = |cause| Error::from_io(cause, "read a table", "");
        let file_bytes = file.metadata().map_err(failed)?.len();
        let mut trailer = [0; TRAILER_BYTES as usize];
        let Some(trailer_at) = file_bytes.checked_sub(TRAILER_BYTES + HEADER_BYTES as u64) else {
            return Err(damaged("a table"));
        };
        let mut header = [0; HEADER_BYTES];
        read_exact(&file, &mut header, 0)?;
        if header != expected_header {
            return Err(damaged("the beginning of a table"));
        }
        read_exact(&file, &mut trailer, trailer_at + HEADER_BYTES as u64)?;
        let (footer_bytes, found) = Footer::length(&trailer, file_bytes)?;
        if checksum.is_some_and(|checksum| checksum != found) {
            let source = Some("the table is not the one that the image names".into());
            return Err(Error { source, ..Error::new(ErrorKind::Damaged, "open a table", "") });
        }
        let mut bytes = vec![0; footer_bytes];
        read_exact(&file, &mut bytes, file_bytes - TRAILER_BYTES - footer_bytes as u64)?;
        let footer = Footer::decode(&bytes, found, file_bytes)?;
        let offsets = footer.blocks.iter().scan(HEADER_BYTES as u64, |end, block| {
            let start = *end;
            *end += u64::from(block.stored_bytes);
            Some(start)
        });
        let offsets = offsets.collect();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(Table {
            file,
            footer,
            checksum: found,
            footer_bytes: footer_bytes as u64,
            offsets,
            filter: OnceLock::new(),
            decoder,
            number,
            cache,
        })
    }

    /// Returns the number of entries, including removals.
    pub fn len(&self) -> u64 {
        self.footer.entries
    }

    /// Returns the checksum of the footer, which has the checksums of all other parts.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Returns the length of the footer in the file, in bytes.
    pub(crate) fn footer_bytes(&self) -> u64 {
        self.footer_bytes
    }

    /// Returns the first and the last key.
    pub(crate) fn key_range(&self) -> (&[u8], &[u8]) {
        let first = &*self.footer.first_key;
        (first, self.footer.blocks.last().map_or(first, |block| &*block.last_key))
    }

    /// Returns whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.footer.entries == 0
    }

    /// Returns whether `key` is between the first and the last key.
    fn is_in_range(&self, key: &[u8]) -> bool {
        let last = self.footer.blocks.last().map(|block| &*block.last_key);
        key >= &*self.footer.first_key && last.is_some_and(|last| key <= last)
    }

    /// Returns the value of a key, or `None` if the table has none. An empty value is a removal.
    ///
    /// # Errors
    /// `Damaged`; the errors of read(2).
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(block) = self.block_of(key)? else { return Ok(None) };
        let mut cursor = BlockCursor::default();
        while let Some((found, value)) = cursor.next(&block)? {
            match found.cmp(key) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(Some(value.to_vec())),
                std::cmp::Ordering::Greater => break,
            }
        }
        Ok(None)
    }

    /// Returns the only block that can have the entry of a key. `None` if the table does not have
    /// the key.
    ///
    /// # Errors
    /// `Damaged`; the errors of read(2).
    pub(super) fn block_of(&self, key: &[u8]) -> Result<Option<Arc<Vec<u8>>>> {
        if !self.is_in_range(key) || !filter::may_contain(self.filter()?, filter::hash(key)) {
            return Ok(None);
        }
        let index = self.footer.blocks.partition_point(|block| &*block.last_key < key);
        match index == self.footer.blocks.len() {
            true => Ok(None),
            false => self.block(index).map(Some),
        }
    }

    /// Returns the entries after `after`, in the order of their keys.
    pub fn entries_after(self: &Arc<Table>, after: &[u8]) -> TableEntries {
        let block = self.footer.blocks.partition_point(|block| &*block.last_key <= after);
        TableEntries { table: self.clone(), next_block: block, current: None, after: Some(after.to_vec()) }
    }

    /// Returns all entries, in the order of their keys.
    pub fn entries(self: &Arc<Table>) -> TableEntries {
        TableEntries { table: self.clone(), next_block: 0, current: None, after: None }
    }

    /// Reads the filter, which look-ups need.
    ///
    /// # Errors
    /// `Damaged`; the errors of read(2).
    pub(crate) fn check_filter(&self) -> Result<()> {
        self.filter().map(drop)
    }

    fn filter(&self) -> Result<&[u8]> {
        if let Some(filter) = self.filter.get() {
            return Ok(filter);
        }
        let bytes = self.footer.filter_bytes;
        if bytes > FILTER_BYTES_MAX {
            return Ok(self.filter.get_or_init(Vec::new));
        }
        let mut filter = vec![0; bytes as usize];
        let last = self.footer.blocks.last().zip(self.offsets.last());
        let at = last.map_or(HEADER_BYTES as u64, |(block, at)| at + u64::from(block.stored_bytes));
        read_exact(&self.file, &mut filter, at)?;
        if xxh3_64(&filter) != self.footer.filter_checksum {
            return Err(damaged("the filter of a table"));
        }
        Ok(self.filter.get_or_init(|| filter))
    }

    fn block(&self, index: usize) -> Result<Arc<Vec<u8>>> {
        self.cache.get(self.number, index, || self.read_block(index))
    }

    /// Reads the whole file, and compares the blocks and the filter with their checksums.
    ///
    /// # Errors
    /// `Damaged`; the errors of read(2).
    pub(crate) fn check_file(&self) -> Result<()> {
        (0..self.footer.blocks.len()).try_for_each(|index| self.read_stored(index).map(drop))?;
        self.check_filter()
    }

    fn read_block(&self, index: usize) -> Result<Vec<u8>> {
        let block = self.read_stored(index)?;
        match &self.decoder {
            Some(decoder) => decoder.decode(&block),
            None => Ok(block),
        }
    }

    /// Returns a block of the file, decompressed but not decoded.
    fn read_stored(&self, index: usize) -> Result<Vec<u8>> {
        let BlockInfo { stored_bytes, raw_bytes, checksum, .. } = self.footer.blocks[index];
        let mut stored = vec![0; stored_bytes as usize];
        read_exact(&self.file, &mut stored, self.offsets[index])?;
        if xxh3_64(&stored) != checksum {
            return Err(damaged("a block of a table"));
        }
        decompress(stored, raw_bytes as usize)
    }
}

/// The entries of a table, one after the other.
#[derive(Debug)]
pub struct TableEntries {
    table: Arc<Table>,
    next_block: usize,
    current: Option<(Vec<u8>, BlockCursor)>,
    /// Entries up to this key are skipped.
    after: Option<Vec<u8>>,
}

impl TableEntries {
    /// Passes the next entry to `visit`, and returns its result. `None` at the end of the table.
    ///
    /// # Errors
    /// `Damaged`; the errors of read(2).
    pub fn next<T>(&mut self, visit: impl FnOnce(&[u8], &[u8]) -> T) -> Result<Option<T>> {
        loop {
            let Some((block, cursor)) = &mut self.current else {
                if self.next_block == self.table.footer.blocks.len() {
                    return Ok(None);
                }
                // Blocks that are read in order are not kept in the cache.
                let block = self.table.read_block(self.next_block)?;
                self.next_block += 1;
                self.current = Some((block, BlockCursor::default()));
                continue;
            };
            match cursor.next(block)? {
                None => self.current = None,
                Some((key, value)) => {
                    if self.after.as_deref().is_some_and(|after| key <= after) {
                        continue;
                    }
                    self.after = None;
                    return Ok(Some(visit(key, value)));
                }
            }
        }
    }
}

fn read_exact(file: &File, into: &mut [u8], at: u64) -> Result<()> {
    file.read_exact_at(into, at).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::UnexpectedEof => damaged("a table"),
        _ => Error::from_io(cause, "read a table", ""),
    })
}
