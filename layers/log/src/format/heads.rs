//! The header of 64 bytes at the beginning of a store's record, a container's record, a data log,
//! an index log and a flat index.

use xxhash_rust::xxh3::xxh3_64;

use crate::format::bytes::{u32_at, u64_at};
use crate::format::damage::LogDamage;

pub const HEAD_BYTES: usize = 64;
/// The version of a store's record.
pub const STORE_VERSION: u32 = 1;
/// The version of new containers. Logs have the version of their container. Version 1 has no frames
/// of zeros.
pub const CONTAINER_VERSION: u32 = 2;
/// The version of objects, and of the containers that they become.
pub const OBJECT_VERSION: u32 = 3;
/// Block size of data in new containers, in bytes.
pub const BLOCK_BYTES: u32 = 16 << 10;
/// The largest number of log directories in a container.
pub const DIRECTORIES_MAX: u32 = 1024;

const SUM_AT: usize = 56;

/// The kind of file that a header belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    Container,
    Data,
    Index,
    Flat,
    Store,
}

impl HeadKind {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            HeadKind::Container => b"QLOGCONT",
            HeadKind::Data => b"QLOGDATA",
            HeadKind::Index => b"QLOGINDX",
            HeadKind::Flat => b"QLOGFLAT",
            HeadKind::Store => b"QLOGSTOR",
        }
    }

    /// Returns the newest version of a file of this kind that this program can read.
    fn newest_version(self) -> u32 {
        match self {
            HeadKind::Store => STORE_VERSION,
            _ => OBJECT_VERSION,
        }
    }

    fn name(self) -> &'static str {
        match self {
            HeadKind::Container => "the container's record",
            HeadKind::Data => "the head of the data log",
            HeadKind::Index => "the head of the index log",
            HeadKind::Flat => "the head of the flat index",
            HeadKind::Store => "the store's record",
        }
    }
}

/// The fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub kind: HeadKind,
    pub version: u32,
    pub block_bytes: u32,
    pub container: u128,
    /// 0, except in the headers of logs.
    pub writer: u64,
    /// 0, except in the container's record.
    pub directories: u32,
    /// The process of the writer, in the header of an object.
    pub process: Option<ObjectProcess>,
}

/// The process that writes an object. The header has no space for its node, so a reader can only
/// compare the node with its own node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectProcess {
    /// The lower half of the XXH3 of NODE; 0 if the node is unknown.
    pub node_sum: u32,
    pub pid: u32,
    pub start: u64,
}

impl Head {
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(self.kind.magic());
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.block_bytes.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.container.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.writer.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.directories.to_le_bytes());
        if let Some(ObjectProcess { node_sum, pid, start }) = self.process {
            bytes[40..44].copy_from_slice(&node_sum.to_le_bytes());
            bytes[44..48].copy_from_slice(&pid.to_le_bytes());
            bytes[48..56].copy_from_slice(&start.to_le_bytes());
        }
        let sum = xxh3_64(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub fn decode(kind: HeadKind, bytes: &[u8]) -> Result<Head, LogDamage> {
        let damage = |offset, reason| LogDamage { object: kind.name(), offset, reason };
        if bytes.len() < HEAD_BYTES {
            return Err(damage(bytes.len() as u64, "it ends too early"));
        }
        if &bytes[..8] != kind.magic() {
            return Err(damage(0, "wrong magic number"));
        }
        if u64_at(bytes, SUM_AT) != xxh3_64(&bytes[..SUM_AT]) {
            return Err(damage(SUM_AT as u64, "the checksum does not match"));
        }
        let version = u32_at(bytes, 8);
        if !(1..=kind.newest_version()).contains(&version) {
            return Err(damage(8, "a version that this program does not know"));
        }
        let container = u128::from_le_bytes(bytes[16..32].try_into().expect("16 bytes"));
        let block_bytes = u32_at(bytes, 12);
        let is_plain = bytes[40..SUM_AT].iter().all(|byte| *byte == 0);
        let process = (kind == HeadKind::Data && version >= OBJECT_VERSION && !is_plain).then(|| {
            let (node_sum, pid, start) = (u32_at(bytes, 40), u32_at(bytes, 44), u64_at(bytes, 48));
            ObjectProcess { node_sum, pid, start }
        });
        let directories = if process.is_some() { 0 } else { u32_at(bytes, 40) };
        let writer = u64_at(bytes, 32);
        let head = Head { kind, version, block_bytes, container, writer, directories, process };
        let expected = if kind == HeadKind::Container { 1..=DIRECTORIES_MAX } else { 0..=0 };
        if !block_bytes.is_power_of_two() || !(4096..=1 << 20).contains(&block_bytes) {
            return Err(damage(12, "the block size is invalid"));
        }
        let has_more = process.is_none() && bytes[44..SUM_AT].iter().any(|byte| *byte != 0);
        if !expected.contains(&directories) || has_more {
            return Err(damage(40, "a field has an invalid value"));
        }
        Ok(head)
    }

    /// Returns true if a data log of the container may have frames of zeros.
    pub fn has_zeros(&self) -> bool {
        self.version >= 2
    }

    /// Returns the header of another file of the same container.
    pub fn for_file(&self, kind: HeadKind, writer: u64) -> Head {
        Head { kind, writer, directories: 0, process: None, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head {
        kind: HeadKind::Container,
        version: CONTAINER_VERSION,
        block_bytes: BLOCK_BYTES,
        container: 0x0123_4567_89AB_CDEF_0011_2233_4455_6677,
        writer: 0,
        directories: 32,
        process: None,
    };

    #[test]
    fn a_header_round_trips_and_any_changed_byte_is_detected() {
        let bytes = HEAD.encode();
        assert_eq!(Head::decode(HeadKind::Container, &bytes), Ok(HEAD));
        for at in 0..HEAD_BYTES {
            let mut wrong = bytes;
            wrong[at] ^= 0x10;
            assert!(Head::decode(HeadKind::Container, &wrong).is_err(), "byte {at}");
            assert!(Head::decode(HeadKind::Container, &bytes[..at]).is_err());
        }
        assert!(Head::decode(HeadKind::Data, &bytes).is_err());
    }

    #[test]
    fn containers_of_version_1_can_be_read_and_stores_have_version_1_only() {
        let first = Head { version: 1, ..HEAD };
        assert_eq!(Head::decode(HeadKind::Container, &first.encode()), Ok(first));
        assert!(!first.has_zeros() && HEAD.has_zeros());
        let store = Head { kind: HeadKind::Store, directories: 0, ..first };
        assert_eq!(Head::decode(HeadKind::Store, &store.encode()), Ok(store));
        assert!(Head::decode(HeadKind::Store, &Head { version: 2, ..store }.encode()).is_err());
    }

    #[test]
    fn impossible_values_are_refused_even_with_a_valid_checksum() {
        for wrong in [
            Head { version: 0, ..HEAD },
            Head { version: 4, ..HEAD },
            Head { block_bytes: 0, ..HEAD },
            Head { block_bytes: 5000, ..HEAD },
            Head { block_bytes: 1 << 30, ..HEAD },
            Head { directories: 0, ..HEAD },
            Head { directories: 5000, ..HEAD },
        ] {
            assert!(Head::decode(HeadKind::Container, &wrong.encode()).is_err(), "{wrong:?}");
        }
    }
}
