//! The data log: encodes and decodes frames, and reads and verifies the blocks of their payload.
//! The format is described in docs/formats/log.md.

use std::num::NonZeroU64;
use std::sync::Arc;

use quell_posix::{OpenFile, WritableFile};
use quell_vfs::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::format::bytes::{Bytes, u32_at, u64_at};
use crate::format::damage::Damage;
use crate::format::frames::{
    FRAME_HEAD_BYTES, Frame, PAYLOAD_BYTES_MAX, RUNS_BYTES_MAX, SUM_BYTES, stored_bytes,
};
use crate::format::runs::{self, Run};

const MAGIC: &[u8; 4] = b"FRAM";
const SUM_AT: usize = 48;
/// Size and alignment of a rewrite: a folio of the page cache on x86-64 is not larger, and lies
/// within one such piece.
const AGAIN_BYTES: NonZeroU64 = NonZeroU64::new(2 << 20).expect("not zero");

/// The fields of a frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    pub runs_bytes: u64,
    pub payload_bytes: u64,
    pub epoch: u64,
    pub sequence: u64,
    pub position: u64,
    pub runs: u64,
}

impl FrameHead {
    /// Returns the size of the header and the runs in bytes.
    pub fn bytes(&self) -> u64 {
        FRAME_HEAD_BYTES + self.runs_bytes
    }

    /// Returns the frame whose header is at log offset `place`.
    pub fn frame(&self, place: u64) -> Frame {
        Frame {
            position: self.position,
            payload_bytes: self.payload_bytes,
            payload_place: place + self.bytes(),
            epoch: self.epoch,
            sequence: self.sequence,
        }
    }
}

/// Encodes the header and the runs of a frame.
pub fn encode_head(runs: &[Run], payload: u64, epoch: u64, sequence: u64, position: u64) -> Vec<u8> {
    let mut out = vec![0; FRAME_HEAD_BYTES as usize];
    runs::encode(runs, &mut out);
    let runs_bytes = (out.len() - FRAME_HEAD_BYTES as usize) as u32;
    out[..4].copy_from_slice(MAGIC);
    out[4..8].copy_from_slice(&runs_bytes.to_le_bytes());
    for (at, value) in [(8, payload), (16, epoch), (24, sequence), (32, position), (40, runs.len() as u64)] {
        out[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let sum = head_sum(&out);
    out[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
    out
}

fn head_sum(head_and_runs: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&head_and_runs[..SUM_AT]);
    sum.update(&head_and_runs[FRAME_HEAD_BYTES as usize..]);
    sum.digest()
}

/// Decodes the fixed part of a header. Its checksum also covers the runs and is verified by
/// `decode_runs`.
pub fn decode_head(bytes: &[u8; FRAME_HEAD_BYTES as usize]) -> Result<FrameHead, Damage> {
    let damage = |place, reason| Damage { what: "a frame", place, reason };
    if &bytes[..4] != MAGIC {
        return Err(damage(0, "the magic bytes are others"));
    }
    let head = FrameHead {
        runs_bytes: u32_at(bytes, 4).into(),
        payload_bytes: u64_at(bytes, 8),
        epoch: u64_at(bytes, 16),
        sequence: u64_at(bytes, 24),
        position: u64_at(bytes, 32),
        runs: u64_at(bytes, 40),
    };
    if head.runs_bytes > RUNS_BYTES_MAX || !(1..=PAYLOAD_BYTES_MAX).contains(&head.payload_bytes) {
        return Err(damage(4, "a frame cannot be as large as that"));
    }
    Ok(head)
}

/// Decodes the runs of a frame from its complete header and runs, after verifying the checksum.
pub fn decode_runs(head: &FrameHead, head_and_runs: &[u8]) -> Result<Vec<Run>, Damage> {
    let damage = |place, reason| Damage { what: "a frame", place, reason };
    if head_sum(head_and_runs) != u64_at(head_and_runs, SUM_AT) {
        return Err(damage(SUM_AT as u64, "the checksum is another"));
    }
    let mut bytes = Bytes::new(&head_and_runs[FRAME_HEAD_BYTES as usize..], "the runs of a frame");
    // Each run takes at least two bytes.
    let mut runs = Vec::with_capacity(head.runs.min(head.runs_bytes) as usize);
    let mut sum = 0u64;
    runs::decode(&mut bytes, head.runs, |run| {
        sum = sum.saturating_add(run.bytes());
        runs.push(run);
    })?;
    if !bytes.is_empty() || sum != head.payload_bytes {
        return Err(damage(8, "the runs do not add up to the payload"));
    }
    Ok(runs)
}

/// Writes a frame at log offset `place`: the header, then each block of the payload with its
/// checksum.
pub fn write_frame(
    file: &dyn WritableFile,
    place: u64,
    head: &[u8],
    payload: &[u8],
    position: u64,
    block_bytes: u64,
) -> Result<()> {
    let blocks = payload.chunks(block_bytes as usize);
    let sums: Vec<[u8; 8]> = (blocks.clone())
        .zip((position..).step_by(block_bytes as usize))
        .map(|(block, seed)| xxh3_64_with_seed(block, seed).to_le_bytes())
        .collect();
    let mut pieces = Vec::with_capacity(1 + 2 * sums.len());
    pieces.push(head);
    for (block, sum) in blocks.zip(&sums) {
        pieces.extend([block, sum]);
    }
    file.write_pieces_at(&pieces, place)
}

/// A block whose checksum was verified.
#[derive(Debug, Clone)]
pub struct Block {
    /// Payload offset of its first byte.
    pub position: u64,
    pub bytes: Vec<u8>,
}

/// Reads `into.len()` bytes at payload offset `position`, all of which lie in `frame`, and verifies
/// every block that contains one of them. A block of which only a part is requested is taken from
/// `edges` if it is there; otherwise it is read and added to `edges`.
pub fn read_payload(
    file: &dyn OpenFile,
    frame: &Frame,
    block_bytes: u64,
    position: u64,
    into: &mut [u8],
    edges: &dyn Edges,
) -> Result<()> {
    let end = position + into.len() as u64;
    let start_of = |position: u64| position - (position - frame.position) % block_bytes;
    let (mut at, mut rest) = (position, into);
    // The first blocks of the range, as long as they are in `edges`.
    while at < end {
        let is_whole =
            |block: &Arc<Block>| block.bytes.len() as u64 == (frame.end() - block.position).min(block_bytes);
        let Some(block) = edges.get(start_of(at)).filter(is_whole) else { break };
        let taken = take(&block, at, rest);
        at += taken as u64;
        rest = &mut rest[taken..];
    }
    if at == end {
        return Ok(());
    }
    let (first, last) = (start_of(at), start_of(end - 1));
    let count = ((last - first) / block_bytes + 1) as usize;
    let bytes_of = |block: u64| (frame.end() - block).min(block_bytes) as usize;
    // Whole blocks are read directly into the caller's buffer; a first or last block that is
    // requested in part is read into a buffer of its own.
    let lead = (at - first) as usize;
    let mut front = vec![0; if lead > 0 { bytes_of(first) } else { 0 }];
    let (from_front, rest) = rest.split_at_mut(front.len().saturating_sub(lead).min(rest.len()));
    let in_part = last + bytes_of(last) as u64 != end && (count > 1 || lead == 0);
    let mut back = vec![0; if in_part { bytes_of(last) } else { 0 }];
    let (middle, from_back) = rest.split_at_mut(rest.len() - if in_part { (end - last) as usize } else { 0 });
    let mut sums = vec![[0u8; SUM_BYTES as usize]; count];
    let wanted = front.len() + middle.len() + back.len() + count * SUM_BYTES as usize;
    let place = frame.payload_place + (first - frame.position) / block_bytes * (block_bytes + SUM_BYTES);
    {
        let some = |block| Some(block).filter(|block: &&mut [u8]| !block.is_empty());
        let blocks = (some(&mut front[..]).into_iter())
            .chain(middle.chunks_mut(block_bytes as usize))
            .chain(some(&mut back[..]));
        let mut pieces: Vec<&mut [u8]> = Vec::with_capacity(2 * count);
        for (block, sum) in blocks.zip(&mut sums) {
            pieces.extend([block, &mut sum[..]]);
        }
        if file.read_pieces_at(&mut pieces, place)? < wanted {
            return Err(torn(place, "the data log ends too early"));
        }
    }
    let some = |block| Some(block).filter(|block: &&[u8]| !block.is_empty());
    let blocks =
        (some(&front[..]).into_iter()).chain(middle.chunks(block_bytes as usize)).chain(some(&back[..]));
    for ((block, sum), seed) in blocks.zip(&sums).zip((first..).step_by(block_bytes as usize)) {
        if xxh3_64_with_seed(block, seed) != u64::from_le_bytes(*sum) {
            return Err(torn(place + (seed - first), "a block is not what was written"));
        }
    }
    from_front.copy_from_slice(&front[lead.min(front.len())..][..from_front.len()]);
    from_back.copy_from_slice(&back[..from_back.len()]);
    for (position, bytes) in [(first, front), (last, back)] {
        if !bytes.is_empty() {
            edges.put(Arc::new(Block { position, bytes }));
        }
    }
    Ok(())
}

/// Returns the payload ranges of the blocks of `frame` that were not written completely: their
/// checksum, which is written last, is missing or zero. A block with a wrong checksum was written
/// and is damaged.
pub fn torn_blocks(file: &dyn OpenFile, frame: &Frame, block_bytes: u64) -> Result<Vec<(u64, u64)>> {
    let mut torn = Vec::new();
    let mut place = frame.payload_place;
    let mut at = frame.position;
    while at < frame.end() {
        let end = (at + block_bytes).min(frame.end());
        place += end - at;
        let mut sum = [0; SUM_BYTES as usize];
        if file.read_at(&mut sum, place)? < sum.len() || sum == [0; SUM_BYTES as usize] {
            torn.push((at, end));
        }
        place += SUM_BYTES;
        at = end;
    }
    Ok(torn)
}

/// Rewrites the bytes from log offset `place` to `end` with the same content. After a failed sync
/// they may exist in the page cache only, while the kernel regards them as written.
///
/// Each page is dropped from the cache before it is rewritten. Otherwise ext4 writes the blocks of
/// a page whose first writeback failed, but leaves them marked as unwritten: the sync succeeds, and
/// the page reads as zeros once it has left the cache. If the process is killed between the two
/// steps, these bytes, which the store failed to take, are lost.
pub fn write_again(file: &dyn WritableFile, place: u64, end: u64) -> Result<()> {
    let mut at = place - place % AGAIN_BYTES.get();
    let mut buffer = vec![0; AGAIN_BYTES.get().min(end.saturating_sub(at)) as usize];
    while at < end {
        let wanted = AGAIN_BYTES.get().min(end - at) as usize;
        let length = file.read_at(&mut buffer[..wanted], at)?;
        if length == 0 {
            break;
        }
        file.drop_cache(at, AGAIN_BYTES)?;
        file.write_at(&buffer[..length], at)?;
        at += AGAIN_BYTES.get();
    }
    Ok(())
}

/// Verifies the frames from the given log and payload offset up to log offset `end`, as the store
/// returns them after the kernel has dropped them from its cache.
///
/// # Errors
///
/// `Damaged` if a frame is incomplete or does not match its checksums.
pub fn check(
    file: &dyn WritableFile,
    (mut place, mut position): (u64, u64),
    end: u64,
    block_bytes: u64,
) -> Result<()> {
    let from = place - place % AGAIN_BYTES.get();
    file.drop_cache(from, AGAIN_BYTES.saturating_add(end.saturating_sub(from)))?;
    while place < end {
        let Some((head, _)) = read_head(file, place, position)? else {
            return Err(torn(place, "a frame is lost: a sync of it failed"));
        };
        let frame = head.frame(place);
        if !is_whole(file, &frame, block_bytes)? {
            return Err(torn(place, "a block is lost: a sync of it failed"));
        }
        place = frame.payload_place + stored_bytes(head.payload_bytes, block_bytes);
        position = frame.end();
    }
    Ok(())
}

/// Copies the bytes of `block` from payload offset `at` on, and returns their number.
fn take(block: &Block, at: u64, into: &mut [u8]) -> usize {
    let from = &block.bytes[(at - block.position) as usize..];
    let n = from.len().min(into.len());
    into[..n].copy_from_slice(&from[..n]);
    n
}

fn torn(place: u64, reason: &'static str) -> Error {
    Damage { what: "the data log", place, reason }.of("the data log")
}

/// Blocks of one log that were requested in part, kept for a later read of the remaining part.
pub trait Edges {
    /// Returns the block whose first byte has this payload offset.
    fn get(&self, position: u64) -> Option<Arc<Block>>;
    fn put(&self, block: Arc<Block>);
}

/// An `Edges` that keeps no blocks.
#[derive(Debug)]
pub struct NoEdges;

impl Edges for NoEdges {
    fn get(&self, _: u64) -> Option<Arc<Block>> {
        None
    }

    fn put(&self, _: Arc<Block>) {}
}

/// Reads the header and the runs of the frame at log offset `place`. Returns `Ok(None)` at the end
/// of the log, that is, if there is no complete header that continues at payload offset `position`.
pub fn read_head(file: &dyn OpenFile, place: u64, position: u64) -> Result<Option<(FrameHead, Vec<Run>)>> {
    let mut fixed = [0; FRAME_HEAD_BYTES as usize];
    if file.read_at(&mut fixed, place)? < fixed.len() {
        return Ok(None);
    }
    let Ok(head) = decode_head(&fixed) else { return Ok(None) };
    if head.position != position {
        return Ok(None);
    }
    let mut bytes = vec![0; head.bytes() as usize];
    bytes[..fixed.len()].copy_from_slice(&fixed);
    let rest = &mut bytes[fixed.len()..];
    if file.read_at(rest, place + FRAME_HEAD_BYTES)? < rest.len() {
        return Ok(None);
    }
    Ok(decode_runs(&head, &bytes).ok().map(|runs| (head, runs)))
}

/// Returns true if every block of `frame` is present and matches its checksum.
pub fn is_whole(file: &dyn OpenFile, frame: &Frame, block_bytes: u64) -> Result<bool> {
    let size = file.stat()?.size_bytes;
    if frame.payload_place + stored_bytes(frame.payload_bytes, block_bytes) > size {
        return Ok(false);
    }
    // A few blocks at a time, so that the buffer is small even if the header gives a large size.
    let step = (64 * block_bytes).min(frame.payload_bytes);
    let mut buffer = vec![0; step as usize];
    let mut at = frame.position;
    while at < frame.end() {
        let n = step.min(frame.end() - at);
        match read_payload(file, frame, block_bytes, at, &mut buffer[..n as usize], &NoEdges) {
            Ok(()) => at += n,
            Err(error) if error.kind == ErrorKind::Damaged => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
