//! Reports about one file for `quell log ls`, `stat`, `map` and `query`: the content of its
//! container, the log that holds each range of the file, and the state of each range of a log.
//! Writes nothing and does not wait for writers.

use std::ops::RangeInclusive;
use std::sync::Arc;

use quell_vfs::{Attributes, Error, ErrorKind, NodeId, Result};

use crate::container::{Container, FIRST_EPOCH};
use crate::format::{
    Extent, FileOffset, Frame, FrameKind, Holder, PayloadOffset, PayloadRange, Piece, Run, Running,
    SUM_BYTES, Summary, Truncation, visit_payload_range, widen_epochs,
};
use crate::not_found::none_if_not_found;
use crate::session::{
    Choices, ExtentMap, IndexEnd, LogFile, open_data_and_head, visit_batches, visit_frames,
};
use crate::stores::Host;

/// The information about a file in a list.
#[derive(Debug, Clone, Copy)]
pub struct FileSummary {
    /// The attributes as a mount shows them; the node number is 0.
    pub attributes: Attributes,
    /// Number of writers with logs, including those that have ended.
    pub writers: usize,
    /// Number of writers that have not ended.
    pub open_writers: usize,
    /// Size of all data logs.
    pub data_bytes: u64,
}

/// The process of a writer that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenWriter {
    /// The process.
    pub holder: Holder,
    /// The process is known to be dead.
    pub is_dead: bool,
}

/// One writer and its logs.
#[derive(Debug, Clone)]
pub struct WriterReport {
    /// The number of the writer.
    pub writer: u64,
    /// `None` if the writer has ended.
    pub open: Option<OpenWriter>,
    /// First and last epoch; `None` if the writer has not written yet.
    pub epochs: Option<RangeInclusive<u64>>,
    /// Number of frames in the data log.
    pub frames: u64,
    /// Frames without a batch in the index log.
    pub frames_unindexed: u64,
    /// Encoded runs in the index log, and in the frames without a batch.
    pub runs: u64,
    /// Size of the payload in the log, including overwritten data.
    pub payload_bytes: u64,
    /// Size of the data log.
    pub data_bytes: u64,
    /// Size of the index log.
    pub index_bytes: u64,
}

/// A flat index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatReport {
    /// Its name in the container.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// All information about one file.
#[derive(Debug)]
pub struct FileReport {
    /// The number of the container.
    pub number: u128,
    /// The position of its home in the list of stores.
    pub store: usize,
    /// Size of a block of data, in bytes.
    pub block_bytes: u32,
    /// Number of log directories.
    pub directories: u32,
    /// The attributes as a mount shows them; the node number is 0.
    pub attributes: Attributes,
    /// The largest epoch that is taken.
    pub epoch: u64,
    /// The writers, sorted by their first and last epoch.
    pub writers: Vec<WriterReport>,
    /// The truncations, sorted by order.
    pub truncations: Vec<Truncation>,
    /// The flat indices, the newest last.
    pub flats: Vec<FlatReport>,
    /// Number of extents of the file as readers see it.
    pub extents: u64,
    /// Number of bytes of the file that are not holes.
    pub held_bytes: u64,
}

/// Opens the file of a container.
fn open_file(container: Container) -> LogFile {
    LogFile::new(container, None, Choices::default(), Arc::default())
}

/// Reads the information for a list about the file in `container`.
pub fn summarize_file(container: Container) -> Result<FileSummary> {
    let file = open_file(container);
    let (attributes, summary) = file.attributes_and_summary(NodeId(0))?;
    let container = file.container();
    let mut data_bytes = summary.data_bytes();
    for running in &summary.open {
        data_bytes +=
            none_if_not_found(container.stat_data(running.writer))?.map_or(0, |stat| stat.size_bytes);
    }
    let writers = summary.closed.len() + summary.open.len();
    Ok(FileSummary { attributes, writers, open_writers: summary.open.len(), data_bytes })
}

/// Reads all information about the file in `container`.
pub fn report_file(container: Container, threads: usize) -> Result<FileReport> {
    let file = open_file(container);
    let (attributes, summary) = file.attributes_and_summary(NodeId(0))?;
    let container = file.container();
    let (epochs, names) = container.epochs_and_flats()?;
    let mut flats = Vec::new();
    for name in names {
        let bytes = container.dir()?.stat(&name)?.size_bytes;
        flats.push(FlatReport { name: String::from_utf8_lossy(&name).into_owned(), bytes });
    }
    let mut writers = Vec::new();
    for closed in &summary.closed {
        writers.push(report_writer(container, closed.writer, None)?);
    }
    for Running { writer, holder, .. } in &summary.open {
        writers.push(report_writer(container, *writer, Some(open_writer(container.host(), holder)))?);
    }
    writers.sort_by_key(|writer| {
        (writer.epochs.as_ref().map(|epochs| (*epochs.start(), *epochs.end())), writer.writer)
    });
    let view = ExtentMap::published(container, &summary, threads)?;
    let (mut extents, mut held_bytes) = (0, 0);
    view.pieces(FileOffset::ZERO, FileOffset(view.size()), &mut |piece| {
        if let Piece::Data(extent) = piece {
            (extents, held_bytes) = (extents + 1, held_bytes + u64::from(extent.length));
        }
    })?;
    let head = container.head();
    Ok(FileReport {
        number: container.number(),
        store: container.home(),
        block_bytes: head.block_bytes,
        directories: head.directories,
        attributes,
        epoch: epochs.last().copied().unwrap_or(FIRST_EPOCH).max(summary.epoch()),
        writers,
        truncations: summary.truncations.as_slice().to_vec(),
        flats,
        extents,
        held_bytes,
    })
}

fn open_writer(host: &Host, holder: &Holder) -> OpenWriter {
    OpenWriter { holder: holder.clone(), is_dead: (host.is_gone)(holder) }
}

fn report_writer(container: &Container, writer: u64, open: Option<OpenWriter>) -> Result<WriterReport> {
    let mut report = WriterReport {
        writer,
        open,
        epochs: None,
        frames: 0,
        frames_unindexed: 0,
        runs: 0,
        payload_bytes: 0,
        data_bytes: 0,
        index_bytes: 0,
    };
    let mut epochs: Option<RangeInclusive<u64>> = None;
    let IndexEnd { bytes, end, .. } = visit_batches(container, writer, &mut |batch, _| {
        report.runs += batch.runs.len() as u64;
        report.frames += batch.frames.groups().iter().map(|group| group.repeat).sum::<u64>();
        if let Some(added) = batch.frames.epochs() {
            widen_epochs(&mut epochs, added);
        }
        Ok(true)
    })?;
    report.index_bytes = bytes.unwrap_or(0);
    report.payload_bytes = end.indexed.payload.0;
    if let Some((file, _)) = open_data_and_head(container, writer)? {
        report.data_bytes = file.stat()?.size_bytes;
        let block_bytes = container.head().block_bytes.into();
        let end = visit_frames(&*file, block_bytes, end.indexed, &mut |_, head, runs| {
            report.frames_unindexed += 1;
            report.runs += runs.len() as u64;
            widen_epochs(&mut epochs, head.epoch..=head.epoch);
            Ok(true)
        })?;
        report.payload_bytes = end.payload.0;
    }
    report.frames += report.frames_unindexed;
    report.epochs = epochs;
    Ok(report)
}

/// The location of bytes in a log, and the order of their write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLocation {
    /// The writer of the log.
    pub writer: u64,
    /// Payload offset of the first byte.
    pub payload_offset: u64,
    /// Data log offset of the first byte. A checksum of 8 bytes follows each block.
    pub log_offset: u64,
    /// The epoch of the frame.
    pub epoch: u64,
    /// The sequence of the frame.
    pub sequence: u64,
}

/// A range of a file, and the location of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedRange {
    /// File offset of the first byte.
    pub start: u64,
    /// File offset after the last byte.
    pub end: u64,
    /// `None` for a hole.
    pub location: Option<LogLocation>,
}

/// Returns the data log offset of a payload offset in `frame`.
fn log_offset_of(frame: &Frame, payload_offset: PayloadOffset, block_bytes: u64) -> u64 {
    if frame.kind == FrameKind::Zeros {
        return frame.payload_log_offset;
    }
    let into = payload_offset - frame.payload_start;
    frame.payload_log_offset + into + into / block_bytes * SUM_BYTES
}

/// The extents of a file, resolved once for several queries.
#[derive(Debug)]
pub struct ResolvedFile<C: std::ops::Deref<Target = Container> = Box<Container>> {
    container: C,
    view: ExtentMap,
    summary: Summary,
}

impl ResolvedFile {
    /// Resolves the current content of the logs.
    pub fn resolve(container: Container, threads: usize) -> Result<ResolvedFile> {
        let summary = container.summary()?;
        ResolvedFile::resolve_with(Box::new(container), summary, threads)
    }
}

impl<C: std::ops::Deref<Target = Container>> ResolvedFile<C> {
    /// Resolves the current content of the logs that `summary` names.
    pub(crate) fn resolve_with(container: C, summary: Summary, threads: usize) -> Result<ResolvedFile<C>> {
        let view = ExtentMap::published(&container, &summary, threads)?;
        Ok(ResolvedFile { container, view, summary })
    }

    /// Returns the size of the file, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.view.size()
    }

    /// Returns the location of an extent of the file.
    fn locate(&self, extent: &Extent) -> LogLocation {
        let log = &self.view.logs()[extent.log as usize];
        let frame = log.frames.frame(extent.payload);
        let log_offset = log_offset_of(&frame, extent.payload, log.frames.block_bytes());
        let Frame { epoch, sequence, .. } = frame;
        LogLocation { writer: log.writer, payload_offset: extent.payload.0, log_offset, epoch, sequence }
    }

    /// Visits the ranges from `start` to `end` or the end of the file, in order and without gaps.
    pub fn map(&self, start: u64, end: u64, visit: &mut dyn FnMut(MappedRange)) -> Result<()> {
        let end = end.min(self.size_bytes());
        if start >= end {
            return Ok(());
        }
        self.view.pieces(FileOffset(start), FileOffset(end), &mut |piece| {
            visit(match piece {
                Piece::Hole(start, end) => MappedRange { start: start.0, end: end.0, location: None },
                Piece::Data(extent) => MappedRange {
                    start: extent.start.0,
                    end: extent.end().0,
                    location: Some(self.locate(&extent)),
                },
            });
        })
    }

    /// Visits the bytes of `writer`'s log with payload offsets from `start` to `end`, in their
    /// order in the log. For each range, `visit` receives its file offsets and its state.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such writer.
    pub fn query(&self, writer: u64, start: u64, end: u64, visit: &mut dyn FnMut(LoggedRange)) -> Result<()> {
        let is_known = self.summary.closed.iter().any(|closed| closed.writer == writer)
            || self.summary.open.iter().any(|running| running.writer == writer);
        if !is_known {
            return Err(Error::new(ErrorKind::NotFound, "find writer", format!("{writer:016x}")));
        }
        // Data that was written after the view was built is not reported.
        let log = self.view.logs().iter().find(|log| log.writer == writer);
        let end = PayloadOffset(end).min(log.map(|log| log.frames.payload_end()).unwrap_or_default());
        let range = PayloadRange { start: PayloadOffset(start), end };
        let indexed = visit_batches(&self.container, writer, &mut |batch, payload| {
            self.query_runs(writer, &batch.runs, payload, range, visit)
        })?;
        if indexed.end.indexed.payload < end
            && let Some((file, _)) = open_data_and_head(&self.container, writer)?
        {
            let from = indexed.end.indexed;
            let block_bytes = self.container.head().block_bytes.into();
            visit_frames(&*file, block_bytes, from, &mut |_, head, runs| {
                self.query_runs(writer, &runs, head.payload_start, range, visit)
            })?;
        }
        Ok(())
    }

    /// Visits the part of `query`'s range that lies in these runs. Returns true if later runs may
    /// contain more of it.
    fn query_runs(
        &self,
        writer: u64,
        runs: &[Run],
        payload_offset: PayloadOffset,
        range: PayloadRange,
        visit: &mut dyn FnMut(LoggedRange),
    ) -> Result<bool> {
        let mut visited = Ok(());
        let more = visit_payload_range(runs, payload_offset, range, &mut |payload_offset, start, end| {
            if visited.is_ok() {
                visited = self.visit_states(writer, payload_offset, start, end - start, visit);
            }
        });
        visited.map(|()| more)
    }

    /// Visits the `length` bytes that `writer` has at `payload_offset` and wrote at file offset
    /// `start`, by their state.
    pub(crate) fn visit_states(
        &self,
        writer: u64,
        payload_offset: PayloadOffset,
        start: FileOffset,
        length: u64,
        visit: &mut dyn FnMut(LoggedRange),
    ) -> Result<()> {
        let frames = self.view.logs().iter().find(|log| log.writer == writer).map(|log| &log.frames);
        self.view.pieces(start, start + length, &mut |piece| {
            let (from, to, state) = match piece {
                Piece::Hole(from, to) => (from, to, ByteState::Truncated),
                Piece::Data(extent) => {
                    let location = self.locate(&extent);
                    let is_same = location.writer == writer
                        && location.payload_offset == (payload_offset + (extent.start - start)).0;
                    let state = if is_same { ByteState::Held } else { ByteState::Overwritten(location) };
                    (extent.start, extent.end(), state)
                }
            };
            let payload_offset = payload_offset + (from - start);
            let log_offset = frames.map_or(0, |frames| {
                log_offset_of(&frames.frame(payload_offset), payload_offset, frames.block_bytes())
            });
            visit(LoggedRange {
                payload_offset: payload_offset.0,
                log_offset,
                start: from.0,
                end: to.0,
                state,
            });
        })
    }
}

/// The state of bytes in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteState {
    /// The bytes are part of the file.
    Held,
    /// A later write replaced the bytes.
    Overwritten(LogLocation),
    /// A later truncation removed the bytes.
    Truncated,
}

/// A range of a log, and the file offsets to which it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedRange {
    /// Payload offset of the first byte.
    pub payload_offset: u64,
    /// Data log offset of the first byte.
    pub log_offset: u64,
    /// File offset of the first byte.
    pub start: u64,
    /// File offset after the last byte.
    pub end: u64,
    /// Whether the bytes are part of the file.
    pub state: ByteState,
}

#[cfg(test)]
#[path = "report_test.rs"]
mod tests;
