//! The partitions of nodes and chunks, which clients and members compute.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::entry::FileId;

/// The largest number of partitions of a pool.
pub const PARTITIONS_MAX: u16 = 1 << 15;

/// The bits of an identifier below its partition.
const LOWER_BITS: u32 = 48;

impl FileId {
    /// Returns the partition that has the attributes of the node. The number can be too large for
    /// the pool if the identifier was not created by this pool.
    pub fn partition(self) -> u16 {
        (self.0 >> LOWER_BITS) as u16
    }

    /// Returns the partition that has a chunk of this file, in a pool of `partitions` partitions,
    /// at least 1.
    pub fn partition_of_chunk(self, chunk: u64, partitions: u16) -> u16 {
        (xxh3_64_with_seed(&chunk.to_le_bytes(), self.0) % u64::from(partitions)) as u16
    }
}

/// A set of partitions of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Partitions {
    /// The number of partitions of the pool.
    count: u16,
    /// A bit for each partition, the lowest bit of the first byte for partition 0.
    #[serde(with = "serde_bytes")]
    bits: Vec<u8>,
}

impl Partitions {
    /// Returns the set of those of `count` partitions for which `is_member` returns true.
    pub fn new(count: u16, is_member: impl Fn(u16) -> bool) -> Partitions {
        let mut bits = vec![0; usize::from(count).div_ceil(8)];
        for partition in (0..count).filter(|partition| is_member(*partition)) {
            bits[usize::from(partition / 8)] |= 1 << (partition % 8);
        }
        Partitions { count, bits }
    }

    /// Returns whether the set has a partition.
    pub fn has(&self, partition: u16) -> bool {
        let byte = self.bits.get(usize::from(partition / 8)).copied().unwrap_or(0);
        byte & 1 << (partition % 8) != 0
    }

    /// Returns whether the set has the partition of a chunk.
    pub fn has_chunk(&self, id: FileId, chunk: u64) -> bool {
        self.count != 0 && self.has(id.partition_of_chunk(chunk, self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_partitions_that_it_was_made_of() {
        for count in [1, 7, 8, 9, 4096] {
            let set = Partitions::new(count, |partition| partition % 3 == 0);
            let found: Vec<u16> = (0..u16::MAX).filter(|partition| set.has(*partition)).collect();
            assert_eq!(found, (0..count).filter(|partition| partition % 3 == 0).collect::<Vec<_>>());
            assert_eq!(set.has_chunk(FileId(5), 9), set.has(FileId(5).partition_of_chunk(9, count)));
        }
        assert!(!Partitions::default().has(0) && !Partitions::default().has_chunk(FileId(1), 1));
    }
}
