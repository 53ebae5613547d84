//! One writer's logs: the batches of the index log and the frames of the data log, each handed to who looks at them. Nothing
//! is kept.

use quell_backing::OpenFile;
use quell_fs::{Error, Result};

use crate::container::{Container, data_name};
use crate::damage::Damage;
use crate::data_log::{self, FrameHead};
use crate::heads::{HEAD_BYTES, HeadKind};
use crate::index_log::{self, BATCH_HEAD_BYTES, BODY_BYTES_MAX, Batch};
use crate::missing::missing;
use crate::runs::Run;

/// Index logs are read in pieces of this size.
const READ_BYTES: usize = 1 << 20;

/// How far an index log goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEnd {
    /// Bytes of the index log; `None` if there is none.
    pub bytes: Option<u64>,
    /// Where it ends, or stops to make sense.
    pub place: u64,
    /// What it tells of: positions, and how far that is in the data log.
    pub position: u64,
    pub data_place: u64,
    /// Why it ends before its end.
    pub damage: Option<Damage>,
}

/// A place in an index log, between two batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexPlace {
    /// 0: its head was not looked at.
    pub place: u64,
    /// What the batches before tell of: positions, and how far that is in the data log.
    pub position: u64,
    pub data_place: u64,
}

impl IndexPlace {
    pub const BEGIN: IndexPlace = IndexPlace { place: 0, position: 0, data_place: HEAD_BYTES as u64 };
}

/// What is done with a batch, and with the position that it begins with. Whether to go on.
pub type VisitBatch<'a> = dyn FnMut(Batch, u64) -> Result<bool> + 'a;

/// Visits every batch of an index log, with the position that it begins with, until one is torn or `visit` says
/// that it has seen enough.
pub fn batches(container: &Container, writer: u64, visit: &mut VisitBatch<'_>) -> Result<IndexEnd> {
    let file = missing(container.open_index(writer))?;
    let bytes = file.as_ref().map(|file| file.stat()).transpose()?.map(|stat| stat.size_bytes);
    let (IndexPlace { place, position, data_place }, damage) = match file {
        Some(file) => batches_from(&*file, container, writer, IndexPlace::BEGIN, visit)?,
        None => (IndexPlace::BEGIN, None),
    };
    Ok(IndexEnd { bytes, place, position, data_place, damage })
}

/// The same from a place on, to see only what has come since. Returns the place behind the last batch, and why nothing that
/// follows is one, if something does.
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
    // Bytes of the buffer that are used up.
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

/// How many bytes the batch at the front of `bytes` takes, or at least its head.
fn wanted(bytes: &[u8]) -> usize {
    match bytes.get(4..8) {
        Some(body) => {
            let body = u32::from_le_bytes(body.try_into().expect("4 bytes"));
            BATCH_HEAD_BYTES + u64::from(body).min(BODY_BYTES_MAX) as usize
        }
        None => BATCH_HEAD_BYTES,
    }
}

/// What is done with a frame: its place, head and runs. Whether to go on.
pub type VisitFrame<'a> = dyn FnMut(u64, &FrameHead, Vec<Run>) -> Result<bool> + 'a;

/// Visits the frames of a data log by their heads, from `place` and `position` on: place, head, runs. Returns where
/// there is none any more. The blocks are not looked at, but they are there in full.
pub fn frames(
    file: &dyn OpenFile,
    block_bytes: u64,
    (mut place, mut position): (u64, u64),
    visit: &mut VisitFrame<'_>,
) -> Result<(u64, u64)> {
    let size = file.stat()?.size_bytes;
    while place < size {
        let Some((head, runs)) = data_log::read_head(file, place, position)? else { break };
        let end = place + head.bytes() + crate::frames::stored_bytes(head.payload_bytes, block_bytes);
        if end > size || !visit(place, &head, runs)? {
            break;
        }
        (place, position) = (end, position + head.payload_bytes);
    }
    Ok((place, position))
}

/// A data log, and whether it begins with its head.
pub type Data = (Box<dyn OpenFile>, Result<(), Error>);

/// The data log of `writer`, whatever its head is; `None` if there is none.
pub fn data(container: &Container, writer: u64) -> Result<Option<Data>> {
    let Some(file) = missing(container.open_log(writer, &data_name(writer)))? else { return Ok(None) };
    let mut bytes = [0; HEAD_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    let head = container.check_head(&bytes[..length], HeadKind::Data, writer);
    Ok(Some((file, head)))
}
