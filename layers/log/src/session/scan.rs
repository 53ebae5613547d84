//! Reads one writer's logs, and passes the batches of the index log and the frames of the data log
//! to the caller. Keeps no state.

use quell_posix::OpenFile;
use quell_vfs::{Error, Result};

use crate::container::container_dir::{Container, data_name};
use crate::container::missing::missing;
use crate::format::damage::Damage;
use crate::format::data_log::{self, FrameHead};
use crate::format::heads::{HEAD_BYTES, HeadKind};
use crate::format::index_log::{self, BATCH_HEAD_BYTES, BODY_BYTES_MAX, Batch};
use crate::format::runs::Run;

/// Size of a read of an index log, in bytes.
const READ_BYTES: usize = 1 << 20;

/// The end of an index log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEnd {
    /// Size of the index log; `None` if there is none.
    pub bytes: Option<u64>,
    /// Offset of the end of the last valid batch.
    pub place: u64,
    /// Payload offset and data log offset up to which the batches describe the data log.
    pub position: u64,
    pub data_place: u64,
    /// The reason why the last valid batch does not end at the end of the file.
    pub damage: Option<Damage>,
}

/// A position in an index log, between two batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexPlace {
    /// 0 if the header was not read yet.
    pub place: u64,
    /// Payload offset and data log offset up to which the previous batches describe the data log.
    pub position: u64,
    pub data_place: u64,
}

impl IndexPlace {
    pub const BEGIN: IndexPlace = IndexPlace { place: 0, position: 0, data_place: HEAD_BYTES as u64 };
}

/// Receives a batch and the payload offset at which it begins. Returns true to continue.
pub type VisitBatch<'a> = dyn FnMut(Batch, u64) -> Result<bool> + 'a;

/// Visits every batch of an index log with the payload offset at which it begins, until one is torn
/// or `visit` returns false.
pub fn batches(container: &Container, writer: u64, visit: &mut VisitBatch<'_>) -> Result<IndexEnd> {
    let file = missing(container.open_index(writer))?;
    let bytes = file.as_ref().map(|file| file.stat()).transpose()?.map(|stat| stat.size_bytes);
    let (IndexPlace { place, position, data_place }, damage) = match file {
        Some(file) => batches_from(&*file, container, writer, IndexPlace::BEGIN, visit)?,
        None => (IndexPlace::BEGIN, None),
    };
    Ok(IndexEnd { bytes, place, position, data_place, damage })
}

/// Visits the batches from a position on, as `batches` does, to read only those that were added.
/// Returns the position after the last batch, and the reason why the following bytes, if any, are
/// not a batch.
pub fn batches_from(
    file: &dyn OpenFile,
    container: &Container,
    writer: u64,
    from: IndexPlace,
    visit: &mut VisitBatch<'_>,
) -> Result<(IndexPlace, Option<Damage>)> {
    let block_bytes = container.head().block_bytes.into();
    let mut at = from;
    let mut buffer = Vec::new();
    // Number of bytes of the buffer that were used.
    let mut used = 0;
    loop {
        let before = buffer.len();
        let here = before - used;
        buffer.resize(before + READ_BYTES.max(wanted(&buffer[used..]).saturating_sub(here)), 0);
        let read = file.read_at(&mut buffer[before..], at.place + here as u64)?;
        let is_end = read < buffer.len() - before;
        buffer.truncate(before + read);
        if at.place == 0 {
            if container.check_head(&buffer, HeadKind::Index, writer).is_err() {
                let reason = "it does not begin with its head";
                return Ok((at, Some(Damage { what: "the index log", place: 0, reason })));
            }
            (used, at.place) = (HEAD_BYTES, HEAD_BYTES as u64);
        }
        let damage = loop {
            match index_log::decode(&buffer[used..], block_bytes, at.position, at.data_place) {
                Ok(batch) => {
                    let begins = at.position;
                    used += batch.bytes;
                    at.place += batch.bytes as u64;
                    at.position += batch.frames.position();
                    at.data_place = batch.frames.place();
                    if !visit(batch, begins)? {
                        return Ok((at, None));
                    }
                }
                Err(damage) => break damage,
            }
        };
        let left = buffer.len() - used;
        if is_end || wanted(&buffer[used..]) <= left {
            return Ok((at, (left > 0).then_some(Damage { place: at.place, ..damage })));
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

/// Visits the frames of a data log from log offset `place` and payload offset `position` on.
/// Returns both offsets of the end of the last complete frame. The blocks lie within the size of
/// the log, but are not read.
pub fn frames(
    file: &dyn OpenFile,
    block_bytes: u64,
    (mut place, mut position): (u64, u64),
    visit: &mut VisitFrame<'_>,
) -> Result<(u64, u64)> {
    let size = file.stat()?.size_bytes;
    while place < size {
        let Some((head, runs)) = data_log::read_head(file, place, position)? else { break };
        let end = place + head.bytes() + crate::format::frames::stored_bytes(head.payload_bytes, block_bytes);
        if end > size || !visit(place, &head, runs)? {
            break;
        }
        (place, position) = (end, position + head.payload_bytes);
    }
    Ok((place, position))
}

/// A data log, and the result of verifying its header.
pub type Data = (Box<dyn OpenFile>, Result<(), Error>);

/// Returns the data log of `writer`, even if its header is damaged, or `None` if there is no data
/// log.
pub fn data(container: &Container, writer: u64) -> Result<Option<Data>> {
    let Some(file) = missing(container.open_log(writer, &data_name(writer)))? else { return Ok(None) };
    let mut bytes = [0; HEAD_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    let head = container.check_head(&bytes[..length], HeadKind::Data, writer);
    Ok(Some((file, head)))
}
