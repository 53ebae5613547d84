//! The positions and orders of the frames of one data log: maps payload offsets to data log offsets
//! and to the order of the write. Pure functions on values, no I/O. docs/formats/log.md defines the
//! terms.

use std::ops::RangeInclusive;

use crate::format::bytes::{Bytes, put_varint};
use crate::format::damage::LogDamage;
use crate::format::offsets::{LogPosition, PayloadOffset};
use crate::format::runs::FILE_END_MAX;

/// Size of a frame's header without its runs, in bytes.
pub const FRAME_HEAD_BYTES: u64 = 56;
/// The largest payload of a frame, in bytes.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 30;
/// The largest size of the encoded runs of a frame, in bytes.
pub const RUNS_BYTES_MAX: u64 = 16 << 20;
/// Size of the checksum after each block, in bytes.
pub const SUM_BYTES: u64 = 8;

/// Added to the size of a frame's header and runs if it is a frame of zeros. Larger than every such
/// size.
pub const ZEROS_MARK: u64 = 1 << 31;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// The data log has the payload.
    Data,
    /// All bytes of the payload are zero. The data log has a checksum in its place.
    Zeros,
}

impl FrameKind {
    /// Returns the size of a payload in the data log. A checksum follows each block.
    pub fn stored_bytes(self, payload_bytes: u64, block_bytes: u64) -> u64 {
        match self {
            FrameKind::Data => payload_bytes + payload_bytes.div_ceil(block_bytes) * SUM_BYTES,
            FrameKind::Zeros => SUM_BYTES,
        }
    }
}

/// The order of a write. Of two writes to the same byte, the one with the larger order is later and
/// determines the byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Order {
    pub epoch: u64,
    pub sequence: u64,
    pub writer: u64,
}

/// Consecutive frames of equal size with equally spaced sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameGroup {
    pub payload_start: PayloadOffset,
    /// Offset of the first frame in the data log.
    pub log_offset: u64,
    /// Size of each frame's header and runs.
    pub head_bytes: u64,
    /// Size of each frame's payload.
    pub payload_bytes: u64,
    pub kind: FrameKind,
    pub repeat: u64,
    pub epoch: u64,
    pub sequence: u64,
    pub step: u64,
}

/// One frame, found by a payload offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    pub payload_start: PayloadOffset,
    pub payload_bytes: u64,
    /// Offset of the payload in the data log.
    pub payload_log_offset: u64,
    pub kind: FrameKind,
    pub epoch: u64,
    pub sequence: u64,
}

impl Frame {
    pub fn payload_end(&self) -> PayloadOffset {
        self.payload_start + self.payload_bytes
    }

    /// Returns the offset of the end of the frame in the data log.
    pub fn log_end(&self, block_bytes: u64) -> u64 {
        self.payload_log_offset + self.kind.stored_bytes(self.payload_bytes, block_bytes)
    }
}

impl FrameGroup {
    fn payload_end(&self) -> PayloadOffset {
        self.payload_start + self.payload_bytes * self.repeat
    }

    fn frame_bytes(&self, block_bytes: u64) -> u64 {
        self.head_bytes + self.kind.stored_bytes(self.payload_bytes, block_bytes)
    }

    fn log_end(&self, block_bytes: u64) -> u64 {
        self.log_offset + self.frame_bytes(block_bytes) * self.repeat
    }

    /// Merges `next` into this group if it continues it with the same sizes and spacing.
    fn absorb(&mut self, next: &FrameGroup) -> bool {
        let alike = (self.head_bytes, self.payload_bytes, self.kind, self.epoch)
            == (next.head_bytes, next.payload_bytes, next.kind, next.epoch);
        if !alike || next.sequence < self.sequence {
            return false;
        }
        let distance = next.sequence - self.sequence;
        let step = if self.repeat == 1 { distance } else { self.step };
        if step.checked_mul(self.repeat) != Some(distance) || (next.repeat > 1 && next.step != step) {
            return false;
        }
        self.step = step;
        self.repeat += next.repeat;
        true
    }
}

/// The known frames of one data log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frames {
    groups: Vec<FrameGroup>,
    block_bytes: u64,
    log_start: u64,
}

impl Frames {
    /// Creates an empty list. The first frame begins at offset `log_start` of the data log.
    pub fn new(block_bytes: u64, log_start: u64) -> Frames {
        Frames { groups: Vec::new(), block_bytes, log_start }
    }

    /// Returns the payload offset after the last frame.
    pub fn payload_end(&self) -> PayloadOffset {
        self.groups.last().map(FrameGroup::payload_end).unwrap_or_default()
    }

    /// Returns the number of payload bytes in all frames.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_end().0
    }

    /// Returns the data log offset of the next frame.
    pub fn log_end(&self) -> u64 {
        self.groups.last().map_or(self.log_start, |group| group.log_end(self.block_bytes))
    }

    /// Returns the end of the last frame.
    pub fn end(&self) -> LogPosition {
        LogPosition { log_offset: self.log_end(), payload: self.payload_end() }
    }

    /// Returns the data log offset of the first frame.
    pub fn log_start(&self) -> u64 {
        self.log_start
    }

    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    pub fn groups(&self) -> &[FrameGroup] {
        &self.groups
    }

    /// Adds a frame after the last one.
    pub fn push(&mut self, kind: FrameKind, head_bytes: u64, payload_bytes: u64, epoch: u64, sequence: u64) {
        let (payload_start, log_offset) = (PayloadOffset::ZERO, 0);
        self.push_group(FrameGroup {
            payload_start,
            log_offset,
            head_bytes,
            payload_bytes,
            kind,
            repeat: 1,
            epoch,
            sequence,
            step: 0,
        });
    }

    /// Adds a group after the last frame, with the offsets that it has there.
    fn push_group(&mut self, group: FrameGroup) {
        let group = FrameGroup { payload_start: self.payload_end(), log_offset: self.log_end(), ..group };
        if !self.groups.last_mut().is_some_and(|last| last.absorb(&group)) {
            self.groups.push(group);
        }
    }

    /// Adds the frames of `next`. Their payload offsets begin at 0, and their first frame begins at
    /// the data log offset at which these frames end.
    pub fn append(&mut self, next: Frames) {
        next.groups.into_iter().for_each(|group| self.push_group(group));
    }

    /// Adds the frames of `next`, as `append` does, that begin at the payload offset `from` of
    /// `next` or later. Works on groups, because a group may stand for too many frames to visit
    /// each.
    pub fn append_from(&mut self, next: Frames, from: PayloadOffset) {
        for group in next.groups {
            let known = from.bytes_after(group.payload_start).div_ceil(group.payload_bytes);
            if known < group.repeat {
                let sequence = group.sequence + known * group.step;
                self.push_group(FrameGroup { repeat: group.repeat - known, sequence, ..group });
            }
        }
    }

    /// Returns the frame that contains this payload offset, which must be below
    /// [`Frames::payload_end`].
    pub fn frame(&self, payload: PayloadOffset) -> Frame {
        let after = self.groups.partition_point(|group| group.payload_start <= payload);
        let group = &self.groups[after - 1];
        let i = (payload - group.payload_start) / group.payload_bytes;
        debug_assert!(i < group.repeat);
        Frame {
            payload_start: group.payload_start + i * group.payload_bytes,
            payload_bytes: group.payload_bytes,
            payload_log_offset: group.log_offset + i * group.frame_bytes(self.block_bytes) + group.head_bytes,
            kind: group.kind,
            epoch: group.epoch,
            sequence: group.sequence + i * group.step,
        }
    }

    /// Returns true if the payload of every frame begins within the first `bytes` of the data log.
    pub fn begins_within(&self, bytes: u64) -> bool {
        self.last().is_none_or(|last| last.payload_log_offset < bytes)
    }

    /// Returns the last frame.
    pub fn last(&self) -> Option<Frame> {
        let group = self.groups.last()?;
        Some(self.frame(group.payload_start + (group.repeat - 1) * group.payload_bytes))
    }

    /// Returns every frame with the size of its header and runs.
    pub fn iter(&self) -> impl Iterator<Item = (Frame, u64)> {
        self.groups.iter().flat_map(|group| {
            (0..group.repeat)
                .map(|i| (self.frame(group.payload_start + i * group.payload_bytes), group.head_bytes))
        })
    }

    /// Returns the first and last epoch, or `None` if there are no frames.
    pub fn epochs(&self) -> Option<RangeInclusive<u64>> {
        let first = self.groups.iter().map(|group| group.epoch).min()?;
        Some(first..=self.groups.iter().map(|group| group.epoch).max()?)
    }

    /// Encodes the groups as an index log and a flat index hold them.
    pub fn encode(groups: &[FrameGroup], out: &mut Vec<u8>) {
        for group in groups {
            let mark = if group.kind == FrameKind::Zeros { ZEROS_MARK } else { 0 };
            let head = group.head_bytes + mark;
            for value in [group.repeat, head, group.payload_bytes, group.epoch, group.sequence] {
                put_varint(out, value);
            }
            if group.repeat != 1 {
                put_varint(out, group.step);
            }
        }
    }

    /// Decodes and adds `count` groups that `encode` wrote, and verifies each.
    pub(crate) fn decode(&mut self, bytes: &mut Bytes<'_>, count: u64) -> Result<(), LogDamage> {
        for _ in 0..count {
            let [repeat, head, payload] = [bytes.varint()?, bytes.varint()?, bytes.varint()?];
            let [epoch, sequence] = [bytes.varint()?, bytes.varint()?];
            let step = if repeat == 1 { 0 } else { bytes.varint()? };
            let (kind, head) = match head.checked_sub(ZEROS_MARK) {
                Some(head) => (FrameKind::Zeros, head),
                None => (FrameKind::Data, head),
            };
            let head_fits = (FRAME_HEAD_BYTES..=FRAME_HEAD_BYTES + RUNS_BYTES_MAX).contains(&head);
            let fits = head_fits && (1..=PAYLOAD_BYTES_MAX).contains(&payload) && repeat > 0;
            let end = || {
                let size = head + kind.stored_bytes(payload, self.block_bytes);
                size.checked_mul(repeat)?.checked_add(self.log_end())
            };
            let last = || step.checked_mul(repeat - 1)?.checked_add(sequence);
            // Frames of zeros take no space, so the size of the log does not bound their payload.
            let payload_end = || payload.checked_mul(repeat)?.checked_add(self.payload_end().0);
            let is_too_long = || {
                let ends = end().zip(payload_end());
                ends.is_none_or(|(log, payload)| log.max(payload) > FILE_END_MAX)
            };
            if !fits || is_too_long() || last().is_none() {
                return Err(bytes.damage("a frame has an invalid value"));
            }
            self.push_group(FrameGroup {
                payload_start: PayloadOffset::ZERO,
                log_offset: 0,
                head_bytes: head,
                payload_bytes: payload,
                kind,
                repeat,
                epoch,
                sequence,
                step,
            });
        }
        Ok(())
    }
}

/// Extends `epochs` so that it contains `added`. `None` contains no epoch.
pub fn widen_epochs(epochs: &mut Option<RangeInclusive<u64>>, added: RangeInclusive<u64>) {
    let known = epochs.take().unwrap_or_else(|| added.clone());
    *epochs = Some(*known.start().min(added.start())..=*known.end().max(added.end()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_testkit::Random;

    #[test]
    fn equal_frames_are_one_group() {
        let mut frames = Frames::new(16_384, 64);
        for i in 0..11_200 {
            frames.push(FrameKind::Data, 70, 4 << 20, 3, 5 + 4 * i);
        }
        assert_eq!(frames.groups().len(), 1);
        let size = 70 + (4 << 20) + 256 * 8;
        assert_eq!(frames.log_end(), 64 + 11_200 * size);
        let third = frames.frame(PayloadOffset((4 << 20) * 2 + 17));
        assert_eq!((third.payload_start, third.sequence, third.epoch), (PayloadOffset(8 << 20), 13, 3));
        assert_eq!(third.payload_log_offset, 64 + 2 * size + 70);
    }

    #[test]
    fn every_frame_is_found_by_each_payload_offset_in_it_and_after_encoding() {
        let mut random = Random::new(2);
        for _ in 0..200 {
            let mut frames = Frames::new(4096, 64);
            let mut expected = Vec::new();
            let (mut sequence, mut epoch) = (0, 1);
            for _ in 0..random.below(40) {
                sequence += random.below(3) as u64;
                epoch += u64::from(random.one_in(10));
                let head = 56 + random.below(3) as u64;
                let payload = if random.one_in(3) { 4096 * 3 } else { 1 + random.below(10_000) as u64 };
                let log_offset = frames.log_end() + head;
                let kind = if random.one_in(4) { FrameKind::Zeros } else { FrameKind::Data };
                expected.push((frames.payload_end(), payload, log_offset, kind, epoch, sequence));
                frames.push(kind, head, payload, epoch, sequence);
                let stored = if kind == FrameKind::Zeros { 8 } else { payload + payload.div_ceil(4096) * 8 };
                assert_eq!(frames.log_end(), log_offset + stored);
            }
            let mut encoded = Vec::new();
            Frames::encode(frames.groups(), &mut encoded);
            let mut decoded = Frames::new(4096, 64);
            decoded.decode(&mut Bytes::new(&encoded, "test"), frames.groups().len() as u64).unwrap();
            assert_eq!(decoded, frames);
            for (payload_start, payload_bytes, payload_log_offset, kind, epoch, sequence) in expected {
                for within in [0, payload_bytes / 2, payload_bytes - 1] {
                    let found = decoded.frame(payload_start + within);
                    assert_eq!(
                        found,
                        Frame { payload_start, payload_bytes, payload_log_offset, kind, epoch, sequence }
                    );
                }
            }
        }
    }

    #[test]
    fn known_frames_of_a_group_are_skipped_without_visiting_each() {
        let whole = FrameGroup {
            payload_start: PayloadOffset::ZERO,
            log_offset: 0,
            head_bytes: 60,
            payload_bytes: 10,
            kind: FrameKind::Data,
            repeat: 1 << 40,
            epoch: 1,
            sequence: 5,
            step: 3,
        };
        let group = |frames: &mut Frames| frames.push_group(whole);
        for (from, first, sequence) in [
            (0, 0, 5),
            (1, 10, 8),
            (10, 10, 8),
            ((1 << 40) * 10 - 10, (1 << 40) * 10 - 10, 5 + 3 * ((1 << 40) - 1)),
        ] {
            let mut next = Frames::new(4096, 0);
            group(&mut next);
            next.push(FrameKind::Data, 60, 7, 2, 9);
            let (mut known, mut expected) = (Frames::new(4096, 64), Frames::new(4096, 64));
            known.append_from(next, PayloadOffset(from));
            expected.push_group(FrameGroup { repeat: (1 << 40) - first / 10, sequence, ..whole });
            expected.push(FrameKind::Data, 60, 7, 2, 9);
            assert_eq!(known.payload_end(), PayloadOffset((1 << 40) * 10 - first + 7));
            assert_eq!(known.frame(PayloadOffset(0)).sequence, sequence);
            assert_eq!((known.log_end(), known.epochs()), (expected.log_end(), expected.epochs()));
        }
        let mut next = Frames::new(4096, 0);
        group(&mut next);
        let mut known = Frames::new(4096, 64);
        known.append_from(next, PayloadOffset((1 << 40) * 10));
        assert_eq!(known.groups(), []);
    }

    #[test]
    fn impossible_frame_sizes_are_refused() {
        let refused = |repeat: u64, head: u64, payload: u64, sequence: u64, step: u64| {
            let mut bytes = Vec::new();
            for value in [repeat, head, payload, 1, sequence, step] {
                put_varint(&mut bytes, value);
            }
            Frames::new(4096, 64).decode(&mut Bytes::new(&bytes, "test"), 1).is_err()
        };
        assert!(!refused(2, 60, 100, 5, 3));
        assert!(refused(2, u64::MAX, 100, 5, 3) && refused(2, 60, u64::MAX, 5, 3) && refused(2, 60, 0, 5, 3));
        assert!(refused(0, 60, 100, 5, 3) && refused(u64::MAX, 60, 100, 5, 3));
        let zeros = ZEROS_MARK + 60;
        assert!(!refused(2, zeros, 100, 5, 3) && refused(2, zeros, 0, 5, 3));
        assert!(refused(2, ZEROS_MARK + 55, 100, 5, 3) && refused(2, 2 * ZEROS_MARK, 100, 5, 3));
        assert!(refused(1 << 40, zeros, 1 << 30, 5, 3), "its payload has too many bytes");
        assert!(refused(2, 60, 100, u64::MAX, 1) && refused(3, 60, 100, 5, u64::MAX / 2 + 1));
    }

    #[test]
    fn order_is_epoch_then_sequence_then_writer() {
        let order = |epoch, sequence, writer| Order { epoch, sequence, writer };
        assert!(order(2, 0, 0) > order(1, 9, 9));
        assert!(order(1, 2, 0) > order(1, 1, 9));
        assert!(order(1, 1, 2) > order(1, 1, 1));
    }
}
