//! The content of a container at one moment.

use std::ops::Range;
use std::sync::Arc;

use quell_vfs::{Attributes, NodeId, ReadAt, Result};

use crate::container::{Container, Descriptors};
use crate::format::{FileOffset, Piece, Summary};
use crate::session::{Choices, ExtentMap, LogFile};

/// The content of a container at one moment.
pub struct Snapshot {
    file: LogFile,
    attributes: Attributes,
    summary: Summary,
    /// The resolved extents at the moment of the snapshot. They show which ranges are holes.
    view: ExtentMap,
    is_short: bool,
}

impl Snapshot {
    pub fn take(container: Container, threads: usize, descriptors: &Arc<Descriptors>) -> Result<Snapshot> {
        let file = LogFile::new(container, None, Choices::default(), Arc::clone(descriptors));
        let (attributes, summary) = file.attributes_and_summary(NodeId(0))?;
        let view = ExtentMap::published(file.container(), &summary, threads)?;
        let emptied = summary.last_truncation().filter(|cut| cut.size == 0);
        let first_epoch = emptied.map_or(0, |cut| cut.order.epoch);
        let is_short =
            summary.closed.iter().filter(|closed| closed.last_epoch >= first_epoch).any(|closed| {
                let log = view.logs().iter().find(|log| log.writer == closed.writer);
                log.is_none_or(|log| log.frames.log_end() < closed.data_bytes)
            });
        Ok(Snapshot { file, attributes, summary, view, is_short })
    }

    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    pub fn size_bytes(&self) -> u64 {
        self.view.size()
    }

    /// Returns true if a writer is open that is not known to be dead.
    pub fn is_being_written(&self) -> bool {
        let host = self.file.container().host();
        self.summary.is_being_written(&host.is_gone)
    }

    /// Returns true if a log is shorter than its `closed` name states. The missing ranges read as
    /// the previous content.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Returns the parts of `range` that are not holes.
    pub fn data_ranges(&self, range: Range<FileOffset>) -> Result<Vec<Range<FileOffset>>> {
        let mut ranges: Vec<Range<FileOffset>> = Vec::new();
        let Range { start, end } = range;
        let end = end.min(FileOffset(self.size_bytes()));
        if start < end {
            self.view.pieces(start, end, &mut |piece| {
                let Piece::Data(extent) = piece else { return };
                match ranges.last_mut() {
                    Some(last) if last.end == extent.start => last.end = extent.end(),
                    _ => ranges.push(extent.start..extent.end()),
                }
            })?;
        }
        Ok(ranges)
    }
}

impl ReadAt for Snapshot {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let end = offset.saturating_add(into.len() as u64).min(self.size_bytes());
        let length = end.saturating_sub(offset) as usize;
        self.file.read_at(&mut into[..length], FileOffset(offset))
    }
}
