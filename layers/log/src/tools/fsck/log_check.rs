//! Checks one writer's logs completely: every header, every block, and whether the index log agrees
//! with the data log. Writes nothing; `log_repairs` decides which problems can be repaired.

use quell_posix::OpenFile;
use quell_vfs::{ErrorKind, Result};

use super::log_repairs::{FrameScan, IndexScan, LogRepairs, WriterState, decide_repairs};
use super::problem::Problem;
use crate::container::{Container, NoEdges, is_frame_whole, read_frame_head, read_payload, torn_blocks};
use crate::format::{
    FRAME_HEAD_BYTES, FileOffset, Frame, FrameKind, Frames, HEAD_BYTES, LogPosition, Order, PayloadOffset,
    PayloadRange, Run, Summary, boot_of, decode_frame_head, visit_payload_range, widen_epochs,
};
use crate::not_found::none_if_not_found;
use crate::session::{open_data_and_head, visit_batches};
use crate::tools::progress::ToolProgress;

/// Number of blocks in one read.
const READ_BLOCKS: u64 = 64;
/// Number of bytes in one read of the search for a frame after a damaged part.
const SEARCH_BYTES: usize = 1 << 20;
/// The largest number of damaged ranges that are kept for one log. Further ranges are dropped.
const DAMAGED_RANGES_MAX: usize = 100_000;

/// Bytes in a log: payload offset, and start and end in the file.
pub type LoggedBytes = (PayloadOffset, FileOffset, FileOffset);

/// The result of checking a writer's logs.
#[derive(Debug)]
pub struct LogCheck {
    pub writer: u64,
    pub state: WriterState,
    /// Problems that cannot be repaired.
    pub problems: Vec<Problem>,
    pub damaged: Vec<LoggedBytes>,
    /// Bytes that were lost before they were synced.
    pub lost: Vec<LoggedBytes>,
    /// The end of `lost` in the file, after truncations.
    pub lost_end: FileOffset,
    pub frames: FrameScan,
    pub repairs: LogRepairs,
    /// The logs were removed when the file was truncated, but the `closed` name remains.
    pub has_needless_name: bool,
}

impl LogCheck {
    fn new(writer: u64, state: WriterState) -> LogCheck {
        LogCheck {
            writer,
            state,
            problems: Vec::new(),
            damaged: Vec::new(),
            lost: Vec::new(),
            lost_end: FileOffset::ZERO,
            frames: FrameScan::default(),
            repairs: LogRepairs::default(),
            has_needless_name: false,
        }
    }

    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
            && self.damaged.is_empty()
            && self.lost.is_empty()
            && self.repairs.torn_bytes.is_none()
            && self.repairs.index_defect.is_none()
            && !self.repairs.closed_name_is_wrong
            && !self.has_needless_name
            && !matches!(self.state, WriterState::Open { is_dead: true, .. })
    }
}

/// The whole content of an index log.
struct IndexContent {
    frames: Frames,
    runs: Vec<Run>,
    /// The payload before this offset survives a power failure.
    synced: PayloadOffset,
}

/// A position in a list of runs, advanced along with the frames.
struct RunCursor<'a> {
    runs: &'a [Run],
    run: usize,
    extent: u64,
    /// Number of bytes of the extent that were taken.
    taken_bytes: u64,
}

impl<'a> RunCursor<'a> {
    fn new(runs: &'a [Run]) -> RunCursor<'a> {
        RunCursor { runs, run: 0, extent: 0, taken_bytes: 0 }
    }

    /// Skips `length` bytes.
    fn skip(&mut self, mut length: u64) {
        while length > 0
            && let Some((_, taken)) = self.take(length)
        {
            length -= taken;
        }
    }

    /// Takes the next piece of at most `length` bytes. Returns its start in the file and its
    /// length.
    fn take(&mut self, length: u64) -> Option<(FileOffset, u64)> {
        let run = self.runs.get(self.run)?;
        let start = run.start_of(self.extent) + self.taken_bytes;
        let taken = length.min(run.length - self.taken_bytes);
        self.taken_bytes += taken;
        if self.taken_bytes == run.length {
            (self.extent, self.taken_bytes) = (self.extent + 1, 0);
            if self.extent == run.count {
                (self.run, self.extent) = (self.run + 1, 0);
            }
        }
        Some((start, taken))
    }

    /// Takes as many bytes as are in `runs`. Returns true if they are at the same file offsets.
    fn take_same(&mut self, runs: &[Run]) -> bool {
        for run in runs {
            for i in 0..run.count {
                let (mut start, mut left) = (run.start_of(i), run.length);
                while left > 0 {
                    match self.take(left) {
                        Some((at, taken)) if at == start => (start, left) = (start + taken, left - taken),
                        _ => return false,
                    }
                }
            }
        }
        true
    }
}

/// Checks the logs of one writer.
pub fn check_logs(
    container: &Container,
    writer: u64,
    state: WriterState,
    summary: &Summary,
    progress: &ToolProgress,
) -> Result<LogCheck> {
    let mut check = LogCheck::new(writer, state);
    if check.state == WriterState::Orphan {
        check.problems.push(Problem::orphan_logs(writer));
        return Ok(check);
    }
    let Some((data, header)) = none_if_not_found(open_data_and_head(container, writer))?.flatten() else {
        match check.state {
            WriterState::Closed(closed) => {
                // A truncation to size 0 removes the logs first, then their names.
                check.has_needless_name = summary.is_dead(&closed);
                if !check.has_needless_name {
                    check.problems.push(Problem::missing_end(writer, closed.data_bytes));
                }
            }
            // The writer has not started. A dead writer will not start.
            _ => check.repairs.can_close = true,
        }
        return Ok(check);
    };
    let data_bytes = data.stat()?.size_bytes;
    if let Err(error) = header {
        if error.kind != ErrorKind::Damaged {
            return Err(error);
        }
        match (&check.state, data_bytes <= HEAD_BYTES as u64) {
            (WriterState::Open { is_dead, .. }, true) => check.repairs.can_close = *is_dead,
            _ => check.problems.push(Problem::damaged_data_log_header(writer)),
        }
        return Ok(check);
    }
    let block_bytes = u64::from(container.head().block_bytes);
    let (mut index, index_scan) = read_index(container, writer, block_bytes)?;
    if summary.has_failed(writer) || keeps_unsynced(&check.state, container.boot()) {
        // No power failure can have removed data: missing data is damage.
        index.synced = PayloadOffset::MAX;
    }
    let walk = FrameWalk {
        data: &*data,
        data_bytes,
        block_bytes,
        index: &index,
        cursor: RunCursor::new(&index.runs),
        torn: None,
        check: &mut check,
        progress,
    };
    walk.run()?;
    if check.state.has_ended() && check.frames.ends_before_index {
        let epoch = check.frames.epochs.as_ref().map_or(0, |epochs| *epochs.start());
        let limit = summary.truncations.limit(Order { epoch, sequence: 0, writer }, check.frames.log_offset);
        check.lost_end = check.lost.iter().map(|(.., end)| (*end).min(limit)).max().unwrap_or_default();
    }
    let is_truncated = summary.last_truncation().is_some();
    let frames = &check.frames;
    let is_object = container.object_of(writer).is_some();
    // An object has no index log, and bytes after its last complete frame are not part of the file.
    let index_scan = match is_object {
        true => IndexScan { exists: true, is_damaged: false, payload_offset: frames.payload_offset },
        false => index_scan,
    };
    let data_bytes = if is_object && !frames.has_frame_after_end { frames.log_offset } else { data_bytes };
    check.repairs = decide_repairs(&check.state, frames, &index_scan, data_bytes, is_truncated);
    if let Some(log_range) = check.repairs.unreadable.clone() {
        check.problems.push(Problem::unreadable_frames(writer, log_range));
    }
    if let Some(bytes) = check.repairs.missing_bytes {
        check.problems.push(Problem::missing_end(writer, bytes));
    }
    Ok(check)
}

/// Reads an index log completely.
fn read_index(container: &Container, writer: u64, block_bytes: u64) -> Result<(IndexContent, IndexScan)> {
    let frames = Frames::new(block_bytes, HEAD_BYTES as u64);
    let mut index = IndexContent { frames, runs: Vec::new(), synced: PayloadOffset::ZERO };
    let end = visit_batches(container, writer, &mut |batch, _| {
        index.frames.append(batch.frames);
        index.runs.extend(batch.runs);
        if batch.is_synced {
            index.synced = index.frames.payload_end();
        }
        Ok(true)
    });
    let scan = none_if_not_found(end)?.map_or(IndexScan::default(), |end| IndexScan {
        exists: end.bytes.is_some(),
        is_damaged: end.damage.is_some(),
        payload_offset: end.end.indexed.payload,
    });
    Ok((index, scan))
}

/// Returns true if a writer in this state has lost no unsynced data, because its node has not been
/// booted since.
fn keeps_unsynced(state: &WriterState, boot: u64) -> bool {
    match state {
        WriterState::Closed(closed) => closed.is_certain(boot),
        WriterState::Open { running, .. } => boot_of(&running.holder.node) == boot,
        WriterState::Orphan => false,
    }
}

/// A frame that is not complete.
struct TornFrame {
    start: LogPosition,
    /// The damaged bytes of this frame and of later frames.
    damaged: Vec<LoggedBytes>,
}

/// Reads a data log from beginning to end, next to the index log.
struct FrameWalk<'a> {
    data: &'a dyn OpenFile,
    data_bytes: u64,
    block_bytes: u64,
    index: &'a IndexContent,
    /// The position in the runs of the index log.
    cursor: RunCursor<'a>,
    /// The first frame without a batch that is not complete. It is the end of the log, unless
    /// others follow.
    torn: Option<TornFrame>,
    check: &'a mut LogCheck,
    progress: &'a ToolProgress,
}

impl FrameWalk<'_> {
    fn run(mut self) -> Result<()> {
        while !self.progress.is_stopped() && self.read_frame()? {}
        self.finish()
    }

    /// Reads the next frame. Returns false at the end of the frames.
    fn read_frame(&mut self) -> Result<bool> {
        let log_offset = self.check.frames.log_offset;
        let payload_offset = self.check.frames.payload_offset;
        let is_described =
            !self.check.frames.differs_from_index && payload_offset < self.index.frames.payload_end();
        let indexed = is_described.then(|| self.index.frames.frame(payload_offset));
        let found = read_frame_head(self.data, LogPosition { log_offset, payload: payload_offset })?;
        let frame = match (&found, indexed) {
            (Some((header, runs)), _) => {
                let frame = header.frame(log_offset);
                if let Some(indexed) = indexed
                    && (indexed != frame || !self.cursor.take_same(runs))
                {
                    self.check.frames.differs_from_index = true;
                }
                frame
            }
            (None, Some(indexed)) if self.end_of(&indexed) > self.data_bytes => {
                // The rest of the log is missing. The index log describes the missing bytes.
                self.record_missing_rest();
                return Ok(false);
            }
            (None, Some(indexed)) => {
                let problem = Problem::damaged_frame_header(self.check.writer, log_offset);
                self.check.problems.push(problem);
                self.check.frames.has_damaged_header = true;
                self.cursor.skip(indexed.payload_bytes);
                indexed
            }
            (None, None) => return Ok(false),
        };
        let end = self.end_of(&frame);
        let is_indexed = indexed.is_some() && !self.check.frames.differs_from_index;
        if end > self.data_bytes {
            if is_indexed {
                self.record_missing_rest();
            }
            return Ok(false);
        }
        let runs = found.as_ref().map(|(_, runs)| &runs[..]);
        self.check_blocks(&frame, runs, is_indexed)?;
        let counts = self.torn.is_none()
            || self.check.frames.has_damaged_frame
            || matches!(self.check.state, WriterState::Closed(_));
        let frames = &mut self.check.frames;
        if counts {
            widen_epochs(&mut frames.epochs, frame.epoch..=frame.epoch);
            frames.file_end =
                runs.unwrap_or_default().iter().map(Run::end).fold(frames.file_end, FileOffset::max);
        }
        (frames.log_offset, frames.payload_offset) = (end, frame.payload_end());
        Ok(true)
    }

    /// Returns the log offset of the end of a frame.
    fn end_of(&self, frame: &Frame) -> u64 {
        frame.log_end(self.block_bytes)
    }

    /// Records that the frames from here on are missing, although the index log describes them.
    fn record_missing_rest(&mut self) {
        let from = self.check.frames.payload_offset;
        let rest = PayloadRange { start: from, end: self.index.frames.payload_end() };
        record_damage(self.check, self.index, &[rest], self.index.synced);
        self.check.frames.ends_before_index = true;
        self.check.frames.lacks_synced = from < self.index.synced;
    }

    /// Verifies the blocks of a frame.
    fn check_blocks(&mut self, frame: &Frame, runs: Option<&[Run]>, is_indexed: bool) -> Result<()> {
        let bad = bad_blocks(self.data, frame, self.block_bytes, self.progress)?;
        if is_indexed {
            if bad.is_empty() {
                return Ok(());
            }
            // Blocks that were not written completely are lost if they had not been synced. All
            // other bad blocks are damaged.
            let torn = torn_blocks(self.data, frame, self.block_bytes)?;
            let block_bytes = match frame.kind {
                FrameKind::Data => self.block_bytes,
                FrameKind::Zeros => frame.payload_bytes,
            };
            let blocks = bad.iter().flat_map(|range| {
                let count = (range.end - range.start).div_ceil(block_bytes);
                (0..count).map(move |i| {
                    let start = range.start + i * block_bytes;
                    PayloadRange { start, end: (start + block_bytes).min(range.end) }
                })
            });
            let (lost, changed): (Vec<_>, Vec<_>) = blocks.partition(|block| torn.contains(block));
            record_damage(self.check, self.index, &lost, self.index.synced);
            record_damage(self.check, self.index, &changed, PayloadOffset::MAX);
            return Ok(());
        }
        let Some(runs) = runs else { return Ok(()) };
        if self.torn.is_none() && bad.is_empty() {
            return Ok(());
        }
        // A frame that follows an incomplete one shows that the incomplete one is damaged, not
        // torn.
        self.check.frames.has_damaged_frame |= self.torn.is_some();
        let torn = self.torn.get_or_insert(TornFrame {
            start: LogPosition {
                log_offset: self.check.frames.log_offset,
                payload: self.check.frames.payload_offset,
            },
            damaged: Vec::new(),
        });
        for range in bad {
            visit_payload_range(runs, frame.payload_start, range, &mut |payload_offset, start, end| {
                torn.damaged.push((payload_offset, start, end));
            });
        }
        Ok(())
    }

    /// Decides where the frames end. Frames that a live writer is just writing may be incomplete.
    fn finish(self) -> Result<()> {
        if !self.check.state.has_ended() {
            return Ok(());
        }
        let LogCheck { state, frames, damaged, .. } = self.check;
        frames.has_frame_after_end = frames.log_offset < self.data_bytes
            && !frames.ends_before_index
            && has_frame_after(self.data, frames.log_offset, self.data_bytes, frames.payload_offset)?;
        let Some(torn) = self.torn else { return Ok(()) };
        let is_closed =
            matches!(state, WriterState::Closed(closed) if closed.data_bytes > torn.start.log_offset);
        if frames.has_damaged_frame || frames.has_frame_after_end || is_closed {
            damaged.extend(torn.damaged);
            frames.has_damaged_frame = !is_closed;
        } else {
            // The last frame was not written completely and is not part of the file.
            (frames.log_offset, frames.payload_offset) = (torn.start.log_offset, torn.start.payload);
        }
        Ok(())
    }
}

/// Adds the file ranges of bad payload ranges: below `synced` to `damaged`, and the rest, which a
/// power failure removed, to `lost`.
fn record_damage(check: &mut LogCheck, index: &IndexContent, bad: &[PayloadRange], synced: PayloadOffset) {
    let LogCheck { damaged, lost, .. } = check;
    for PayloadRange { start, end } in bad.iter().copied() {
        let before = PayloadRange { start, end: end.min(synced) };
        let after = PayloadRange { start: start.max(synced), end };
        for (range, to) in [(before, &mut *damaged), (after, &mut *lost)] {
            visit_payload_range(
                &index.runs,
                PayloadOffset::ZERO,
                range,
                &mut |payload_offset, start, end| {
                    if to.len() < DAMAGED_RANGES_MAX {
                        to.push((payload_offset, start, end));
                    }
                },
            );
        }
    }
}

/// Returns the payload ranges of blocks that do not match their checksums.
fn bad_blocks(
    data: &dyn OpenFile,
    frame: &Frame,
    block_bytes: u64,
    progress: &ToolProgress,
) -> Result<Vec<PayloadRange>> {
    if frame.kind == FrameKind::Zeros {
        let whole = PayloadRange { start: frame.payload_start, end: frame.payload_end() };
        return Ok(if is_frame_whole(data, frame, block_bytes)? { Vec::new() } else { vec![whole] });
    }
    let mut bad: Vec<PayloadRange> = Vec::new();
    let mut buffer = vec![0; (READ_BLOCKS * block_bytes).min(frame.payload_bytes) as usize];
    let mut check = |start: PayloadOffset, end: PayloadOffset| -> Result<bool> {
        let into = &mut buffer[..(end - start) as usize];
        match read_payload(data, frame, block_bytes, start, into, &NoEdges) {
            Ok(()) => Ok(true),
            Err(error) if error.kind == ErrorKind::Damaged => Ok(false),
            Err(error) => Err(error),
        }
    };
    let mut at = frame.payload_start;
    while at < frame.payload_end() && !progress.is_stopped() {
        let end = (at + READ_BLOCKS * block_bytes).min(frame.payload_end());
        if !check(at, end)? {
            let mut block = at;
            while block < end {
                let block_end = (block + block_bytes).min(end);
                if !check(block, block_end)? {
                    match bad.last_mut() {
                        Some(last) if last.end == block => last.end = block_end,
                        _ => bad.push(PayloadRange { start: block, end: block_end }),
                    }
                }
                block = block_end;
            }
        }
        progress.add_bytes(end - at);
        at = end;
    }
    Ok(bad)
}

/// Returns true if there is a complete header of a later frame anywhere after `log_offset`. File
/// data may look like a header; in this case less is repaired, but nothing is lost.
fn has_frame_after(
    data: &dyn OpenFile,
    log_offset: u64,
    data_bytes: u64,
    payload_offset: PayloadOffset,
) -> Result<bool> {
    // The header at `log_offset` itself is not complete.
    let mut at = log_offset + 1;
    let overlap = FRAME_HEAD_BYTES as usize - 1;
    let mut buffer = vec![0; SEARCH_BYTES + overlap];
    while at < data_bytes {
        let read = data.read_at(&mut buffer, at)?;
        let mut from = 0;
        while let Some(found) = buffer[from..read].windows(4).position(|four| four == b"FRAM") {
            let start = from + found;
            from = start + 1;
            if start >= SEARCH_BYTES {
                break;
            }
            let Some(head) = buffer[start..read].first_chunk::<{ FRAME_HEAD_BYTES as usize }>() else {
                break;
            };
            if let Ok(head) = decode_frame_head(head)
                && head.payload_start >= payload_offset
                && read_frame_head(
                    data,
                    LogPosition { log_offset: at + start as u64, payload: head.payload_start },
                )?
                .is_some()
            {
                return Ok(true);
            }
        }
        at += SEARCH_BYTES as u64;
    }
    Ok(false)
}
