//! The head of a log.

use crate::fields::{Fault, Fields, checksum};

const MAGIC: &[u8; 8] = b"QUELLRH1";
/// Largest count of log objects.
pub(crate) const LOG_OBJECTS_MAX: usize = 4096;
/// Largest count of the pieces of a checkpoint.
pub(crate) const PIECES_MAX: u32 = 1 << 20;
const FIXED_BYTES: usize = 96;
/// Largest size of a head, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = FIXED_BYTES + 16 * LOG_OBJECTS_MAX + 8;

/// The id of a store.
pub(crate) type Id = [u8; 16];

/// A log object that the head names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogObject {
    /// The epoch of its creation.
    pub(crate) epoch: u64,
    /// The position of the object in the order of all log objects of the store.
    pub(crate) number: u64,
}

/// The checkpoint that the head names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) epoch: u64,
    /// The number of the first log object that must be replayed after it.
    pub(crate) number: u64,
    pub(crate) pieces: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) id: Id,
    pub(crate) epoch: u64,
    pub(crate) owner: [u8; 16],
    pub(crate) version: u64,
    /// The number of the next log object.
    pub(crate) next: u64,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// The sequence of the first record of the first log object.
    pub(crate) sequence: u64,
    /// Oldest first.
    pub(crate) logs: Vec<LogObject>,
}

/// Returns the value of the guard of a head.
pub(crate) fn guard(version: u64) -> [u8; 8] {
    version.to_le_bytes()
}

impl Head {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + 16 * self.logs.len() + 8);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.owner);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.next.to_le_bytes());
        let checkpoint = self.checkpoint.unwrap_or(Checkpoint { epoch: 0, number: 0, pieces: 0 });
        bytes.extend_from_slice(&checkpoint.epoch.to_le_bytes());
        bytes.extend_from_slice(&checkpoint.number.to_le_bytes());
        bytes.extend_from_slice(&checkpoint.pieces.to_le_bytes());
        bytes.extend_from_slice(&(self.logs.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        debug_assert_eq!(bytes.len(), FIXED_BYTES);
        for log in &self.logs {
            bytes.extend_from_slice(&log.epoch.to_le_bytes());
            bytes.extend_from_slice(&log.number.to_le_bytes());
        }
        let sum = checksum(&bytes, &[]);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Head, Fault> {
        let fault = |offset, reason| Fault { offset, reason };
        if !bytes.starts_with(MAGIC) {
            return Err(fault(0, "not the head of a log"));
        }
        let short = || fault(bytes.len() as u64, "the head ends too early");
        let mut fields = Fields(&bytes[MAGIC.len()..]);
        let mut parse = || {
            let (id, epoch, owner) = (fields.array()?, fields.u64()?, fields.array()?);
            let (version, next) = (fields.u64()?, fields.u64()?);
            let checkpoint =
                Checkpoint { epoch: fields.u64()?, number: fields.u64()?, pieces: fields.u32()? };
            let (count, sequence) = (fields.u32()?, fields.u64()?);
            Some((
                Head {
                    id,
                    epoch,
                    owner,
                    version,
                    next,
                    checkpoint: Some(checkpoint),
                    sequence,
                    logs: Vec::new(),
                },
                count,
            ))
        };
        let (mut head, count) = parse().ok_or_else(short)?;
        let count = usize::try_from(count).ok().filter(|count| *count <= LOG_OBJECTS_MAX);
        let count = count.ok_or_else(|| fault(84, "more log objects than the limit"))?;
        if bytes.len() != FIXED_BYTES + 16 * count + 8 {
            return Err(fault(84, "the size of the head does not agree with the count of log objects"));
        }
        let (content, sum) = bytes.split_at(bytes.len() - 8);
        if checksum(content, &[]).to_le_bytes() != sum {
            return Err(fault(content.len() as u64, "the checksum of the head differs"));
        }
        match head.checkpoint {
            Some(Checkpoint { epoch: 0, number: 0, pieces: 0 }) => head.checkpoint = None,
            Some(checkpoint) if checkpoint.epoch == 0 || checkpoint.epoch > head.epoch => {
                return Err(fault(64, "the checkpoint has an epoch that was never taken"));
            }
            Some(checkpoint) if checkpoint.pieces > PIECES_MAX => {
                return Err(fault(80, "more pieces of the checkpoint than the limit"));
            }
            _ => {}
        }
        for index in 0..count {
            let offset = (FIXED_BYTES + 16 * index) as u64;
            let mut log = || Some(LogObject { epoch: fields.u64()?, number: fields.u64()? });
            let log = log().ok_or_else(short)?;
            let ascends =
                head.logs.last().is_none_or(|last| last.number < log.number && last.epoch <= log.epoch);
            if !ascends || log.number >= head.next || log.epoch > head.epoch {
                return Err(fault(offset, "the log objects are not in order"));
            }
            head.logs.push(log);
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn example() -> Head {
        let checkpoint = Some(Checkpoint { epoch: 2, number: 4, pieces: 3 });
        let logs = vec![LogObject { epoch: 2, number: 4 }, LogObject { epoch: 3, number: 6 }];
        Head { id: [1; 16], epoch: 3, owner: [2; 16], version: 9, next: 7, checkpoint, sequence: 100, logs }
    }

    #[test]
    fn a_head_is_decoded_as_it_was_encoded() {
        let head = example();
        assert_eq!(Head::decode(&head.encode()), Ok(head.clone()));
        let empty = Head { checkpoint: None, logs: Vec::new(), ..head };
        assert_eq!(empty.encode().len(), FIXED_BYTES + 8);
        assert_eq!(Head::decode(&empty.encode()), Ok(empty));
    }

    #[test]
    fn every_changed_byte_is_found() {
        let bytes = example().encode();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 0x40;
            Head::decode(&changed).expect_err("a byte was changed");
            Head::decode(&bytes[..index]).expect_err("the rest is missing");
        }
    }
}
