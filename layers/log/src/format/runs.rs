//! Runs: extents of equal length at equal distances, the usual pattern of a checkpoint. Collects
//! extents into runs, and encodes them as docs/formats/log.md ("The data log") describes. Pure
//! functions on values, no I/O.

use crate::format::bytes::{Bytes, put_varint, put_zigzag};
use crate::format::damage::LogDamage;
use crate::format::offsets::{FileOffset, PayloadOffset, PayloadRange};

/// The largest file offset at which a byte may end, because `off_t` is signed.
pub const FILE_END_MAX: u64 = i64::MAX as u64;

/// `count` extents of `length` bytes, `stride` bytes apart in the file and consecutive in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub start: FileOffset,
    /// Without meaning if `count` is 1.
    pub stride: i64,
    pub length: u64,
    /// At least 1.
    pub count: u64,
}

impl Run {
    pub fn one(start: FileOffset, length: u64) -> Run {
        Run { start, stride: 0, length, count: 1 }
    }

    /// Returns the start of extent `i`, which must be below `count`.
    pub fn start_of(&self, i: u64) -> FileOffset {
        FileOffset(self.start.0.wrapping_add_signed(self.stride.wrapping_mul(i as i64)))
    }

    /// Returns the run without its first `i` extents. `i` must be below `count`.
    pub fn after(&self, i: u64) -> Run {
        Run { start: self.start_of(i), count: self.count - i, ..*self }
    }

    /// Returns the end of the last extent.
    pub fn end_of_last(&self) -> FileOffset {
        self.start_of(self.count - 1) + self.length
    }

    /// Returns the largest end of all extents.
    pub fn end(&self) -> FileOffset {
        self.start.max(self.start_of(self.count - 1)) + self.length
    }

    /// Returns the number of bytes in all extents.
    pub fn bytes(&self) -> u64 {
        self.length * self.count
    }

    /// Returns true if an extent overlaps `start..end`.
    pub fn overlaps(&self, start: FileOffset, end: FileOffset) -> bool {
        let low = self.start.min(self.start_of(self.count - 1));
        if end <= low || start >= self.end() || start >= end {
            return false;
        }
        let apart = self.stride.unsigned_abs();
        if self.count == 1 || apart <= self.length {
            return true; // there are no gaps between the extents
        }
        // Only the last extent that begins before `end` can reach beyond `start`.
        let last = ((end - low - 1) / apart).min(self.count - 1);
        low + last * apart + self.length > start
    }
}

/// Collects extents in their order in the log.
#[derive(Debug, Clone, Default)]
pub struct Runs {
    done: Vec<Run>,
    /// Start and length of the extent that the next one may continue.
    open: Option<(FileOffset, u64)>,
    end: FileOffset,
}

impl Runs {
    /// Adds an extent. If it continues the last one, both become one extent.
    pub fn push(&mut self, start: FileOffset, length: u64) {
        self.end = self.end.max(start + length);
        match &mut self.open {
            Some((at, long)) if *at + *long == start => *long += length,
            open => {
                let before = open.replace((start, length));
                if let Some((start, length)) = before {
                    self.fold(start, length);
                }
            }
        }
    }

    /// Ends the current extent, because the next one belongs to another frame.
    pub fn end_extent(&mut self) {
        if let Some((start, length)) = self.open.take() {
            self.fold(start, length);
        }
    }

    fn fold(&mut self, start: FileOffset, length: u64) {
        if let Some(last) = self.done.last_mut().filter(|last| last.length == length) {
            let stride = start.0.wrapping_sub(last.start.0) as i64;
            if last.count == 1 {
                (last.stride, last.count) = (stride, 2);
                return;
            }
            if last.start_of(last.count) == start {
                last.count += 1;
                return;
            }
        }
        self.done.push(Run::one(start, length));
    }

    /// Ends the current extent and returns all runs.
    pub fn finish(&mut self) -> &[Run] {
        self.end_extent();
        &self.done
    }

    pub fn clear(&mut self) {
        self.done.clear();
        (self.open, self.end) = (None, FileOffset::ZERO);
    }

    /// Returns the largest end of all extents.
    pub fn end(&self) -> FileOffset {
        self.end
    }

    /// Returns the number of runs, including the current extent.
    pub fn len(&self) -> usize {
        self.done.len() + usize::from(self.open.is_some())
    }

    pub fn overlaps(&self, start: FileOffset, end: FileOffset) -> bool {
        let open = self.open.is_some_and(|(at, long)| start < at + long && at < end);
        open || self.done.iter().any(|run| run.overlaps(start, end))
    }
}

/// Visits the bytes with payload offsets in `range`, where `runs` begin at payload offset `first`.
/// `visit` receives the payload offset of each piece and its start and end in the file. Returns
/// true if later runs may contain more of the range.
pub fn visit_payload_range(
    runs: &[Run],
    first: PayloadOffset,
    range: PayloadRange,
    visit: &mut dyn FnMut(PayloadOffset, FileOffset, FileOffset),
) -> bool {
    let mut payload = first;
    for run in runs {
        if payload >= range.end {
            return false;
        }
        // Skips the extents before the range without visiting each.
        let mut i = (range.start.bytes_after(payload) / run.length).min(run.count);
        while i < run.count && payload + i * run.length < range.end {
            let at = payload + i * run.length;
            let (from, to) = (at.max(range.start), (at + run.length).min(range.end));
            if from < to {
                let start = run.start_of(i) + (from - at);
                visit(from, start, start + (to - from));
            }
            i += 1;
        }
        payload += run.bytes();
    }
    payload < range.end
}

/// Appends the encoded runs to `out`.
pub fn encode_runs(runs: &[Run], out: &mut Vec<u8>) {
    let mut expected = FileOffset::ZERO;
    for run in runs {
        put_varint(out, run.length << 1 | u64::from(run.count > 1));
        put_zigzag(out, run.start.0.wrapping_sub(expected.0) as i64);
        if run.count > 1 {
            put_zigzag(out, run.stride.wrapping_sub(run.length as i64));
            put_varint(out, run.count - 2);
        }
        expected = run.end_of_last();
    }
}

/// Decodes `count` runs that `encode_runs` wrote, verifies each, and visits it.
pub fn decode_run_list(
    bytes: &mut Bytes<'_>,
    count: u64,
    mut visit: impl FnMut(Run),
) -> Result<(), LogDamage> {
    let mut expected = FileOffset::ZERO;
    for _ in 0..count {
        let head = bytes.varint()?;
        let start = FileOffset(expected.0.wrapping_add_signed(bytes.zigzag()?));
        let length = head >> 1;
        let mut run = Run::one(start, length);
        if head & 1 == 1 {
            run.stride = bytes.zigzag()?.wrapping_add(length as i64);
            run.count = bytes.varint()?.saturating_add(2);
        }
        check(&run).ok_or(bytes.damage("a run is empty or not within the largest file"))?;
        expected = run.end_of_last();
        visit(run);
    }
    Ok(())
}

/// Returns `None` unless all extents lie between 0 and the largest file offset and no sum
/// overflows.
fn check(run: &Run) -> Option<()> {
    let limit = i128::from(FILE_END_MAX);
    let last = i128::from(run.start.0) + i128::from(run.stride).checked_mul(i128::from(run.count) - 1)?;
    let length = i128::from(run.length);
    let fits = run.length > 0
        && i128::from(run.start.0) + length <= limit
        && last >= 0
        && last + length <= limit
        && length * i128::from(run.count) <= limit;
    fits.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_testkit::Random;

    fn extents(runs: &[Run]) -> Vec<(FileOffset, u64)> {
        runs.iter().flat_map(|run| (0..run.count).map(|i| (run.start_of(i), run.length))).collect()
    }

    fn round_trip(runs: &[Run]) -> usize {
        let mut encoded = Vec::new();
        encode_runs(runs, &mut encoded);
        let mut bytes = Bytes::new(&encoded, "test");
        let mut found = Vec::new();
        decode_run_list(&mut bytes, runs.len() as u64, |run| found.push(run)).unwrap();
        assert_eq!(found, runs);
        assert!(bytes.is_empty());
        encoded.len()
    }

    #[test]
    fn a_strided_checkpoint_is_one_run() {
        let mut runs = Runs::default();
        for i in 0..1_000_000u64 {
            runs.push(FileOffset(i * 8 * 47_008 + 3 * 47_008), 47_008);
        }
        assert_eq!(runs.len(), 2); // the last extent may still grow
        assert_eq!(runs.finish().len(), 1);
        assert!(round_trip(runs.finish()) < 20);
    }

    #[test]
    fn records_written_in_pieces_are_one_run() {
        let mut runs = Runs::default();
        for record in 0..100u64 {
            for piece in 0..10 {
                runs.push(FileOffset(record * 1_000_000 + piece * 100), 100);
            }
        }
        assert_eq!(
            runs.finish(),
            [Run { start: FileOffset(0), stride: 1_000_000, length: 1000, count: 100 }]
        );
    }

    #[test]
    fn a_sequential_file_in_frames_is_one_run() {
        let mut runs = Runs::default();
        for frame in 0..50u64 {
            runs.push(FileOffset(frame * 4096), 2048);
            runs.push(FileOffset(frame * 4096 + 2048), 2048);
            runs.end_extent();
        }
        assert_eq!(runs.finish(), [Run { start: FileOffset(0), stride: 4096, length: 4096, count: 50 }]);
    }

    #[test]
    fn pushed_extents_round_trip_in_order() {
        let mut random = Random::new(1);
        for _ in 0..300 {
            let mut runs = Runs::default();
            let mut pushed: Vec<(FileOffset, u64)> = Vec::new();
            let (few, base) = (random.one_in(2), random.number() >> 2);
            for _ in 0..random.below(60) {
                let start =
                    if few { random.below(8) as u64 * 10 } else { base ^ (random.below(1 << 20) as u64) };
                let start = FileOffset(start);
                let length = if few { 10 } else { 1 + random.below(1000) as u64 };
                runs.push(start, length);
                match pushed.last_mut() {
                    Some((at, long)) if *at + *long == start => *long += length,
                    _ => pushed.push((start, length)),
                }
            }
            let end = pushed.iter().map(|(start, length)| *start + *length).max().unwrap_or_default();
            assert_eq!(runs.end(), end);
            let found = runs.finish().to_vec();
            assert_eq!(extents(&found), pushed);
            round_trip(&found);
            for _ in 0..50 {
                let from = if few { random.below(100) as u64 } else { base ^ (random.below(1 << 20) as u64) };
                let from = FileOffset(from);
                let to = from + 1 + random.below(30) as u64;
                let expected = pushed.iter().any(|(start, length)| *start < to && *start + *length > from);
                assert_eq!(runs.overlaps(from, to), expected, "{from}..{to} of {found:?}");
            }
        }
    }

    #[test]
    fn impossible_runs_are_refused() {
        let bad = [
            Run::one(FileOffset(0), 0),
            Run::one(FileOffset(FILE_END_MAX), 1),
            Run { start: FileOffset(100), stride: -60, length: 10, count: 3 },
            Run { start: FileOffset(0), stride: i64::MAX / 2, length: 10, count: 4 },
            Run { start: FileOffset(0), stride: 0, length: FILE_END_MAX / 2, count: 3 },
            Run { start: FileOffset(0), stride: 1, length: 1, count: u64::MAX },
        ];
        for run in bad {
            let mut encoded = Vec::new();
            put_varint(&mut encoded, run.length << 1 | u64::from(run.count > 1));
            put_zigzag(&mut encoded, run.start.0 as i64);
            if run.count > 1 {
                put_zigzag(&mut encoded, run.stride.wrapping_sub(run.length as i64));
                put_varint(&mut encoded, run.count - 2);
            }
            assert!(decode_run_list(&mut Bytes::new(&encoded, "test"), 1, |_| ()).is_err(), "{run:?}");
        }
    }
}
