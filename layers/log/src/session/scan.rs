//! Reads one writer's logs, and passes the batches of the index log and the frames of the data log
//! to the caller. Keeps no state.

use std::sync::Arc;

use quell_posix::OpenFile;
use quell_vfs::{Error, Result};

use crate::container::{Container, read_frame_head};
use crate::format::{
    BATCH_HEAD_BYTES, BODY_BYTES_MAX, Batch, FrameHead, HEAD_BYTES, HeadKind, LogDamage, LogPosition,
    PayloadOffset, Run, data_name, decode_batch,
};
use crate::not_found::none_if_not_found;

/// Size of a read of an index log, in bytes.
const READ_BYTES: usize = 1 << 20;

/// The end of an index log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEnd {
    /// Size of the index log; `None` if there is none.
    pub bytes: Option<u64>,
    /// The end of the last valid batch.
    pub end: IndexPosition,
    /// The reason why the last valid batch does not end at the end of the file.
    pub damage: Option<LogDamage>,
}

/// The boundary between two batches of an index log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexPosition {
    /// Offset in the index log; 0 if the header was not read yet.
    pub index_offset: u64,
    /// The position up to which the previous batches describe the data log.
    pub indexed: LogPosition,
}

impl IndexPosition {
    pub const START: IndexPosition = IndexPosition { index_offset: 0, indexed: LogPosition::START };
}

/// Receives a batch and the payload offset at which it begins. Returns true to continue.
pub type VisitBatch<'a> = dyn FnMut(Batch, PayloadOffset) -> Result<bool> + 'a;

/// Visits every batch of an index log with the payload offset at which it begins, until one is torn
/// or `visit` returns false.
pub fn visit_batches(container: &Container, writer: u64, visit: &mut VisitBatch<'_>) -> Result<IndexEnd> {
    let file = none_if_not_found(container.open_index(writer))?;
    let bytes = file.as_ref().map(|file| file.stat()).transpose()?.map(|stat| stat.size_bytes);
    let (end, damage) = match file {
        Some(file) => visit_batches_from(&*file, container, writer, IndexPosition::START, visit)?,
        None => (IndexPosition::START, None),
    };
    Ok(IndexEnd { bytes, end, damage })
}

/// Visits the batches from a position on, as `visit_batches` does, to read only the batches that
/// were added. Returns the position after the last batch, and the reason why the following bytes,
/// if any, are not a batch.
pub fn visit_batches_from(
    file: &dyn OpenFile,
    container: &Container,
    writer: u64,
    from: IndexPosition,
    visit: &mut VisitBatch<'_>,
) -> Result<(IndexPosition, Option<LogDamage>)> {
    let block_bytes = container.head().block_bytes.into();
    let mut at = from;
    let mut buffer = Vec::new();
    // Number of bytes of the buffer that were used.
    let mut used = 0;
    loop {
        let before = buffer.len();
        let here = before - used;
        buffer.resize(before + READ_BYTES.max(wanted(&buffer[used..]).saturating_sub(here)), 0);
        let read = file.read_at(&mut buffer[before..], at.index_offset + here as u64)?;
        let is_end = read < buffer.len() - before;
        buffer.truncate(before + read);
        if at.index_offset == 0 {
            if container.check_head(&buffer, HeadKind::Index, writer).is_err() {
                let reason = "it does not begin with its header";
                return Ok((at, Some(LogDamage { object: "the index log", offset: 0, reason })));
            }
            (used, at.index_offset) = (HEAD_BYTES, HEAD_BYTES as u64);
        }
        let damage = loop {
            match decode_batch(&buffer[used..], block_bytes, at.indexed) {
                Ok(batch) => {
                    let start = at.indexed.payload;
                    used += batch.bytes;
                    at.index_offset += batch.bytes as u64;
                    at.indexed.payload += batch.frames.payload_bytes();
                    at.indexed.log_offset = batch.frames.log_end();
                    if !visit(batch, start)? {
                        return Ok((at, None));
                    }
                }
                Err(damage) => break damage,
            }
        };
        let left = buffer.len() - used;
        if is_end || wanted(&buffer[used..]) <= left {
            return Ok((at, (left > 0).then_some(LogDamage { offset: at.index_offset, ..damage })));
        }
        buffer.drain(..used);
        used = 0;
    }
}

/// Returns the size of the batch at the front of `bytes`, or the size of its header if that is
/// incomplete.
fn wanted(bytes: &[u8]) -> usize {
    match bytes.get(4..8) {
        Some(body) => {
            let body = u32::from_le_bytes(body.try_into().expect("4 bytes"));
            BATCH_HEAD_BYTES + u64::from(body).min(BODY_BYTES_MAX) as usize
        }
        None => BATCH_HEAD_BYTES,
    }
}

/// Receives a frame's log offset, header and runs. Returns true to continue.
pub type VisitFrame<'a> = dyn FnMut(u64, &FrameHead, Vec<Run>) -> Result<bool> + 'a;

/// Visits the frames of a data log from `start` on. Returns the end of the last complete frame. The
/// blocks lie within the size of the log, but are not read.
pub fn visit_frames(
    file: &dyn OpenFile,
    block_bytes: u64,
    start: LogPosition,
    visit: &mut VisitFrame<'_>,
) -> Result<LogPosition> {
    let mut at = start;
    let size = file.stat()?.size_bytes;
    while at.log_offset < size {
        let Some((head, runs)) = read_frame_head(file, at)? else { break };
        let end = head.frame(at.log_offset).log_end(block_bytes);
        if end > size || !visit(at.log_offset, &head, runs)? {
            break;
        }
        at = LogPosition { log_offset: end, payload: at.payload + head.payload_bytes };
    }
    Ok(at)
}

/// A data log, and the result of verifying its header.
pub type DataLog = (Arc<dyn OpenFile>, Result<(), Error>);

/// Returns the data log of `writer`, even if its header is damaged, or `None` if there is no data
/// log.
pub fn open_data_and_head(container: &Container, writer: u64) -> Result<Option<DataLog>> {
    let Some(file) = none_if_not_found(container.open_log(writer, &data_name(writer)))? else {
        return Ok(None);
    };
    if container.object().is_some_and(|object| object.writer() == writer) {
        return Ok(Some((file, Ok(())))); // its header was verified when it was opened
    }
    let mut bytes = [0; HEAD_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    let head = container.check_head(&bytes[..length], HeadKind::Data, writer);
    Ok(Some((file, head)))
}
