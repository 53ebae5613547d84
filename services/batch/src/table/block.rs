//! The blocks of a table: adjacent entries, whose keys are stored without the part that they share
//! with the key before, compressed with LZ4.

use quell_vfs::Result;

use crate::entry::damaged;

/// A block is ended when its entries have this many bytes. A larger entry has a block of its own.
pub(super) const BLOCK_BYTES: usize = 8 << 10;
/// The largest block, in bytes, before compression.
pub(crate) const BLOCK_BYTES_MAX: usize = 1 << 20;
/// The largest key, in bytes: the number of a directory, and a name of 255 bytes.
pub(crate) const KEY_BYTES_MAX: usize = 8 + 255;

/// Collects the entries of one block.
#[derive(Debug, Default)]
pub(crate) struct BlockBuilder {
    bytes: Vec<u8>,
    last_key: Vec<u8>,
}

impl BlockBuilder {
    /// Adds an entry. Its key must be greater than the last one.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        let shared = match self.bytes.is_empty() {
            true => 0,
            false => self.last_key.iter().zip(key).take_while(|(a, b)| a == b).count(),
        };
        put_varint(&mut self.bytes, shared);
        put_varint(&mut self.bytes, key.len() - shared);
        put_varint(&mut self.bytes, value.len());
        self.bytes.extend_from_slice(&key[shared..]);
        self.bytes.extend_from_slice(value);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
    }

    /// Returns the size of the entries, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the key that was added last.
    pub(super) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Returns the entries.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the entries.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Begins the next block.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }
}

/// Appends a compressed block to `into`. A block that does not become smaller is stored as it is.
pub(super) fn compress(block: &[u8], into: &mut Vec<u8>) {
    let start = into.len();
    into.resize(start + lz4_flex::block::get_maximum_output_size(block.len()), 0);
    match lz4_flex::block::compress_into(block, &mut into[start..]) {
        Ok(stored) if stored < block.len() => into.truncate(start + stored),
        _ => {
            into.truncate(start);
            into.extend_from_slice(block);
        }
    }
}

/// Decompresses a block.
///
/// # Errors
/// `Damaged` if the decompressed block is not `raw_bytes` long.
pub(super) fn decompress(stored: Vec<u8>, raw_bytes: usize) -> Result<Vec<u8>> {
    if stored.len() == raw_bytes {
        return Ok(stored);
    }
    let mut raw = vec![0; raw_bytes];
    match lz4_flex::block::decompress_into(&stored, &mut raw) {
        Ok(found) if found == raw_bytes => Ok(raw),
        _ => Err(damaged("a block of a table")),
    }
}

/// Reads the entries of a decompressed block one after the other.
#[derive(Debug, Default)]
pub(super) struct BlockCursor {
    position: usize,
    key: Vec<u8>,
    /// The position of the value of the entry that was read last.
    value_at: usize,
}

impl BlockCursor {
    /// Returns the next entry of `block`, or `None` at its end.
    ///
    /// # Errors
    /// `Damaged` if the block does not have its format, or its keys do not ascend.
    pub(super) fn next<'a>(&'a mut self, block: &'a [u8]) -> Result<Option<(&'a [u8], &'a [u8])>> {
        let mut rest = &block[self.position..];
        if rest.is_empty() {
            return Ok(None);
        }
        let broken = || damaged("a block of a table");
        let mut length = || take_varint(&mut rest).ok_or_else(broken);
        let (shared, suffix, value) = (length()?, length()?, length()?);
        let key_fits = shared <= self.key.len() && suffix <= KEY_BYTES_MAX - shared.min(KEY_BYTES_MAX);
        if !key_fits || suffix > rest.len() || value > rest.len() - suffix {
            return Err(broken());
        }
        let (suffix, rest) = rest.split_at(suffix);
        if self.position > 0 && suffix <= &self.key[shared..] {
            return Err(broken());
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(suffix);
        self.value_at = block.len() - rest.len();
        self.position = self.value_at + value;
        Ok(Some((&self.key, &rest[..value])))
    }

    /// Returns the entry that was read last from `block`.
    pub(super) fn last<'a>(&'a self, block: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        (&self.key, &block[self.value_at..self.position])
    }
}

/// Returns the entries of a decompressed block.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn entries_of_block(block: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut cursor, mut entries) = (BlockCursor::default(), Vec::new());
    while let Some((key, value)) = cursor.next(block)? {
        entries.push((key.to_vec(), value.to_vec()));
    }
    Ok(entries)
}

/// Appends a number in seven-bit groups, the lowest first.
pub(super) fn put_varint(into: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Removes a number of at most 28 bits from the front of `from`. `None` if `from` does not begin
/// with such a number.
pub(super) fn take_varint(from: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in [0, 7, 14, 21] {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
