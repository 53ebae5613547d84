//! The parts of a table that describe its blocks.

use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::entry::damaged;

/// The length of the header of a file of blocks.
pub(crate) const HEADER_BYTES: usize = 16;
/// The first bytes of a table, with the version of the format.
pub(super) const HEADER: [u8; HEADER_BYTES] = *b"QUELL TABLE 1\0\0\0";
/// The length of the last part of a table.
pub(super) const TRAILER_BYTES: u64 = 32;
/// The largest footer, in bytes.
const FOOTER_BYTES_MAX: u64 = 64 << 20;
/// The last bytes of a table.
const TRAILER_MAGIC: [u8; 8] = *b"TABLEEND";

/// The description of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Footer {
    /// The number of entries, including removals.
    pub(super) entries: u64,
    /// The first key; empty if there are no entries.
    #[serde(with = "serde_bytes")]
    pub(super) first_key: Vec<u8>,
    /// The number of bytes of the filter, which follows the blocks.
    pub(super) filter_bytes: u64,
    /// The XXH3 checksum of the filter.
    pub(super) filter_checksum: u64,
    /// The blocks, one after the other behind the header.
    pub(super) blocks: Vec<BlockInfo>,
}

/// The description of a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlockInfo {
    /// The last key.
    #[serde(with = "serde_bytes")]
    pub(super) last_key: Vec<u8>,
    /// The bytes in the file.
    pub(super) stored_bytes: u32,
    /// The bytes before compression.
    pub(super) raw_bytes: u32,
    /// The XXH3 checksum of the bytes in the file.
    pub(super) checksum: u64,
}

impl Footer {
    /// Returns the footer and the trailer.
    pub(super) fn encode(&self) -> (Vec<u8>, u64) {
        let mut bytes = postcard::to_stdvec(self).expect("a footer has no value that postcard refuses");
        let (length, checksum) = (bytes.len() as u64, xxh3_64(&bytes));
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&self.entries.to_le_bytes());
        bytes.extend_from_slice(&TRAILER_MAGIC);
        (bytes, checksum)
    }

    /// Returns the length and the checksum of the footer from a trailer.
    ///
    /// # Errors
    /// `Damaged` if `trailer` is not the trailer of a table of `file_bytes`.
    pub(super) fn length(trailer: &[u8; TRAILER_BYTES as usize], file_bytes: u64) -> Result<(usize, u64)> {
        let number = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().expect("8 bytes"));
        let (length, checksum) = (number(0), number(8));
        let bytes_max = file_bytes.saturating_sub(TRAILER_BYTES + HEADER_BYTES as u64);
        if trailer[24..] != TRAILER_MAGIC || length > bytes_max || length > FOOTER_BYTES_MAX {
            return Err(damaged("the end of a table"));
        }
        Ok((length as usize, checksum))
    }

    /// Decodes a footer, and checks that its parts fill a file of `file_bytes`.
    ///
    /// # Errors
    /// `Damaged` if they do not, or the footer does not have its checksum or its format.
    pub(super) fn decode(bytes: &[u8], checksum: u64, file_bytes: u64) -> Result<Footer> {
        let broken = || damaged("the footer of a table");
        if xxh3_64(bytes) != checksum {
            let source = Some("the footer of a table does not have its checksum".into());
            return Err(Error { source, ..Error::new(ErrorKind::Damaged, "read the name space", "") });
        }
        let footer = match postcard::take_from_bytes::<Footer>(bytes) {
            Ok((footer, [])) => footer,
            _ => return Err(broken()),
        };
        let mut end = HEADER_BYTES as u64;
        for block in &footer.blocks {
            let is_bounded = block.raw_bytes as usize <= super::block::BLOCK_BYTES_MAX;
            if !is_bounded || block.stored_bytes > block.raw_bytes {
                return Err(broken());
            }
            end += u64::from(block.stored_bytes);
        }
        let parts = [footer.filter_bytes, bytes.len() as u64, TRAILER_BYTES];
        let end = parts.iter().try_fold(end, |end, part| end.checked_add(*part));
        let ascends = footer.blocks.windows(2).all(|pair| pair[0].last_key < pair[1].last_key);
        match end == Some(file_bytes) && ascends {
            true => Ok(footer),
            false => Err(broken()),
        }
    }
}

/// Corrects the checksums of the blocks, the filter and the footer of a table.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn reseal(table: &mut Vec<u8>) {
    let Some(end) = table.len().checked_sub(TRAILER_BYTES as usize) else { return };
    let trailer = table[end..].first_chunk().expect("it has this length");
    let Ok((length, _)) = Footer::length(trailer, table.len() as u64) else { return };
    let footer_at = end - length;
    if let Ok((mut footer, [])) = postcard::take_from_bytes::<Footer>(&table[footer_at..end]) {
        let mut at = HEADER_BYTES;
        for block in &mut footer.blocks {
            let block_end = at.saturating_add(block.stored_bytes as usize).min(footer_at);
            block.checksum = xxh3_64(&table[at..block_end]);
            at = block_end;
        }
        let filter_end = at.saturating_add(usize::try_from(footer.filter_bytes).unwrap_or(usize::MAX));
        footer.filter_checksum = xxh3_64(&table[at..filter_end.min(footer_at)]);
        table.truncate(footer_at);
        table.extend_from_slice(&footer.encode().0);
    } else {
        let checksum = xxh3_64(&table[footer_at..end]);
        table[end + 8..end + 16].copy_from_slice(&checksum.to_le_bytes());
    }
}
