//! Log objects: their guard, their header, and records.

use super::head::Id;
use crate::fields::{Fault, Fields, checksum};

const MAGIC: &[u8; 8] = b"QUELLRL1";
const RECORD_MAGIC: &[u8; 4] = b"QRec";
/// The size of the header of a log object, in bytes.
pub(crate) const HEADER_BYTES: u64 = 64;
/// The size of the header of a record, in bytes.
pub(crate) const RECORD_HEADER_BYTES: usize = 32;
/// Largest payload of a record, in bytes.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 40 << 20;
/// Largest size of a log object, in bytes.
pub(crate) const OBJECT_BYTES_MAX: u64 = 64 << 20;

const _: () = assert!(HEADER_BYTES + (RECORD_HEADER_BYTES + PAYLOAD_BYTES_MAX) as u64 <= OBJECT_BYTES_MAX);

/// The guard of a log object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    /// The epoch of the process that may append.
    pub(crate) epoch: u64,
    /// The count of valid bytes.
    pub(crate) position: u64,
}

impl Guard {
    pub(crate) fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..].copy_from_slice(&self.position.to_le_bytes());
        bytes
    }

    /// Returns the guard, or `None` if the bytes are not a guard.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Guard> {
        let mut fields = Fields(bytes);
        let guard = Guard { epoch: fields.u64()?, position: fields.u64()? };
        let valid = (HEADER_BYTES..=OBJECT_BYTES_MAX).contains(&guard.position);
        (fields.0.is_empty() && valid).then_some(guard)
    }
}

/// The header of a log object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: Id,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
    /// The sequence of the first record.
    pub(crate) sequence: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.id);
        for number in [self.epoch, self.number, self.sequence, 0] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let sum = checksum(&bytes, &[]);
        bytes.extend_from_slice(&sum.to_le_bytes());
        debug_assert_eq!(bytes.len() as u64, HEADER_BYTES);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Header, Fault> {
        let fault = |reason| Fault { offset: 0, reason };
        let Some(bytes) = bytes.get(..HEADER_BYTES as usize) else {
            return Err(fault("the header ends too early"));
        };
        if !bytes.starts_with(MAGIC) {
            return Err(fault("not a log object"));
        }
        let mut fields = Fields(&bytes[MAGIC.len()..]);
        let mut parse = || {
            let header = Header {
                id: fields.array()?,
                epoch: fields.u64()?,
                number: fields.u64()?,
                sequence: fields.u64()?,
            };
            Some((header, fields.u64()?, fields.u64()?))
        };
        match parse() {
            Some((header, 0, sum)) if sum == checksum(&bytes[..56], &[]) => Ok(header),
            _ => Err(fault("the checksum of the header differs")),
        }
    }
}

/// Returns the bytes of a record. The payload has at most [`PAYLOAD_BYTES_MAX`] bytes.
pub(crate) fn encode_record(sequence: u64, epoch: u64, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX);
    let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES + payload.len());
    bytes.extend_from_slice(RECORD_MAGIC);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&epoch.to_le_bytes());
    let sum = checksum(&bytes, payload);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A record of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The number of the record: 1 for the first of a log, then consecutive.
    pub sequence: u64,
    /// The epoch of the owner that appended the record.
    pub epoch: u64,
    /// The bytes that were appended.
    pub payload: &'a [u8],
}

/// Returns the record at an offset of a log object, whose valid bytes are `bytes`.
fn decode_record(bytes: &[u8], offset: usize) -> Result<Record<'_>, Fault> {
    let fault = |reason| Fault { offset: offset as u64, reason };
    let rest = &bytes[offset..];
    if !rest.starts_with(RECORD_MAGIC) {
        return Err(fault("no record begins here"));
    }
    let mut fields = Fields(&rest[RECORD_MAGIC.len()..]);
    let mut parse = || Some((fields.u32()?, fields.u64()?, fields.u64()?, fields.u64()?));
    let (length, sequence, epoch, sum) = parse().ok_or_else(|| fault("the record's header is incomplete"))?;
    let length = usize::try_from(length).ok().filter(|length| *length <= PAYLOAD_BYTES_MAX);
    let payload = length.and_then(|length| fields.bytes(length));
    let payload = payload.ok_or_else(|| fault("the record is longer than the object, or than the limit"))?;
    if checksum(&rest[..RECORD_HEADER_BYTES - 8], payload) != sum {
        return Err(fault("the checksum of the record differs"));
    }
    Ok(Record { sequence, epoch, payload })
}

/// The sequence and the epoch that the next record of a replay must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) sequence: u64,
    /// The smallest epoch that the next record may have.
    pub(crate) epoch: u64,
}

/// Passes the records of a log object to `visit`. `bytes` are all valid bytes of the object, so any
/// of them may have been acknowledged. Returns the values that the first record of the next
/// object must have.
pub(crate) fn replay<E: From<Fault>>(
    bytes: &[u8],
    header: &Header,
    expected: Expected,
    epoch_max: u64,
    visit: &mut dyn FnMut(Record<'_>) -> Result<(), E>,
) -> Result<Expected, E> {
    let found = Header::decode(bytes)?;
    let fault = |offset: usize, reason| E::from(Fault { offset: offset as u64, reason });
    if found != *header {
        return Err(fault(0, "the header is that of another log object"));
    }
    let mut expected = Expected { epoch: expected.epoch.max(header.epoch), ..expected };
    let mut offset = HEADER_BYTES as usize;
    while offset < bytes.len() {
        let record = decode_record(bytes, offset)?;
        if record.sequence != expected.sequence {
            return Err(fault(offset, "the record does not have the next sequence number"));
        }
        if !(expected.epoch..=epoch_max).contains(&record.epoch) {
            return Err(fault(
                offset,
                "the epoch of the record is smaller than that of the record before it, or was not yet taken",
            ));
        }
        visit(record)?;
        expected = Expected { sequence: expected.sequence + 1, epoch: record.epoch };
        offset += RECORD_HEADER_BYTES + record.payload.len();
    }
    Ok(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { id: [7; 16], epoch: 2, number: 5, sequence: 10 };
    const EXPECTED: Expected = Expected { sequence: 10, epoch: 1 };

    fn object() -> Vec<u8> {
        let mut bytes = HEADER.encode();
        bytes.extend(encode_record(10, 2, b"first"));
        bytes.extend(encode_record(11, 2, b""));
        bytes.extend(encode_record(12, 3, b"third"));
        bytes
    }

    /// The sequence, the epoch and the payload of a record.
    type Found = (u64, u64, Vec<u8>);

    fn read(bytes: &[u8], expected: Expected, epoch_max: u64) -> Result<(Vec<Found>, Expected), Fault> {
        let mut found = Vec::new();
        let next = replay(bytes, &HEADER, expected, epoch_max, &mut |record| {
            found.push((record.sequence, record.epoch, record.payload.to_vec()));
            Ok::<_, Fault>(())
        })?;
        Ok((found, next))
    }

    #[test]
    fn records_are_replayed_in_their_order() {
        let (found, next) = read(&object(), EXPECTED, 3).expect("a sound object");
        let all = [(10, 2, b"first".to_vec()), (11, 2, Vec::new()), (12, 3, b"third".to_vec())];
        assert_eq!(found, all);
        assert_eq!(next, Expected { sequence: 13, epoch: 3 });
    }

    #[test]
    fn records_out_of_sequence_and_of_wrong_epochs_are_faults() {
        let fault = |expected, epoch_max| read(&object(), expected, epoch_max).expect_err("a fault");
        assert_eq!(fault(Expected { sequence: 9, ..EXPECTED }, 3).offset, 64);
        assert_eq!(fault(Expected { epoch: 3, ..EXPECTED }, 3).offset, 64);
        assert_eq!(fault(EXPECTED, 2).offset, 64 + 32 + 5 + 32);
    }

    #[test]
    fn every_changed_byte_and_every_cut_between_records_is_found() {
        let bytes = object();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            read(&changed, EXPECTED, 3).expect_err("a byte was changed");
        }
        let boundaries = [64, 101, 133, 170];
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length], EXPECTED, 3).is_ok(), boundaries.contains(&length), "{length}");
        }
    }

    #[test]
    fn a_guard_outside_of_the_limits_is_none() {
        let guard = Guard { epoch: 3, position: 170 };
        assert_eq!(Guard::decode(&guard.encode()), Some(guard));
        assert_eq!(Guard::decode(&guard.encode()[..15]), None);
        for position in [0, 63, OBJECT_BYTES_MAX + 1, u64::MAX] {
            assert_eq!(Guard::decode(&Guard { epoch: 1, position }.encode()), None);
        }
    }
}
