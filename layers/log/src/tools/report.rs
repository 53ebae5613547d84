//! Information about one file for `quell log`: the content of its container, the log that holds
//! each range of the file, and the state of each range of a log. Changes nothing and does not wait
//! for writers.

use std::sync::Arc;

use quell_vfs::{Attributes, Error, ErrorKind, NodeId, Result};

use crate::container::container_dir::Container;
use crate::container::missing::missing;
use crate::format::extents::{Extent, Piece};
use crate::format::frames::{Frame, SUM_BYTES};
use crate::format::meta::{Cut, Holder, Running, Summary};
use crate::format::runs::{Run, at_positions};
use crate::session::log_file::{Choices, LogFile};
use crate::session::scan::{self, IndexEnd};
use crate::session::view::{Torn, View};
use crate::stores::store_set::Host;

/// The line of one file in a list.
#[derive(Debug, Clone, Copy)]
pub struct Brief {
    pub attributes: Attributes,
    /// Number of writers with logs, including those that have ended.
    pub writers: usize,
    /// Number of writers that have not ended.
    pub open: usize,
    /// Size of all data logs.
    pub data_bytes: u64,
}

/// The process that writes a log that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    pub holder: Holder,
    /// The process is known to be dead.
    pub is_gone: bool,
}

/// One writer and its logs.
#[derive(Debug, Clone)]
pub struct WriterReport {
    pub writer: u64,
    /// `None` if the writer has ended.
    pub open: Option<Open>,
    /// First and last epoch; `None` if the writer has not written yet.
    pub epochs: Option<(u64, u64)>,
    pub frames: u64,
    /// Frames without a batch in the index log.
    pub frames_unindexed: u64,
    /// Encoded runs in the index log, and in the frames without a batch.
    pub runs: u64,
    /// Size of the payload in the log, including overwritten data.
    pub payload_bytes: u64,
    pub data_bytes: u64,
    pub index_bytes: u64,
}

/// A flat index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatReport {
    pub name: String,
    pub bytes: u64,
}

/// Everything about one file.
#[derive(Debug)]
pub struct FileReport {
    pub number: u128,
    pub store: usize,
    pub block_bytes: u32,
    pub directories: u32,
    pub attributes: Attributes,
    /// The largest epoch that is taken.
    pub epoch: u64,
    pub writers: Vec<WriterReport>,
    pub cuts: Vec<Cut>,
    pub flats: Vec<FlatReport>,
    /// Number of extents of the file as readers see it.
    pub extents: u64,
    /// Number of bytes of the file that are not holes.
    pub held_bytes: u64,
}

/// Opens the file of a container.
fn file_of(container: Container) -> LogFile {
    LogFile::new(container, None, Choices::default(), Arc::default())
}

/// Returns the list entry of the file in `container`.
pub fn brief(container: Container) -> Result<Brief> {
    let file = file_of(container);
    let (attributes, summary) = file.attributes_and_summary(NodeId(0))?;
    let container = file.container();
    let mut data_bytes = summary.data_bytes();
    for running in &summary.open {
        data_bytes += missing(container.stat_data(running.writer))?.map_or(0, |stat| stat.size_bytes);
    }
    let writers = summary.closed.len() + summary.open.len();
    Ok(Brief { attributes, writers, open: summary.open.len(), data_bytes })
}

/// Reads everything about the file in `container`.
pub fn of_file(container: Container, threads: usize) -> Result<FileReport> {
    let file = file_of(container);
    let (attributes, summary) = file.attributes_and_summary(NodeId(0))?;
    let container = file.container();
    let (epochs, names) = container.epochs_and_flats()?;
    let mut flats = Vec::new();
    for name in names {
        let bytes = container.dir().stat(&name)?.size_bytes;
        flats.push(FlatReport { name: String::from_utf8_lossy(&name).into_owned(), bytes });
    }
    let mut writers = Vec::new();
    for closed in &summary.closed {
        writers.push(of_writer(container, closed.writer, None)?);
    }
    for Running { writer, holder, .. } in &summary.open {
        writers.push(of_writer(container, *writer, Some(open(container.host(), holder)))?);
    }
    writers.sort_by_key(|writer| (writer.epochs, writer.writer));
    let view = view_of(container, &summary, threads)?;
    let (mut extents, mut held_bytes) = (0, 0);
    view.pieces(0, view.size(), &mut |piece| {
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
        epoch: epochs
            .last()
            .copied()
            .unwrap_or(crate::container::container_dir::FIRST_EPOCH)
            .max(summary.epoch()),
        writers,
        cuts: summary.cuts.cuts().to_vec(),
        flats,
        extents,
        held_bytes,
    })
}

/// Resolves the published data of the writers in `summary`.
pub(crate) fn view_of(container: &Container, summary: &Summary, threads: usize) -> Result<View> {
    View::build(container, summary, &|_| None, threads, Torn::new())
}

fn open(host: &Host, holder: &Holder) -> Open {
    Open { holder: holder.clone(), is_gone: (host.is_gone)(holder) }
}

fn of_writer(container: &Container, writer: u64, open: Option<Open>) -> Result<WriterReport> {
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
    let mut epochs: Option<(u64, u64)> = None;
    let mut saw = |first: u64, last: u64| {
        let (low, high) = epochs.unwrap_or((first, last));
        epochs = Some((low.min(first), high.max(last)));
    };
    let IndexEnd { bytes, position, data_place, .. } = scan::batches(container, writer, &mut |batch, _| {
        report.runs += batch.runs.len() as u64;
        report.frames += batch.frames.groups().iter().map(|group| group.repeat).sum::<u64>();
        if let Some((first, last)) = batch.frames.epochs() {
            saw(first, last);
        }
        Ok(true)
    })?;
    report.index_bytes = bytes.unwrap_or(0);
    report.payload_bytes = position;
    if let Some((file, _)) = scan::data(container, writer)? {
        report.data_bytes = file.stat()?.size_bytes;
        let block_bytes = container.head().block_bytes.into();
        let (_, position) =
            scan::frames(&*file, block_bytes, (data_place, position), &mut |_, head, runs| {
                report.frames_unindexed += 1;
                report.runs += runs.len() as u64;
                saw(head.epoch, head.epoch);
                Ok(true)
            })?;
        report.payload_bytes = position;
    }
    report.frames += report.frames_unindexed;
    report.epochs = epochs;
    Ok(report)
}

/// The location of bytes in a log, and the order of their write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    pub writer: u64,
    pub position: u64,
    /// Data log offset of the first byte. A checksum of 8 bytes follows each block.
    pub place: u64,
    pub epoch: u64,
    pub sequence: u64,
}

/// A range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    pub start: u64,
    pub end: u64,
    /// `None` for a hole.
    pub source: Option<Source>,
}

/// Returns the data log offset of the payload offset `position`, which lies in `frame`.
fn place_of(frame: &Frame, position: u64, block_bytes: u64) -> u64 {
    let into = position - frame.position;
    frame.payload_place + into + into / block_bytes * SUM_BYTES
}

/// The extents of a file, resolved once for several queries.
#[derive(Debug)]
pub struct Resolved<C: std::ops::Deref<Target = Container> = Box<Container>> {
    container: C,
    view: View,
    summary: Summary,
}

impl Resolved {
    /// Resolves the current content of the logs.
    pub fn of(container: Container, threads: usize) -> Result<Resolved> {
        let summary = container.summary()?;
        Resolved::with(Box::new(container), summary, threads)
    }
}

impl<C: std::ops::Deref<Target = Container>> Resolved<C> {
    /// Resolves the current content of the logs that `summary` names.
    pub(crate) fn with(container: C, summary: Summary, threads: usize) -> Result<Resolved<C>> {
        let view = view_of(&container, &summary, threads)?;
        Ok(Resolved { container, view, summary })
    }

    pub fn size_bytes(&self) -> u64 {
        self.view.size()
    }

    fn source(&self, extent: &Extent) -> Source {
        let log = &self.view.logs()[extent.log as usize];
        let frame = log.frames.frame(extent.position);
        let place = place_of(&frame, extent.position, log.frames.block_bytes());
        let Frame { epoch, sequence, .. } = frame;
        Source { writer: log.writer, position: extent.position, place, epoch, sequence }
    }

    /// Visits the ranges from `start` to `end` or the end of the file, in order and without gaps.
    pub fn map(&self, start: u64, end: u64, visit: &mut dyn FnMut(Stretch)) -> Result<()> {
        let end = end.min(self.size_bytes());
        if start >= end {
            return Ok(());
        }
        self.view.pieces(start, end, &mut |piece| {
            visit(match piece {
                Piece::Hole(start, end) => Stretch { start, end, source: None },
                Piece::Data(extent) => {
                    Stretch { start: extent.start, end: extent.end(), source: Some(self.source(&extent)) }
                }
            });
        })
    }

    /// Visits the bytes of `writer`'s log with payload offsets from `start` to `end`, in their
    /// order in the log. For each range, `visit` receives its place in the file and whether the
    /// file still holds it.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such writer.
    pub fn query(&self, writer: u64, start: u64, end: u64, visit: &mut dyn FnMut(Wrote)) -> Result<()> {
        let known = self.summary.closed.iter().any(|closed| closed.writer == writer)
            || self.summary.open.iter().any(|running| running.writer == writer);
        if !known {
            return Err(Error::new(ErrorKind::NotFound, "find writer", format!("{writer:016x}")));
        }
        // Data that was written after the view was built is not reported.
        let log = self.view.logs().iter().find(|log| log.writer == writer);
        let end = end.min(log.map_or(0, |log| log.frames.position()));
        let indexed = scan::batches(&self.container, writer, &mut |batch, position| {
            self.query_runs(writer, &batch.runs, position, (start, end), visit)
        })?;
        if indexed.position < end
            && let Some((file, _)) = scan::data(&self.container, writer)?
        {
            let from = (indexed.data_place, indexed.position);
            let block_bytes = self.container.head().block_bytes.into();
            scan::frames(&*file, block_bytes, from, &mut |_, head, runs| {
                self.query_runs(writer, &runs, head.position, (start, end), visit)
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
        position: u64,
        range: (u64, u64),
        visit: &mut dyn FnMut(Wrote),
    ) -> Result<bool> {
        let mut told = Ok(());
        let more = at_positions(runs, position, range, &mut |position, start, end| {
            if told.is_ok() {
                told = self.became(writer, position, start, end - start, visit);
            }
        });
        told.map(|()| more)
    }

    /// Visits the `length` bytes that `writer` has at payload offset `position` and wrote at file
    /// offset `start`, and reports whether the file still holds them.
    pub(crate) fn became(
        &self,
        writer: u64,
        position: u64,
        start: u64,
        length: u64,
        visit: &mut dyn FnMut(Wrote),
    ) -> Result<()> {
        self.view.pieces(start, start + length, &mut |piece| {
            let (from, to, fate) = match piece {
                Piece::Hole(from, to) => (from, to, Fate::Cut),
                Piece::Data(extent) => {
                    let source = self.source(&extent);
                    let is_own =
                        source.writer == writer && source.position == position + (extent.start - start);
                    (extent.start, extent.end(), if is_own { Fate::Held } else { Fate::Overwritten(source) })
                }
            };
            let frame = self.view.logs().iter().find(|log| log.writer == writer).map(|log| &log.frames);
            let at = position + (from - start);
            let place = frame.map_or(0, |frames| place_of(&frames.frame(at), at, frames.block_bytes()));
            visit(Wrote { position: at, place, start: from, end: to, fate });
        })
    }
}

/// The state of bytes in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The file holds them.
    Held,
    /// A later write replaced them.
    Overwritten(Source),
    /// A later truncation removed them.
    Cut,
}

/// Bytes of a log, and the file offsets to which they were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrote {
    pub position: u64,
    /// Data log offset of the first byte.
    pub place: u64,
    pub start: u64,
    pub end: u64,
    pub fate: Fate,
}

#[cfg(test)]
#[path = "report_test.rs"]
mod tests;
