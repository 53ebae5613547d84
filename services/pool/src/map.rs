//! The placement of names, nodes and chunks on the members of a pool: pure functions.
//!
//! A pool has a fixed number of partitions. Each partition lies on the member with the highest
//! score for it (rendezvous hashing), so that a new member takes 1/n of the partitions and no other
//! partition moves.

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{Consistency, FileId, MemberId, PARTITIONS_MAX, Partitions};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const _: () = assert!(PARTITIONS_MAX == 1 << PARTITION_BITS);
/// The largest number of members, because an identifier has 12 bits for its member.
const MEMBERS_MAX: u16 = 1 << MEMBER_BITS;

const PARTITION_BITS: u32 = 15;
const MEMBER_BITS: u32 = 12;
const COUNTER_BITS: u32 = 36;
const HASH_BITS: u32 = 62;

/// A part of the name space and of the chunks, which lies on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition(pub u16);

/// The hash of a name in its directory, of 62 bits. It decides the partition of the name, and the
/// order of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash(pub u64);

impl NameHash {
    pub fn new(dir: FileId, name: &[u8]) -> NameHash {
        NameHash(xxh3_64_with_seed(name, dir.0) >> (u64::BITS - HASH_BITS))
    }

    /// Returns the cursor of an entry with this hash, which is not 0 and at most 2^62.
    pub fn cursor(self) -> u64 {
        self.0 + 1
    }
}

/// The members of a pool, and the partitions of each member.
#[derive(Debug, Clone)]
pub struct PoolMap {
    members: Vec<MemberId>,
    /// The member of each partition.
    owners: Vec<MemberId>,
    chunk_bytes: u32,
    consistency: Consistency,
}

impl PoolMap {
    /// Places `partitions` partitions on the members. `chunk_bytes` is the size of the chunks of
    /// all files.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `partitions` is not a power of two or larger than [`PARTITIONS_MAX`], if
    /// there are no members or more than 4,096, if a member has a number above 4,095, or if
    /// `chunk_bytes` is 0 or larger than the data of one message.
    pub fn new(partitions: u16, members: &[MemberId], chunk_bytes: u32) -> Result<PoolMap> {
        let refused = |reason: &str| Error {
            source: Some(reason.to_owned().into()),
            ..Error::new(ErrorKind::InvalidInput, "place partitions", "")
        };
        if !partitions.is_power_of_two() || partitions > PARTITIONS_MAX {
            return Err(refused("the number of partitions must be a power of two, at most 32768"));
        }
        if members.is_empty() || members.iter().any(|member| member.0 >= MEMBERS_MAX) {
            return Err(refused("a pool has 1 to 4096 members with numbers below 4096"));
        }
        if chunk_bytes == 0 || chunk_bytes as usize > quell_wire::pool::DATA_BYTES_MAX {
            return Err(refused("the size of a chunk must be 1 byte to 512 KiB"));
        }
        let owners = (0..partitions).map(|partition| best(Partition(partition), members)).collect();
        Ok(PoolMap { members: members.to_vec(), owners, chunk_bytes, consistency: Consistency::Synchronous })
    }

    /// Sets the consistency, which decides when sizes are visible to others. The default is
    /// `Synchronous`.
    pub fn with_consistency(self, consistency: Consistency) -> PoolMap {
        PoolMap { consistency, ..self }
    }

    /// Returns the consistency, which decides when sizes are visible to others.
    pub fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// Returns the members.
    pub fn members(&self) -> &[MemberId] {
        &self.members
    }

    /// Returns the size of a chunk, in bytes.
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    pub(crate) fn partition_of_name(&self, hash: NameHash) -> Partition {
        let bits = self.owners.len().ilog2();
        // With one partition, the hash has no influence.
        Partition(hash.0.checked_shr(HASH_BITS - bits).unwrap_or(0) as u16)
    }

    /// Returns the member that has the name.
    pub(crate) fn owner_of_name(&self, hash: NameHash) -> MemberId {
        self.owner(self.partition_of_name(hash))
    }

    /// Returns the member that has the attributes of a node.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an identifier that the pool cannot have assigned.
    pub(crate) fn home(&self, id: FileId) -> Result<MemberId> {
        match self.owners.get(usize::from(id.partition())) {
            Some(owner) => Ok(*owner),
            None => Err(Error::new(ErrorKind::InvalidInput, "find node", id.0.to_string())),
        }
    }

    /// Returns the member that has a chunk of a file.
    pub(crate) fn owner_of_chunk(&self, id: FileId, chunk: u64) -> MemberId {
        self.owner(Partition(id.partition_of_chunk(chunk, self.owners.len() as u16)))
    }

    /// Returns the member of each partition.
    pub(crate) fn owners(&self) -> &[MemberId] {
        &self.owners
    }

    /// Returns the partitions of a member.
    pub(crate) fn partitions_of(&self, member: MemberId) -> Partitions {
        let is_own = |partition| self.owner(Partition(partition)) == member;
        Partitions::new(self.owners.len() as u16, is_own)
    }

    fn owner(&self, partition: Partition) -> MemberId {
        self.owners[usize::from(partition.0)]
    }
}

/// Returns the identifier of a new node: the partition in which it is created, the member that
/// creates it, and the number that this member has assigned. `None` when the member has used all
/// numbers.
pub fn new_id(partition: Partition, member: MemberId, counter: u64) -> Option<FileId> {
    let fits = counter < 1 << COUNTER_BITS;
    let upper = u64::from(partition.0) << MEMBER_BITS | u64::from(member.0);
    fits.then_some(FileId(upper << COUNTER_BITS | counter))
}

/// Returns the member with the highest score for a partition.
fn best(partition: Partition, members: &[MemberId]) -> MemberId {
    let score = |member: &MemberId| {
        // The number of the member decides between equal scores.
        (xxh3_64_with_seed(&partition.0.to_le_bytes(), u64::from(member.0)), member.0)
    };
    *members.iter().max_by_key(|member| score(member)).expect("a pool has members")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: u16) -> Vec<MemberId> {
        (0..count).map(MemberId).collect()
    }

    #[test]
    fn a_new_member_takes_its_share_and_nothing_else_moves() {
        for count in [1, 2, 3, 8, 50] {
            let before = PoolMap::new(4096, &members(count), 4096).unwrap();
            let after = PoolMap::new(4096, &members(count + 1), 4096).unwrap();
            let moved: Vec<_> = before.owners.iter().zip(&after.owners).filter(|(a, b)| a != b).collect();
            assert!(moved.iter().all(|(_, new)| **new == MemberId(count)));
            let share = 4096.0 / f64::from(count + 1);
            let distance = (moved.len() as f64 - share).abs();
            assert!(distance < 5.0 * share.sqrt(), "{count} members: {} partitions moved", moved.len());
        }
    }

    #[test]
    fn a_node_is_at_home_where_its_name_is() {
        for partitions in [1, 2, 64, PARTITIONS_MAX] {
            let map = PoolMap::new(partitions, &members(7), 4096).unwrap();
            for number in 0..1000_u64 {
                let hash = NameHash::new(FileId(number / 10), &number.to_le_bytes());
                let id = new_id(map.partition_of_name(hash), MemberId(4095), number).unwrap();
                assert_eq!(map.home(id).unwrap(), map.owner_of_name(hash));
                assert!(hash.cursor() <= quell_vfs::Cursor::MAX.0);
            }
        }
        assert_eq!(new_id(Partition(0), MemberId(0), 1 << COUNTER_BITS), None);
    }

    #[test]
    fn bad_settings_are_refused() {
        let one = members(1);
        assert!(PoolMap::new(3, &one, 4096).is_err());
        assert!(PoolMap::new(0, &one, 4096).is_err());
        assert!(PoolMap::new(8, &[], 4096).is_err());
        assert!(PoolMap::new(8, &[MemberId(4096)], 4096).is_err());
        assert!(PoolMap::new(8, &one, 0).is_err());
        assert!(PoolMap::new(8, &one, 1 << 30).is_err());
        let map = PoolMap::new(8, &one, 4096).unwrap();
        assert!(map.home(FileId(u64::MAX)).is_err());
    }
}
