//! The pieces of an extent: blocks of data, each followed by its checksum.

use std::ops::Range;

use crate::fields::{Fault, checksum};

/// The data of a block, in bytes. Only the last block of an extent has fewer.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// The size of a block with its checksum, in bytes.
const STORED_BYTES: usize = BLOCK_BYTES + 8;
/// The number of blocks that are read at once and kept in memory together.
const GROUP_BLOCKS: usize = 16;
/// The size of the data of a group, in bytes. Only the last group of an extent has less.
pub(crate) const GROUP_BYTES: usize = GROUP_BLOCKS * BLOCK_BYTES;
/// The size of the data of a piece, in bytes. Only the last piece of an extent has less.
pub(crate) const PIECE_BYTES: usize = 4 << 20;
/// Largest length of an extent, in bytes.
pub(crate) const EXTENT_BYTES_MAX: usize = 64 << 20;
/// Largest count of the pieces of an extent.
pub(crate) const PIECES_MAX: u32 = (EXTENT_BYTES_MAX / PIECE_BYTES) as u32;

/// Returns the checksum of a block. It includes the address of the block, so that the data of one
/// block is not accepted as the data of another.
fn block_checksum(number: u64, piece: u32, block: usize, data: &[u8]) -> u64 {
    let mut address = [0; 16];
    address[..8].copy_from_slice(&number.to_le_bytes());
    address[8..12].copy_from_slice(&piece.to_le_bytes());
    address[12..].copy_from_slice(&(block as u32).to_le_bytes());
    // Faster than a seed, which XXH3 expands for each block.
    checksum(data, &[]) ^ checksum(&address, &[])
}

/// The bytes of an object with the data of a piece, which is passed in parts. The capacity is the
/// size of the whole piece from the beginning, so that the bytes are not moved while they grow.
pub(crate) struct PieceEncoder {
    number: u64,
    piece: u32,
    bytes: Vec<u8>,
    data_bytes: usize,
}

impl PieceEncoder {
    /// Returns a piece without data, which will have `data_bytes_max` of it.
    pub(crate) fn new(number: u64, piece: u32, data_bytes_max: usize) -> PieceEncoder {
        let bytes = Vec::with_capacity(data_bytes_max + data_bytes_max.div_ceil(BLOCK_BYTES) * 8);
        PieceEncoder { number, piece, bytes, data_bytes: 0 }
    }

    /// Returns the size of the data so far.
    pub(crate) fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Appends data. A piece has at most [`PIECE_BYTES`].
    pub(crate) fn append(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let room = BLOCK_BYTES - self.data_bytes % BLOCK_BYTES;
            let (part, rest) = data.split_at(data.len().min(room));
            self.bytes.extend_from_slice(part);
            self.data_bytes += part.len();
            if part.len() == room {
                self.end_block(BLOCK_BYTES);
            }
            data = rest;
        }
    }

    /// Returns the bytes of the object.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        match self.data_bytes % BLOCK_BYTES {
            0 => {}
            length => self.end_block(length),
        }
        self.bytes
    }

    fn end_block(&mut self, length: usize) {
        let block = (self.data_bytes - 1) / BLOCK_BYTES;
        let data = &self.bytes[self.bytes.len() - length..];
        let sum = block_checksum(self.number, self.piece, block, data);
        self.bytes.extend_from_slice(&sum.to_le_bytes());
    }
}

/// Returns the range of bytes of an object that has the blocks of a range of its data. `length` is
/// not 0.
pub(crate) fn stored_range(offset: usize, length: usize) -> Range<usize> {
    offset / BLOCK_BYTES * STORED_BYTES..(offset + length).div_ceil(BLOCK_BYTES) * STORED_BYTES
}

/// Verifies blocks, the first of which is `first`, and copies the data from `skip` bytes after the
/// beginning of that block until `into` is full. `bytes` ends with the object, or with the last
/// block that is needed.
pub(crate) fn check_blocks(
    bytes: &[u8],
    number: u64,
    piece: u32,
    first: usize,
    skip: usize,
    into: &mut [u8],
) -> Result<(), Fault> {
    let (mut skip, mut rest) = (skip, into);
    for (block, stored) in (first..).zip(bytes.chunks(STORED_BYTES)) {
        let fault = |reason| Fault { offset: (block * STORED_BYTES) as u64, reason };
        let Some((data, sum)) = stored.split_last_chunk::<8>() else {
            return Err(fault("the block is shorter than its checksum"));
        };
        if block_checksum(number, piece, block, data) != u64::from_le_bytes(*sum) {
            return Err(fault("the checksum of the block differs"));
        }
        let data = data.get(skip..).unwrap_or_default();
        let (part, after) = rest.split_at_mut(rest.len().min(data.len()));
        part.copy_from_slice(&data[..part.len()]);
        (skip, rest) = (0, after);
    }
    match rest {
        [] => Ok(()),
        _ => {
            let offset = (first * STORED_BYTES + bytes.len()) as u64;
            Err(Fault { offset, reason: "the extent is shorter than the read" })
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_testkit::Random;

    use super::*;

    fn read(bytes: &[u8], piece: u32, offset: usize, length: usize) -> Result<Vec<u8>, Fault> {
        let range = stored_range(offset, length);
        let stored = &bytes[range.start.min(bytes.len())..range.end.min(bytes.len())];
        let mut into = vec![0; length];
        check_blocks(stored, 9, piece, offset / BLOCK_BYTES, offset % BLOCK_BYTES, &mut into)?;
        Ok(into)
    }

    fn encode_piece(number: u64, piece: u32, data: &[u8]) -> Vec<u8> {
        let mut encoder = PieceEncoder::new(number, piece, data.len());
        encoder.append(data);
        encoder.finish()
    }

    #[test]
    fn the_parts_in_which_data_is_passed_do_not_change_the_bytes() {
        let mut random = Random::new(3);
        for _ in 0..200 {
            let length = random.below(4 * BLOCK_BYTES);
            let data = random.bytes(length);
            let (mut encoder, mut rest) = (PieceEncoder::new(9, 2, length), &data[..]);
            while !rest.is_empty() {
                let (part, after) = rest.split_at(1 + random.below(rest.len()));
                encoder.append(part);
                rest = after;
            }
            assert_eq!(encoder.data_bytes(), length);
            assert_eq!(encoder.finish(), encode_piece(9, 2, &data));
        }
    }

    #[test]
    fn every_range_is_read_as_it_was_written() {
        let mut random = Random::new(1);
        let data = random.bytes(3 * BLOCK_BYTES + 100);
        let bytes = encode_piece(9, 2, &data);
        assert_eq!(bytes.len(), data.len() + 4 * 8);
        for _ in 0..2000 {
            let offset = random.below(data.len());
            let length = 1 + random.below(data.len() - offset);
            assert_eq!(read(&bytes, 2, offset, length).as_deref(), Ok(&data[offset..offset + length]));
        }
        read(&bytes, 2, data.len() - 1, 2).expect_err("beyond the end");
        read(&bytes, 2, data.len() + BLOCK_BYTES, 1).expect_err("beyond the end");
        read(&bytes, 1, 0, 1).expect_err("another piece");
    }

    #[test]
    fn changed_and_missing_bytes_are_found() {
        let mut random = Random::new(2);
        let data = random.bytes(2 * BLOCK_BYTES);
        let bytes = encode_piece(9, 0, &data);
        for _ in 0..500 {
            let mut changed = bytes.clone();
            changed[random.below(bytes.len())] ^= 1 << random.below(8);
            read(&changed, 0, 0, data.len()).expect_err("a byte was changed");
            read(&bytes[..random.below(bytes.len())], 0, 0, data.len()).expect_err("bytes are missing");
        }
    }
}
