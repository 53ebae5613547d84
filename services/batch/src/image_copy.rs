//! The copy of the description of an image, in the directory of its tables: if the key-value store
//! of the primary server is lost, the image is rebuilt from this copy.

use std::collections::{HashMap, HashSet};

use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::batch::BatchRecord;
use crate::entry::damaged;
use crate::limits::Limits;
use crate::partition::Assignment;
use crate::stored::{Description, decode, encode};
use crate::table_ref::TableRef;

/// The first bytes of a copy, with the version of the format.
const MAGIC: [u8; 16] = *b"QUELL IMAGE 3\0\0\0";
/// The first bytes of a copy without assignments of partitions, which earlier versions of the
/// program have written.
const MAGIC_WITHOUT_ASSIGNMENTS: [u8; 16] = *b"QUELL IMAGE 2\0\0\0";
/// The first bytes of a copy without limits, which earlier versions of the program have written.
const MAGIC_WITHOUT_LIMITS: [u8; 16] = *b"QUELL IMAGE 1\0\0\0";

/// The largest copy, in bytes. A longer one is neither written nor read.
pub(crate) const COPY_BYTES_MAX: usize = 256 << 20;
/// The largest copy after a batch or part has begun, in bytes. The rest is for the tables that are
/// added before batches end.
const COPY_BYTES_AT_BEGIN_MAX: usize = COPY_BYTES_MAX / 4 * 3;

/// Checks that a batch or part can begin if the copy with its record is `bytes` long.
///
/// # Errors
/// `NoSpace` if the copy would be too long.
pub(crate) fn check_length_at_begin(bytes: usize) -> Result<()> {
    match bytes <= COPY_BYTES_AT_BEGIN_MAX {
        true => Ok(()),
        false => {
            let reason = "the descriptions of the open batches and parts have more than 192 MiB; commit or abort some of them";
            Err(Error { source: Some(reason.into()), ..Error::new(ErrorKind::NoSpace, "begin a batch", "") })
        }
    }
}

/// The description of an image, the records of its open batches, the limits of its use, and the
/// assignments of partitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageCopy {
    pub(crate) description: Description,
    pub(crate) batches: Vec<BatchRecord>,
    pub(crate) limits: Limits,
    /// In the order of their numbers.
    pub(crate) assignments: Vec<Assignment>,
}

impl ImageCopy {
    /// Returns whether a copy has the same content as this one, which is current. Its next numbers
    /// may be less by a few that were assigned since.
    pub(crate) fn is_equal_to(&self, copy: &ImageCopy) -> bool {
        copy.description.tables == self.description.tables
            && copy.batches == self.batches
            && copy.limits == self.limits
            && copy.assignments == self.assignments
            && copy.description.has_few_numbers_less_than(&self.description)
    }

    /// Returns the snapshots of the batches that have parts, by the numbers of the batches.
    fn snapshots(&self) -> HashMap<u64, Vec<TableRef>> {
        let with_parts: HashSet<u64> = self.batches.iter().filter_map(BatchRecord::part_of).collect();
        let is_of_parts =
            |batch: &&BatchRecord| batch.part_of().is_none() && with_parts.contains(&batch.number);
        let batches = self.batches.iter().filter(is_of_parts);
        batches.map(|batch| (batch.number, batch.snapshot.clone())).collect()
    }

    /// Encodes the copy (docs/formats/batch.md). A part has the snapshot of its batch, so the
    /// list of its tables is left out.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let short = self.without_snapshots_of_parts();
        with_header(MAGIC, &encode(&short))
    }

    /// Encodes the copy in the format of earlier versions.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn encode_without_limits(&self) -> Vec<u8> {
        let ImageCopy { description, batches, .. } = self.without_snapshots_of_parts();
        with_header(MAGIC_WITHOUT_LIMITS, &encode(&(description, batches)))
    }

    fn without_snapshots_of_parts(&self) -> ImageCopy {
        let mut short = self.clone();
        let snapshots = short.snapshots();
        for part in &mut short.batches {
            let of = part.part_of().and_then(|of| snapshots.get(&of));
            if of.is_some_and(|snapshot| *snapshot == part.snapshot) {
                part.snapshot.clear();
            }
        }
        short
    }

    /// Decodes a copy.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not an encoded copy.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ImageCopy> {
        let broken = || damaged("the copy of the image's description");
        let (magic, rest) = bytes.split_first_chunk::<16>().ok_or_else(broken)?;
        let (checksum, body) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
        if xxh3_64(body) != u64::from_le_bytes(*checksum) {
            return Err(broken());
        }
        let mut copy: ImageCopy = match *magic {
            MAGIC => decode(body)?,
            MAGIC_WITHOUT_LIMITS => {
                let (description, batches) = decode(body)?;
                ImageCopy { description, batches, limits: Limits::default(), assignments: Vec::new() }
            }
            MAGIC_WITHOUT_ASSIGNMENTS => {
                let (description, batches, limits) = decode(body)?;
                ImageCopy { description, batches, limits, assignments: Vec::new() }
            }
            _ => return Err(broken()),
        };
        let snapshots = copy.snapshots();
        for part in copy.batches.iter_mut().filter(|part| part.snapshot.is_empty()) {
            if let Some(snapshot) = part.part_of().and_then(|of| snapshots.get(&of)) {
                part.snapshot.clone_from(snapshot);
            }
        }
        match copy.description.has_valid_numbers() {
            true => Ok(copy),
            false => Err(broken()),
        }
    }
}

/// Returns an encoded copy: the format, the checksum, and the content.
fn with_header(magic: [u8; 16], body: &[u8]) -> Vec<u8> {
    [&magic[..], &xxh3_64(body).to_le_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchState, PartState};
    use crate::fuzzing::verification_task;

    /// Returns the copy of an image whose only batch has this number of parts, and a snapshot of
    /// 1,000 tables.
    fn with_parts(parts: u64) -> ImageCopy {
        let table = |number| TableRef { number, bytes: 1 << 20, entries: 1000, checksum: u64::MAX };
        let batch = BatchRecord { snapshot: (0..1000).map(table).collect(), ..verification_task().record };
        let state = BatchState::Part { of: batch.number, state: PartState::Open };
        let part =
            |number| BatchRecord { number: batch.number + number, state: state.clone(), ..batch.clone() };
        let batches = std::iter::once(batch.clone()).chain((1..=parts).map(part)).collect();
        ImageCopy {
            description: Description::new(7),
            batches,
            limits: Limits::default(),
            assignments: Vec::new(),
        }
    }

    #[test]
    fn the_snapshot_of_a_batch_is_written_once() {
        let [one, many] = [1, 1000].map(|parts| {
            let copy = with_parts(parts);
            let encoded = copy.encode();
            assert_eq!(ImageCopy::decode(&encoded).unwrap(), copy);
            encoded.len()
        });
        assert!(many < one + 1000 * 100, "{one} and {many} bytes");
        // A part without its batch, and one with another snapshot, are written as they are.
        let mut copy = with_parts(2);
        copy.batches[1].snapshot.pop();
        assert_eq!(ImageCopy::decode(&copy.encode()).unwrap(), copy);
        copy.batches.remove(0);
        assert_eq!(ImageCopy::decode(&copy.encode()).unwrap(), copy);
    }

    #[test]
    fn a_copy_of_an_earlier_version_has_the_snapshot_of_each_part() {
        let copy = with_parts(3);
        let body = encode(&(&copy.description, &copy.batches));
        let earlier = with_header(MAGIC_WITHOUT_LIMITS, &body);
        assert_eq!(ImageCopy::decode(&earlier).unwrap(), copy);
        assert_eq!(ImageCopy::decode(&copy.encode_without_limits()).unwrap(), copy);
        let body = encode(&(&copy.description, &copy.batches, &copy.limits));
        let earlier = with_header(MAGIC_WITHOUT_ASSIGNMENTS, &body);
        assert_eq!(ImageCopy::decode(&earlier).unwrap(), copy);
    }

    #[test]
    fn no_batch_begins_whose_record_makes_the_copy_too_long() {
        assert!(check_length_at_begin(192 << 20).is_ok());
        let refused = check_length_at_begin((192 << 20) + 1).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoSpace);
        assert!(refused.to_string().contains("commit or abort some of them"), "{refused}");
    }
}
