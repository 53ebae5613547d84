//! The index log: encodes and decodes the batches that record where in the file a writer's data
//! belongs. The format is described in docs/formats/log.md. Pure functions on values, no I/O.

use xxhash_rust::xxh3::Xxh3;

use crate::format::bytes::{Bytes, u32_at, u64_at};
use crate::format::damage::LogDamage;
use crate::format::frames::{Frames, PAYLOAD_BYTES_MAX};
use crate::format::offsets::LogPosition;
use crate::format::runs::{Run, decode_run_list, encode_runs};

pub const BATCH_HEAD_BYTES: usize = 64;
/// The largest size of a batch's body, in bytes.
pub const BODY_BYTES_MAX: u64 = 64 << 20;

const MAGIC: &[u8; 4] = b"BTCH";
const SUM_AT: usize = 56;

/// Encodes one batch with the given frames and runs. `start` is the position in the data log at
/// which the batch begins; the payload offsets of `frames` begin at 0. `is_synced` is true if the
/// data log up to the end of the batch survives a power failure.
pub fn encode_batch(frames: &Frames, runs: &[Run], start: LogPosition, is_synced: bool) -> Vec<u8> {
    let mut out = vec![0; BATCH_HEAD_BYTES];
    Frames::encode(frames.groups(), &mut out);
    encode_runs(runs, &mut out);
    let body_bytes = (out.len() - BATCH_HEAD_BYTES) as u32;
    out[..4].copy_from_slice(MAGIC);
    out[4..8].copy_from_slice(&body_bytes.to_le_bytes());
    out[8..12].copy_from_slice(&(frames.groups().len() as u32).to_le_bytes());
    out[12..16].copy_from_slice(&u32::from(is_synced).to_le_bytes());
    let payload = start.payload;
    let payload_end = payload + frames.payload_bytes();
    let numbers = [runs.len() as u64, payload.0, payload_end.0, start.log_offset, frames.log_end()];
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

/// Decodes the batch at the front of `bytes`. The batch must be complete and begin at `start` in
/// the data log. Otherwise the index log ends here, and the error gives the reason.
pub fn decode_batch(bytes: &[u8], block_bytes: u64, start: LogPosition) -> Result<Batch, LogDamage> {
    let mut front = Bytes::new(bytes, "an index log");
    let head = front.take(BATCH_HEAD_BYTES)?;
    let body_bytes = u64::from(u32_at(head, 4));
    if &head[..4] != MAGIC || body_bytes > BODY_BYTES_MAX || u32_at(head, 12) > 1 {
        return Err(front.damage("there is no valid header of a batch"));
    }
    let body = front.take(body_bytes as usize)?;
    let whole = &bytes[..BATCH_HEAD_BYTES + body.len()];
    if sum_of(whole) != u64_at(head, SUM_AT) {
        return Err(front.damage("the checksum does not match"));
    }
    if (u64_at(head, 24), u64_at(head, 40)) != (start.payload.0, start.log_offset) {
        return Err(front.damage("a batch does not begin at the end of the previous one"));
    }
    let mut body = Bytes::new(body, "a batch");
    let mut frames = Frames::new(block_bytes, start.log_offset);
    frames.decode(&mut body, u32_at(head, 8).into())?;
    let mut runs = Vec::new();
    let mut sum = 0u64;
    decode_run_list(&mut body, u64_at(head, 16), |run| {
        sum = sum.saturating_add(run.bytes());
        runs.push(run);
    })?;
    let after = (start.payload.0.checked_add(frames.payload_bytes()), frames.log_end());
    if runs.iter().any(|run| run.length > PAYLOAD_BYTES_MAX) {
        return Err(front.damage("an extent cannot be larger than a frame"));
    }
    if !body.is_empty()
        || sum != frames.payload_bytes()
        || after != (Some(u64_at(head, 32)), u64_at(head, 48))
    {
        return Err(front.damage("its parts do not fit together"));
    }
    Ok(Batch { bytes: whole.len(), frames, runs, is_synced: u32_at(head, 12) == 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frames::FrameKind;
    use crate::format::offsets::FileOffset;
    use crate::format::runs::Runs;

    #[test]
    fn batches_round_trip_and_a_torn_batch_ends_the_log() {
        let mut frames = Frames::new(16_384, 64);
        let mut log = Vec::new();
        let mut written = Vec::new();
        let mut ends = vec![0];
        for batch in 0..5u64 {
            let mut own = Frames::new(16_384, frames.log_end());
            let mut runs = Runs::default();
            for frame in 0..=batch {
                let kind = if frame % 3 == 2 { FrameKind::Zeros } else { FrameKind::Data };
                own.push(kind, 60, 3000, 1, batch * 10 + frame);
                for extent in 0..3 {
                    runs.push(FileOffset(batch * 1_000_000 + frame * 9000 + extent * 2500), 1000);
                }
                runs.end_extent();
            }
            log.extend(encode_batch(&own, runs.finish(), frames.end(), batch % 2 == 0));
            ends.push(log.len());
            written.extend_from_slice(runs.finish());
            frames.append(own);
        }
        let read = |log: &[u8]| {
            let (mut frames, mut runs, mut at) = (Frames::new(16_384, 64), Vec::new(), 0);
            while let Ok(batch) = decode_batch(&log[at..], 16_384, frames.end()) {
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
