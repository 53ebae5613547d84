//! One writer's logs from their beginnings: the batches of the index log and the frames of the data log, each handed
//! to who looks at them. Nothing is kept.

use std::sync::Arc;

use quell_backing::{OpenFile, WritableDir};
use quell_fs::{Error, ErrorKind, Result};

use crate::container::{Container, data_name};
use crate::damage::Damage;
use crate::data_log::{self, FrameHead};
use crate::heads::{HEAD_BYTES, HeadKind};
use crate::index_log::{self, BATCH_HEAD_BYTES, BODY_BYTES_MAX, Batch};
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

/// Visits every batch of an index log, with the position that it begins with, until one is torn or `visit` says
/// that it has seen enough.
pub fn batches(
    container: &Container,
    writer: u64,
    visit: &mut dyn FnMut(Batch, u64) -> Result<bool>,
) -> Result<IndexEnd> {
    let begin = HEAD_BYTES as u64;
    let mut end = IndexEnd { bytes: None, place: 0, position: 0, data_place: begin, damage: None };
    let file = match container.open_index(writer) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(end),
        file => file?,
    };
    let size = file.stat()?.size_bytes;
    end.bytes = Some(size);
    let mut head = [0; HEAD_BYTES];
    let length = file.read_at(&mut head, 0)?;
    if container.check_head(&head[..length], HeadKind::Index, writer).is_err() {
        end.damage =
            Some(Damage { what: "the index log", place: 0, reason: "it does not begin with its head" });
        return Ok(end);
    }
    end.place = begin;
    let block_bytes = container.head().block_bytes.into();
    let mut buffer: Vec<u8> = Vec::new();
    // Bytes of the buffer that are used up.
    let mut at = 0;
    while end.place < size {
        match index_log::decode(&buffer[at..], block_bytes, end.position, end.data_place) {
            Ok(batch) => {
                let begins = end.position;
                at += batch.bytes;
                end.place += batch.bytes as u64;
                end.position += batch.frames.position();
                end.data_place = batch.frames.place();
                if !visit(batch, begins)? {
                    return Ok(end);
                }
            }
            Err(damage) => {
                let here = (buffer.len() - at) as u64;
                let whole = wanted(&buffer[at..]) as u64;
                if here >= whole || end.place + here >= size {
                    end.damage = Some(Damage { place: end.place, ..damage });
                    return Ok(end);
                }
                buffer.drain(..at);
                at = 0;
                let more = READ_BYTES.max(whole as usize - here as usize);
                let more = more.min((size - end.place - here) as usize);
                let before = buffer.len();
                buffer.resize(before + more, 0);
                let read = file.read_at(&mut buffer[before..], end.place + here)?;
                buffer.truncate(before + read);
                if read == 0 {
                    end.damage = Some(Damage { place: end.place, ..damage });
                    return Ok(end);
                }
            }
        }
    }
    Ok(end)
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

/// The directory of a writer's logs.
pub fn logs_of(container: &Container, writer: u64) -> Result<Arc<dyn WritableDir>> {
    let number = (writer % u64::from(container.head().directories)) as u32;
    container.stores().open_logs(container, number, false)
}

/// A data log, and whether it begins with its head.
pub type Data = (Box<dyn OpenFile>, Result<(), Error>);

/// The data log of `writer`, whatever its head is; `None` if there is none.
pub fn data(container: &Container, writer: u64) -> Result<Option<Data>> {
    let file = match logs_of(container, writer).and_then(|dir| dir.open_file(&data_name(writer))) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = [0; HEAD_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    let head = container.check_head(&bytes[..length], HeadKind::Data, writer);
    Ok(Some((file, head)))
}
