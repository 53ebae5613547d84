//! BLAKE3 checksums of files that are read in ranges, in any order. The checksum of a file covers
//! its whole content, as `b3sum` computes it: BLAKE3 is a tree, and an aligned range whose length
//! is a power of two is a subtree of it.

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode};
use blake3::hazmat::{left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

/// The smallest length of a range of a file that has several.
const RANGE_BYTES_MIN: u64 = 8 << 20;

/// The largest number of ranges of one file.
const RANGES_MAX: u64 = 1 << 16;

/// The division of a file into ranges.
#[derive(Debug, Clone, Copy)]
pub struct Ranges {
    size_bytes: u64,
    /// A power of two.
    range_bytes: u64,
}

impl Ranges {
    pub fn of(size_bytes: u64) -> Ranges {
        let range_bytes = size_bytes.div_ceil(RANGES_MAX).next_power_of_two().max(RANGE_BYTES_MIN);
        Ranges { size_bytes, range_bytes }
    }

    /// The number of ranges, at least 1.
    pub fn count(self) -> usize {
        self.size_bytes.div_ceil(self.range_bytes).max(1) as usize
    }

    /// Returns the offsets of the first byte of a range and of the end of the range.
    pub fn range(self, index: usize) -> (u64, u64) {
        let start = index as u64 * self.range_bytes;
        (start, start.saturating_add(self.range_bytes).min(self.size_bytes))
    }

    /// Returns a hasher for the content of a range.
    pub fn hasher(self, index: usize) -> Hasher {
        let mut hasher = Hasher::new();
        if self.count() > 1 {
            hasher.set_input_offset(self.range(index).0);
        }
        hasher
    }

    /// Returns the value of a range whose content was passed to its hasher.
    pub fn value(self, hasher: &Hasher) -> ChainingValue {
        match self.count() {
            1 => *hasher.finalize().as_bytes(),
            _ => hasher.finalize_non_root(),
        }
    }

    /// Returns the checksum of the file from the values of all its ranges.
    pub fn checksum(self, values: &[ChainingValue]) -> [u8; 32] {
        match values {
            [value] => *value,
            _ => {
                let (left, right) = self.children(values, self.size_bytes);
                *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
            }
        }
    }

    fn children(self, values: &[ChainingValue], bytes: u64) -> (ChainingValue, ChainingValue) {
        let left_bytes = left_subtree_len(bytes);
        let (left, right) = values.split_at((left_bytes / self.range_bytes) as usize);
        (self.subtree(left, left_bytes), self.subtree(right, bytes - left_bytes))
    }

    fn subtree(self, values: &[ChainingValue], bytes: u64) -> ChainingValue {
        match values {
            [value] => *value,
            _ => {
                let (left, right) = self.children(values, bytes);
                merge_subtrees_non_root(&left, &right, Mode::Hash)
            }
        }
    }
}

/// Adds zeros to a hasher.
pub fn update_with_zeros(hasher: &mut Hasher, mut bytes: u64) {
    const ZEROS: &[u8] = &[0; 64 << 10];
    while bytes > 0 {
        let count = bytes.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..count as usize]);
        bytes -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_ranges_is_that_of_the_content() {
        for size in [0, 1, 1024, 1025, 4096, 5000, 8 * 1024, 8 * 1024 + 1, 13 * 1024, 100_001] {
            let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            for range_bytes in [1024, 4096, 1 << 20] {
                let ranges = Ranges { size_bytes: size as u64, range_bytes };
                let values: Vec<ChainingValue> = (0..ranges.count())
                    .map(|index| {
                        let (start, end) = ranges.range(index);
                        let mut hasher = ranges.hasher(index);
                        hasher.update(&content[start as usize..end as usize]);
                        ranges.value(&hasher)
                    })
                    .collect();
                assert_eq!(
                    ranges.checksum(&values),
                    *blake3::hash(&content).as_bytes(),
                    "{size} {range_bytes}"
                );
            }
        }
    }

    #[test]
    fn the_number_of_ranges_is_bounded_for_every_size() {
        for size in [0, 1, RANGE_BYTES_MIN, RANGE_BYTES_MIN + 1, 1 << 40, 1 << 50, i64::MAX as u64] {
            let ranges = Ranges::of(size);
            assert!(ranges.range_bytes.is_power_of_two() && ranges.count() as u64 <= RANGES_MAX, "{size}");
            assert_eq!(ranges.range(ranges.count() - 1).1, size);
        }
    }

    #[test]
    fn zeros_are_those_of_the_content() {
        let mut hasher = Hasher::new();
        update_with_zeros(&mut hasher, 100_000);
        assert_eq!(hasher.finalize(), blake3::hash(&[0; 100_000]));
    }
}
