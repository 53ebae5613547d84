//! Reads the logs of one writer, as they grow. No part of a log is read twice.

use std::collections::VecDeque;

use quell_vfs::{Error, ErrorKind, Result};

use crate::container::{Container, is_frame_whole};
use crate::format::{
    Batch, FileOffset, FlatLog, Frame, Frames, HEAD_BYTES, LogPosition, Order, PayloadOffset, PayloadRange,
    Run, Truncations, data_name, index_name,
};
use crate::not_found::none_if_not_found;
use crate::session::scan::{IndexPosition, visit_batches_from, visit_frames};

/// The number of extents that are accepted from a log before its data log is checked. Each extent
/// takes memory, and a forged index log may describe any number of them.
const EXTENTS_UNCHECKED_MAX: u64 = 1 << 16;

/// The part of a data log that belongs to the file, and the part that must be present.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogBounds {
    /// Number of bytes of the data log that belong to the file: its final size, or the published
    /// size. `None` if all complete frames belong to it.
    pub counted_bytes: Option<u64>,
    /// The writer's node had no power failure since, or a sync of the data log failed: missing or
    /// changed bytes are damaged, not torn.
    pub is_certain: bool,
    /// Number of bytes of the data log that must be present: the writer acknowledged them, and no
    /// power failure can have removed them.
    pub required_bytes: u64,
}

impl LogBounds {
    /// Returns the bounds for a writer of this process: all of its data belongs to the file, and
    /// the bytes that it has written must be present, because this node had no power failure since.
    pub fn with_own_data(self, written: u64) -> LogBounds {
        LogBounds { counted_bytes: None, is_certain: true, required_bytes: self.required_bytes.max(written) }
    }
}

/// One log, up to the position to which it was read.
#[derive(Debug, Clone)]
pub struct LogReader {
    pub writer: u64,
    pub frames: Frames,
    /// The next batch in the index log.
    next_batch: IndexPosition,
    /// The payload before this offset survives a power failure.
    pub synced: PayloadOffset,
    /// Payload ranges that are ignored, because they were torn before they were synced.
    torn: Vec<PayloadRange>,
    /// For each torn part of an extent, its end in the file and the payload offset of the extent.
    /// These parts are holes, but the file keeps its size.
    lost: Vec<(FileOffset, PayloadOffset)>,
    bounds: LogBounds,
    /// Number of extents in the batches so far, and the number that the size of the data log
    /// allows.
    extents_indexed: u64,
    extents_allowed: u64,
    /// Runs that were read and not visited yet, each with the payload offset of its first byte.
    pending_runs: VecDeque<(PayloadOffset, Run)>,
}

impl LogReader {
    /// Creates the reader of a log that was not read yet. `torn` are payload ranges to ignore.
    pub fn new(writer: u64, block_bytes: u64, torn: Vec<PayloadRange>) -> LogReader {
        LogReader {
            writer,
            frames: Frames::new(block_bytes, HEAD_BYTES as u64),
            next_batch: IndexPosition::START,
            synced: PayloadOffset::ZERO,
            torn,
            lost: Vec::new(),
            bounds: LogBounds::default(),
            extents_indexed: 0,
            extents_allowed: EXTENTS_UNCHECKED_MAX,
            pending_runs: VecDeque::new(),
        }
    }

    /// Creates a log from its row in a flat index.
    pub fn from_flat(flat: &FlatLog) -> LogReader {
        let FlatLog { index_offset, indexed, synced, .. } = *flat;
        let new = LogReader::new(flat.writer, flat.frames.block_bytes(), Vec::new());
        LogReader {
            frames: flat.frames.clone(),
            next_batch: IndexPosition { index_offset, indexed },
            synced,
            ..new
        }
    }

    /// Returns the log's row for a flat index.
    pub fn to_flat(&self) -> FlatLog {
        let LogReader { writer, next_batch: IndexPosition { index_offset, indexed }, synced, .. } = *self;
        FlatLog { writer, index_offset, indexed, synced, frames: self.frames.clone() }
    }

    /// Returns true if everything within these bounds was read and visited.
    pub fn is_complete_within(&self, bounds: &LogBounds) -> bool {
        self.bounds == *bounds && self.is_complete() && self.pending_runs.is_empty()
    }

    /// Returns true if all bytes that belong to the file were read.
    fn is_complete(&self) -> bool {
        self.bounds.counted_bytes.is_some_and(|bytes| self.frames.log_end() >= bytes)
    }

    pub fn order(&self, payload: PayloadOffset) -> Order {
        let Frame { epoch, sequence, .. } = self.frames.frame(payload);
        Order { epoch, sequence, writer: self.writer }
    }

    /// Returns the file offset at which truncations end the frame with this payload offset.
    pub fn limit(&self, truncations: &Truncations, payload: PayloadOffset) -> FileOffset {
        let Frame { epoch, sequence, payload_log_offset, .. } = self.frames.frame(payload);
        truncations.limit(Order { epoch, sequence, writer: self.writer }, payload_log_offset)
    }

    /// Reads the new part of the logs, until `visit` was called for `extents_max` extents. Returns
    /// true if everything was read.
    pub fn read_new(
        &mut self,
        container: &Container,
        extents_max: usize,
        visit: &mut VisitExtent<'_>,
    ) -> Result<bool> {
        let mut left = extents_max as u64;
        self.visit_pending(&mut left, visit);
        if left > 0 && !self.is_complete() {
            self.read_index(container, &mut left, visit)?;
        }
        if left > 0 && !self.is_complete() {
            self.read_data(container, &mut left, visit)?;
        }
        if left > 0 && self.is_data_missing() {
            // This node may have cached the size of the data log before the writer published the
            // end.
            let at_server = match none_if_not_found(container.open_data(self.writer))? {
                Some(file) => file.stat_from_server()?.size_bytes,
                None => 0,
            };
            if at_server >= self.bounds.required_bytes {
                self.read_data(container, &mut left, visit)?;
            }
        }
        if left > 0 && self.is_data_missing() && !container.is_dropped(self.writer)? {
            return Err(Error {
                source: Some(
                    format!(
                        "its data after byte {} of {} is missing",
                        self.frames.log_end(),
                        self.bounds.required_bytes
                    )
                    .into(),
                ),
                ..Error::new(ErrorKind::Damaged, "read", data_name(self.writer))
            });
        }
        Ok(left > 0)
    }

    /// Returns true if less was read than must be present.
    fn is_data_missing(&self) -> bool {
        self.frames.log_end() < self.bounds.required_bytes
    }

    /// Sets the part of the data log that belongs to the file, and the part that must be present.
    pub fn set_bounds(&mut self, bounds: LogBounds) {
        self.bounds = bounds;
    }

    /// Records that a writer of this process writes the log, so that no power failure can have
    /// removed its data.
    pub fn set_certain(&mut self) {
        self.bounds.is_certain = true;
    }

    /// Returns true if missing bytes of this frame are damage.
    pub fn must_have(&self, frame: &Frame) -> bool {
        self.bounds.is_certain || frame.payload_end() <= self.synced
    }

    /// Returns the end in the file of the data that was torn, after these truncations.
    pub fn lost_end(&self, truncations: &Truncations) -> FileOffset {
        let ends = self.lost.iter().map(|(end, payload)| (*end).min(self.limit(truncations, *payload)));
        ends.max().unwrap_or_default()
    }

    /// Visits extents of `pending_runs`, at most `left` of them.
    fn visit_pending(&mut self, left: &mut u64, visit: &mut VisitExtent<'_>) {
        while *left > 0
            && let Some((payload, run)) = self.pending_runs.pop_front()
        {
            let count = run.count.min(*left);
            for i in 0..count {
                let payload = payload + i * run.length;
                visit_without_torn(&self.torn, run.start_of(i), run.length, payload, &mut self.lost, visit);
            }
            if count < run.count {
                self.pending_runs.push_front((payload + count * run.length, run.after(count)));
            }
            *left -= count;
        }
        if self.pending_runs.is_empty() {
            self.pending_runs = VecDeque::new(); // free its memory
        }
    }

    fn read_index(
        &mut self,
        container: &Container,
        left: &mut u64,
        visit: &mut VisitExtent<'_>,
    ) -> Result<()> {
        // The index log is missing if the writer has not published yet, or if it was lost. The
        // frames are then read from the data log.
        let Some(file) = none_if_not_found(container.open_index(self.writer))? else { return Ok(()) };
        let (writer, from) = (self.writer, self.next_batch);
        let counted_bytes = self.bounds.counted_bytes.unwrap_or(u64::MAX);
        // Size of a batch that was read and not taken.
        let mut left_bytes = 0;
        let (end, _) = visit_batches_from(&*file, container, writer, from, &mut |batch, _| {
            // At the limit, only batches without runs are taken, which record a sync.
            if batch.frames.log_end() > counted_bytes || *left == 0 && !batch.runs.is_empty() {
                left_bytes = batch.bytes as u64;
                return Ok(false);
            }
            self.take(container, batch)?;
            self.visit_pending(left, visit);
            Ok(true)
        })?;
        self.next_batch.index_offset = end.index_offset - left_bytes;
        Ok(())
    }

    /// Adds a batch. A part of it may be known already from the headers of the frames.
    fn take(&mut self, container: &Container, batch: Batch) -> Result<()> {
        self.check_extents(container, &batch)?;
        let (start, known) = (self.next_batch.indexed.payload, self.frames.payload_end());
        let end =
            LogPosition { log_offset: batch.frames.log_end(), payload: start + batch.frames.payload_bytes() };
        self.next_batch.indexed = end;
        if batch.is_synced {
            self.synced = end.payload;
        }
        if known >= end.payload {
            return Ok(());
        }
        if known == start {
            self.frames.append(batch.frames);
        } else {
            // The payload offsets of a batch begin at 0.
            self.frames.append_from(batch.frames, PayloadOffset(known - start));
        }
        let mut payload = start;
        for run in batch.runs {
            let end = payload + run.bytes();
            // Only complete frames are known, and an extent never spans frames, so whole extents
            // are skipped.
            let before = known.bytes_after(payload).div_ceil(run.length);
            if before < run.count {
                self.pending_runs.push_back((payload + before * run.length, run.after(before)));
            }
            payload = end;
        }
        Ok(())
    }

    /// Refuses a log whose batches have more extents than its data log has bytes. Every extent has
    /// at least one byte, so such a log is forged or damaged, and would fill the memory.
    fn check_extents(&mut self, container: &Container, batch: &Batch) -> Result<()> {
        let extents = batch.runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.count));
        self.extents_indexed = self.extents_indexed.saturating_add(extents);
        if self.extents_indexed <= self.extents_allowed {
            return Ok(());
        }
        let file = container.open_data(self.writer)?;
        let stat = file.stat()?;
        // The size alone is not sufficient, because a file may consist of holes.
        let taken = stat.size_bytes.min(stat.blocks.saturating_mul(512));
        self.extents_allowed = EXTENTS_UNCHECKED_MAX.saturating_add(taken);
        let mut is_present = stat.size_bytes >= batch.frames.log_end();
        if is_present && self.extents_indexed > self.extents_allowed {
            // The store may compress data or update `st_blocks` late, so the blocks themselves are
            // verified.
            for (frame, _) in batch.frames.iter() {
                let payload_start =
                    self.next_batch.indexed.payload + (frame.payload_start - PayloadOffset::ZERO);
                let frame = Frame { payload_start, ..frame };
                is_present = is_present && is_frame_whole(&*file, &frame, self.frames.block_bytes())?;
                if !is_present {
                    break;
                }
            }
            self.extents_allowed = self.extents_indexed;
        }
        match is_present {
            true => Ok(()),
            false => Err(Error {
                source: Some("it describes data that the data log does not have".into()),
                ..Error::new(ErrorKind::Damaged, "read", index_name(self.writer))
            }),
        }
    }

    /// Reads the frames of the data log that have no batch. Only complete frames count, and each of
    /// their blocks is verified.
    fn read_data(
        &mut self,
        container: &Container,
        left: &mut u64,
        visit: &mut VisitExtent<'_>,
    ) -> Result<()> {
        let file = match container.open_data(self.writer) {
            // The data log is missing or damaged if the writer has not started, or if the header is
            // torn.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Damaged) => return Ok(()),
            file => file?,
        };
        let block_bytes = self.frames.block_bytes();
        // If all complete frames of a log belong to the file, no name gives its size, and this node
        // may have cached an earlier size.
        if self.bounds.counted_bytes.is_none() {
            file.stat_from_server()?;
        }
        let counted_bytes = self.bounds.counted_bytes.unwrap_or(u64::MAX);
        visit_frames(&*file, block_bytes, self.frames.end(), &mut |log_offset, head, runs| {
            // In the part that must be present, a bad block is damage, and the blocks after it
            // still count.
            let end = head.frame(log_offset).log_end(block_bytes);
            let is_required = end <= self.bounds.required_bytes;
            let is_counted = log_offset < counted_bytes;
            if !is_counted || !is_required && !is_frame_whole(&*file, &head.frame(log_offset), block_bytes)? {
                return Ok(false);
            }
            self.frames.push(head.kind, head.bytes(), head.payload_bytes, head.epoch, head.sequence);
            let mut payload = head.payload_start;
            for run in runs {
                self.pending_runs.push_back((payload, run));
                payload += run.bytes();
            }
            self.visit_pending(left, visit);
            Ok(*left > 0)
        })?;
        Ok(())
    }
}

/// Receives the start, the length and the payload offset of an extent.
pub type VisitExtent<'a> = dyn FnMut(FileOffset, u64, PayloadOffset) + 'a;

/// Visits the parts of an extent outside of the payload ranges `torn`, which are sorted.
fn visit_without_torn(
    torn: &[PayloadRange],
    start: FileOffset,
    length: u64,
    payload: PayloadOffset,
    lost: &mut Vec<(FileOffset, PayloadOffset)>,
    visit: &mut VisitExtent<'_>,
) {
    let (mut at, end) = (payload, payload + length);
    let mut part = |from: PayloadOffset, to: PayloadOffset| {
        if from < to {
            visit(start + (from - payload), to - from, from);
        }
    };
    for bad in torn.iter().filter(|bad| bad.start < end && bad.end > payload) {
        part(at, bad.start.max(at));
        at = at.max(bad.end);
        lost.push((start + (bad.end.min(end) - payload), payload));
    }
    part(at, end);
}
