//! Headers of the frames in a data log, with the runs that follow them: encodes and decodes them.
//! The format is described in docs/formats/log.md. Pure functions on values, no I/O.

use xxhash_rust::xxh3::Xxh3;

use crate::format::bytes::{Bytes, u32_at, u64_at};
use crate::format::damage::LogDamage;
use crate::format::frames::{
    FRAME_HEAD_BYTES, Frame, FrameKind, PAYLOAD_BYTES_MAX, RUNS_BYTES_MAX, ZEROS_MARK,
};
use crate::format::offsets::PayloadOffset;
use crate::format::runs::{Run, decode_run_list, encode_runs};

const MAGIC: &[u8; 4] = b"FRAM";
const SUM_AT: usize = 48;

/// The fields of a frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    pub kind: FrameKind,
    pub runs_bytes: u64,
    pub payload_bytes: u64,
    pub epoch: u64,
    pub sequence: u64,
    pub payload_start: PayloadOffset,
    pub runs: u64,
}

impl FrameHead {
    /// Returns the size of the header and the runs in bytes.
    pub fn bytes(&self) -> u64 {
        FRAME_HEAD_BYTES + self.runs_bytes
    }

    /// Returns the frame whose header is at this log offset.
    pub fn frame(&self, log_offset: u64) -> Frame {
        Frame {
            payload_start: self.payload_start,
            payload_bytes: self.payload_bytes,
            payload_log_offset: log_offset + self.bytes(),
            kind: self.kind,
            epoch: self.epoch,
            sequence: self.sequence,
        }
    }
}

/// Encodes the header and the runs of a frame.
pub fn encode_frame_head(
    kind: FrameKind,
    runs: &[Run],
    payload_bytes: u64,
    epoch: u64,
    sequence: u64,
    payload_start: PayloadOffset,
) -> Vec<u8> {
    let mut encoded = Vec::new();
    encode_runs(runs, &mut encoded);
    seal_frame_head(kind, &encoded, runs.len() as u64, payload_bytes, epoch, sequence, payload_start)
}

/// Returns the header of a frame with its `runs` encoded runs.
pub(super) fn seal_frame_head(
    kind: FrameKind,
    encoded: &[u8],
    runs: u64,
    payload_bytes: u64,
    epoch: u64,
    sequence: u64,
    payload_start: PayloadOffset,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(FRAME_HEAD_BYTES as usize + encoded.len());
    out.resize(FRAME_HEAD_BYTES as usize, 0);
    out.extend_from_slice(encoded);
    let mark = if kind == FrameKind::Zeros { ZEROS_MARK as u32 } else { 0 };
    let runs_bytes = encoded.len() as u32 + mark;
    out[..4].copy_from_slice(MAGIC);
    out[4..8].copy_from_slice(&runs_bytes.to_le_bytes());
    for (at, value) in [(8, payload_bytes), (16, epoch), (24, sequence), (32, payload_start.0), (40, runs)] {
        out[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let sum = head_sum(&out);
    out[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
    out
}

fn head_sum(head_and_runs: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&head_and_runs[..SUM_AT]);
    sum.update(&head_and_runs[FRAME_HEAD_BYTES as usize..]);
    sum.digest()
}

/// Decodes the fixed part of a header. Its checksum also covers the runs and is verified by
/// `decode_frame_runs`.
pub fn decode_frame_head(bytes: &[u8; FRAME_HEAD_BYTES as usize]) -> Result<FrameHead, LogDamage> {
    let damage = |offset, reason| LogDamage { object: "a frame", offset, reason };
    if &bytes[..4] != MAGIC {
        return Err(damage(0, "wrong magic number"));
    }
    let size = u64::from(u32_at(bytes, 4));
    let (kind, runs_bytes) = match size.checked_sub(ZEROS_MARK) {
        Some(runs_bytes) => (FrameKind::Zeros, runs_bytes),
        None => (FrameKind::Data, size),
    };
    let head = FrameHead {
        kind,
        runs_bytes,
        payload_bytes: u64_at(bytes, 8),
        epoch: u64_at(bytes, 16),
        sequence: u64_at(bytes, 24),
        payload_start: PayloadOffset(u64_at(bytes, 32)),
        runs: u64_at(bytes, 40),
    };
    if head.runs_bytes > RUNS_BYTES_MAX || !(1..=PAYLOAD_BYTES_MAX).contains(&head.payload_bytes) {
        return Err(damage(4, "the size is invalid"));
    }
    Ok(head)
}

/// Decodes the runs of a frame from its complete header and runs, after verifying the checksum.
pub fn decode_frame_runs(head: &FrameHead, head_and_runs: &[u8]) -> Result<Vec<Run>, LogDamage> {
    let damage = |offset, reason| LogDamage { object: "a frame", offset, reason };
    if head_sum(head_and_runs) != u64_at(head_and_runs, SUM_AT) {
        return Err(damage(SUM_AT as u64, "the checksum does not match"));
    }
    let mut bytes = Bytes::new(&head_and_runs[FRAME_HEAD_BYTES as usize..], "the runs of a frame");
    // Each run takes at least two bytes.
    let mut runs = Vec::with_capacity(head.runs.min(head.runs_bytes) as usize);
    let mut sum = 0u64;
    decode_run_list(&mut bytes, head.runs, |run| {
        sum = sum.saturating_add(run.bytes());
        runs.push(run);
    })?;
    if !bytes.is_empty() || sum != head.payload_bytes {
        return Err(damage(8, "the runs do not add up to the payload"));
    }
    Ok(runs)
}
