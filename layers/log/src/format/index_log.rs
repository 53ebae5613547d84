//! The index log: encodes and decodes the batches that record where in the file a writer's data
//! belongs. The format is described in docs/formats/log.md. Pure functions on values, no I/O.

use xxhash_rust::xxh3::Xxh3;

use crate::format::bytes::{Bytes, u32_at, u64_at};
use crate::format::damage::Damage;
use crate::format::frames::{Frames, PAYLOAD_BYTES_MAX};
use crate::format::runs::{self, Run};

pub const BATCH_HEAD_BYTES: usize = 64;
/// The largest size of a batch's body, in bytes.
pub const BODY_BYTES_MAX: u64 = 64 << 20;

const MAGIC: &[u8; 4] = b"BTCH";
const SUM_AT: usize = 56;

/// Encodes one batch with the given frames and runs. `position` is the payload offset and `place`
/// the data log offset at which the batch begins; the payload offsets of `frames` begin at 0.
/// `is_synced` is true if the data log up to the end of the batch survives a power failure.
pub fn encode(frames: &Frames, runs: &[Run], position: u64, place: u64, is_synced: bool) -> Vec<u8> {
    let mut out = vec![0; BATCH_HEAD_BYTES];
    Frames::encode(frames.groups(), &mut out);
    runs::encode(runs, &mut out);
    let body_bytes = (out.len() - BATCH_HEAD_BYTES) as u32;
    out[..4].copy_from_slice(MAGIC);
    out[4..8].copy_from_slice(&body_bytes.to_le_bytes());
    out[8..12].copy_from_slice(&(frames.groups().len() as u32).to_le_bytes());
    out[12..16].copy_from_slice(&u32::from(is_synced).to_le_bytes());
    let numbers = [runs.len() as u64, position, position + frames.position(), place, frames.place()];
    for (at, value) in (16..).step_by(8).zip(numbers) {
        out[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
    }
    let sum = sum_of(&out);
    out[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
    out
}

fn sum_of(batch: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&batch[..SUM_AT]);
    sum.update(&batch[BATCH_HEAD_BYTES..]);
    sum.digest()
}

/// A complete batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Size of the batch in the index log.
    pub bytes: usize,
    /// The batch's frames at their offsets in the data log. Their payload offsets begin at 0.
    pub frames: Frames,
    pub runs: Vec<Run>,
    /// The data log up to the end of this batch survives a power failure.
    pub is_synced: bool,
}

/// Decodes the batch at the front of `bytes`. The batch must be complete and begin at payload
/// offset `position` and data log offset `place`. Otherwise the index log ends here, and the error
/// gives the reason.
pub fn decode(bytes: &[u8], block_bytes: u64, position: u64, place: u64) -> Result<Batch, Damage> {
    let mut front = Bytes::new(bytes, "an index log");
    let head = front.take(BATCH_HEAD_BYTES)?;
    let body_bytes = u64::from(u32_at(head, 4));
    if &head[..4] != MAGIC || body_bytes > BODY_BYTES_MAX || u32_at(head, 12) > 1 {
        return Err(front.damage("no batch begins here"));
    }
    let body = front.take(body_bytes as usize)?;
    let whole = &bytes[..BATCH_HEAD_BYTES + body.len()];
    if sum_of(whole) != u64_at(head, SUM_AT) {
        return Err(front.damage("the checksum is another"));
    }
    if (u64_at(head, 24), u64_at(head, 40)) != (position, place) {
        return Err(front.damage("it does not go on where the batch before ended"));
    }
    let mut body = Bytes::new(body, "a batch");
    let mut frames = Frames::new(block_bytes, place);
    frames.decode(&mut body, u32_at(head, 8).into())?;
    let mut runs = Vec::new();
    let mut sum = 0u64;
    runs::decode(&mut body, u64_at(head, 16), |run| {
        sum = sum.saturating_add(run.bytes());
        runs.push(run);
    })?;
    let after = (position.checked_add(frames.position()), frames.place());
    if runs.iter().any(|run| run.length > PAYLOAD_BYTES_MAX) {
        return Err(front.damage("an extent cannot be larger than a frame"));
    }
    if !body.is_empty() || sum != frames.position() || after != (Some(u64_at(head, 32)), u64_at(head, 48)) {
        return Err(front.damage("its parts do not fit together"));
    }
    Ok(Batch { bytes: whole.len(), frames, runs, is_synced: u32_at(head, 12) == 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::runs::Runs;

    #[test]
    fn batches_come_back_one_after_another_and_a_torn_one_ends_the_log() {
        let mut frames = Frames::new(16_384, 64);
        let mut log = Vec::new();
        let mut written = Vec::new();
        let mut ends = vec![0];
        for batch in 0..5u64 {
            let mut own = Frames::new(16_384, frames.place());
            let mut runs = Runs::default();
            for frame in 0..=batch {
                own.push(60, 3000, 1, batch * 10 + frame);
                for extent in 0..3 {
                    runs.push(batch * 1_000_000 + frame * 9000 + extent * 2500, 1000);
                }
                runs.cut();
            }
            log.extend(encode(&own, runs.finish(), frames.position(), frames.place(), batch % 2 == 0));
            ends.push(log.len());
            written.extend_from_slice(runs.finish());
            frames.append(own);
        }
        let read = |log: &[u8]| {
            let (mut frames, mut runs, mut at) = (Frames::new(16_384, 64), Vec::new(), 0);
            while let Ok(batch) = decode(&log[at..], 16_384, frames.position(), frames.place()) {
                at += batch.bytes;
                runs.extend(batch.runs);
                frames.append(batch.frames);
            }
            (frames, runs, at)
        };
        assert_eq!(read(&log), (frames, written.clone(), log.len()));
        for cut in 0..log.len() {
            let (_, runs, at) = read(&log[..cut]);
            assert_eq!(at, *ends.iter().rfind(|end| **end <= cut).unwrap());
            assert_eq!(runs, written[..runs.len()]);
        }
        for at in ends[1]..ends[2] {
            let mut wrong = log.clone();
            wrong[at] ^= 1;
            assert_eq!(read(&wrong).2, ends[1], "byte {at}");
        }
    }
}
