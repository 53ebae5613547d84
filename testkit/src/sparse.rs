//! The data of a file with holes: written blocks, and zeros between them.

use std::collections::BTreeMap;

pub(crate) const BLOCK_BYTES: u64 = 4096;

/// File data up to a size; all bytes that were not written are zero. Bytes of the last block beyond
/// the size are zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SparseBytes {
    size_bytes: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

/// Divides `count` bytes at `offset` at block boundaries. Returns `(block, offset in the block,
/// offset in the data, count)` of each piece.
fn pieces(offset: u64, count: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % BLOCK_BYTES) as usize;
        let piece = (count - done).min(BLOCK_BYTES as usize - within);
        let begin = done;
        done += piece;
        (piece > 0).then_some((at / BLOCK_BYTES, within, begin, piece))
    })
}

impl SparseBytes {
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES
    }

    /// Returns how many bytes of a write fit if `free_bytes` more may be allocated.
    pub(crate) fn writable_bytes(&self, offset: u64, count: usize, free_bytes: u64) -> usize {
        let mut left_bytes = free_bytes;
        for (block, _, begin, _) in pieces(offset, count) {
            if !self.blocks.contains_key(&block) {
                if left_bytes < BLOCK_BYTES {
                    return begin;
                }
                left_bytes -= BLOCK_BYTES;
            }
        }
        count
    }

    pub(crate) fn read_at(&self, into: &mut [u8], offset: u64) -> usize {
        let count = self.size_bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        for (block, within, begin, piece) in pieces(offset, count) {
            match self.blocks.get(&block) {
                Some(bytes) => into[begin..begin + piece].copy_from_slice(&bytes[within..within + piece]),
                None => into[begin..begin + piece].fill(0),
            }
        }
        count
    }

    pub(crate) fn write_at(&mut self, from: &[u8], offset: u64) {
        if from.is_empty() {
            return;
        }
        for (block, within, begin, piece) in pieces(offset, from.len()) {
            let bytes = self.blocks.entry(block).or_insert_with(|| vec![0; BLOCK_BYTES as usize]);
            bytes[within..within + piece].copy_from_slice(&from[begin..begin + piece]);
        }
        self.size_bytes = self.size_bytes.max(offset + from.len() as u64);
    }

    pub(crate) fn set_size(&mut self, size_bytes: u64) {
        if size_bytes < self.size_bytes {
            let within = (size_bytes % BLOCK_BYTES) as usize;
            drop(self.blocks.split_off(&size_bytes.div_ceil(BLOCK_BYTES)));
            if let Some(last) = self.blocks.get_mut(&(size_bytes / BLOCK_BYTES)) {
                last[within..].fill(0);
            }
        }
        self.size_bytes = size_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn sparse_bytes_equal_a_plain_vector() {
        let mut random = Random::new(1);
        let (mut sparse, mut plain) = (SparseBytes::default(), Vec::new());
        for _ in 0..3000 {
            let offset = random.below(30_000);
            match random.below(4) {
                0 => {
                    sparse.set_size(offset as u64);
                    plain.resize(offset, 0);
                }
                1 => {
                    let count = random.below(10_000);
                    let bytes = random.bytes(count);
                    sparse.write_at(&bytes, offset as u64);
                    let end = if bytes.is_empty() { 0 } else { offset + bytes.len() };
                    plain.resize(plain.len().max(end), 0);
                    plain[offset.min(end)..end].copy_from_slice(&bytes);
                }
                _ => {
                    let mut into = vec![9; random.below(10_000)];
                    let count = sparse.read_at(&mut into, offset as u64);
                    let begin = offset.min(plain.len());
                    let expected = &plain[begin..(begin + into.len()).min(plain.len())];
                    assert_eq!(&into[..count], expected);
                }
            }
            assert_eq!(sparse.size_bytes(), plain.len() as u64);
        }
        assert!(sparse.allocated_bytes() <= 44_000);
    }
}
