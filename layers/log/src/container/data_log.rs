//! Writes frames to a data log, and reads and verifies the blocks of their payload. The format is
//! described in docs/formats/log.md.

use std::num::NonZeroU64;
use std::sync::Arc;

use quell_posix::{OpenFile, WritableFile};
use quell_vfs::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::{
    FRAME_HEAD_BYTES, Frame, FrameHead, FrameKind, LogDamage, LogPosition, PayloadOffset, PayloadRange, Run,
    SUM_BYTES, decode_frame_head, decode_frame_runs,
};

/// Size and alignment of the pieces in which a log is rewritten, in bytes. On x86-64 no folio of
/// the page cache is larger, so every folio lies within one piece.
const REWRITE_BYTES: NonZeroU64 = NonZeroU64::new(2 << 20).expect("not zero");

/// Writes a frame at this log offset: the header, then each block of the payload with its
/// checksum.
pub fn write_frame(
    file: &dyn WritableFile,
    log_offset: u64,
    head: &[u8],
    payload: &[u8],
    payload_start: PayloadOffset,
    block_bytes: u64,
) -> Result<()> {
    let blocks = payload.chunks(block_bytes as usize);
    let sums: Vec<[u8; 8]> = (blocks.clone())
        .zip((payload_start.0..).step_by(block_bytes as usize))
        .map(|(block, seed)| xxh3_64_with_seed(block, seed).to_le_bytes())
        .collect();
    let mut pieces = Vec::with_capacity(1 + 2 * sums.len());
    pieces.push(head);
    for (block, sum) in blocks.zip(&sums) {
        pieces.extend([block, sum]);
    }
    file.write_pieces_at(&pieces, log_offset)
}

/// Writes a frame of zeros at this log offset: the header, and the checksum of an empty payload.
pub fn write_zeros(
    file: &dyn WritableFile,
    log_offset: u64,
    head: &[u8],
    payload_start: PayloadOffset,
) -> Result<()> {
    let sum = sum_of_zeros(payload_start).to_le_bytes();
    file.write_pieces_at(&[head, &sum], log_offset)
}

/// Returns the checksum that a frame of zeros has in place of its payload.
fn sum_of_zeros(payload_start: PayloadOffset) -> u64 {
    xxh3_64_with_seed(b"", payload_start.0)
}

/// Returns the checksum that a frame of zeros has in the data log; `None` if the log ends before
/// the checksum.
fn zeros_sum(file: &dyn OpenFile, frame: &Frame) -> Result<Option<u64>> {
    let mut sum = [0; SUM_BYTES as usize];
    let length = file.read_at(&mut sum, frame.payload_log_offset)?;
    Ok((length == sum.len()).then(|| u64::from_le_bytes(sum)))
}

/// A block whose checksum was verified.
#[derive(Debug, Clone)]
pub struct Block {
    /// Payload offset of its first byte.
    pub start: PayloadOffset,
    pub bytes: Vec<u8>,
}

/// Reads `into.len()` bytes from payload offset `start` on, all of which lie in `frame`, and
/// verifies every block that contains one of these bytes. A block of which only a part is requested
/// is taken from `edges` if `edges` has it; otherwise it is read and added to `edges`.
pub fn read_payload(
    file: &dyn OpenFile,
    frame: &Frame,
    block_bytes: u64,
    start: PayloadOffset,
    into: &mut [u8],
    edges: &dyn Edges,
) -> Result<()> {
    if frame.kind == FrameKind::Zeros {
        if zeros_sum(file, frame)? != Some(sum_of_zeros(frame.payload_start)) {
            return Err(torn(frame.payload_log_offset, "the checksum of a frame of zeros does not match"));
        }
        into.fill(0);
        return Ok(());
    }
    let end = start + into.len() as u64;
    let start_of = |payload: PayloadOffset| {
        frame.payload_start + (payload - frame.payload_start) / block_bytes * block_bytes
    };
    let (mut at, mut rest) = (start, into);
    // Takes blocks from the front of the range as long as they are in `edges`.
    while at < end {
        let is_whole = |block: &Arc<Block>| {
            block.bytes.len() as u64 == (frame.payload_end() - block.start).min(block_bytes)
        };
        let Some(block) = edges.get(start_of(at)).filter(is_whole) else { break };
        let taken = take(&block, at, rest);
        at += taken as u64;
        rest = &mut rest[taken..];
    }
    if at == end {
        return Ok(());
    }
    // `at` is before `end`, so the range has a last byte.
    let (first, last) = (start_of(at), start_of(at + (end - at - 1)));
    let count = ((last - first) / block_bytes + 1) as usize;
    let bytes_of = |block: PayloadOffset| (frame.payload_end() - block).min(block_bytes) as usize;
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
    let log_offset =
        frame.payload_log_offset + (first - frame.payload_start) / block_bytes * (block_bytes + SUM_BYTES);
    {
        let some = |block| Some(block).filter(|block: &&mut [u8]| !block.is_empty());
        let blocks = (some(&mut front[..]).into_iter())
            .chain(middle.chunks_mut(block_bytes as usize))
            .chain(some(&mut back[..]));
        let mut pieces: Vec<&mut [u8]> = Vec::with_capacity(2 * count);
        for (block, sum) in blocks.zip(&mut sums) {
            pieces.extend([block, &mut sum[..]]);
        }
        if file.read_pieces_at(&mut pieces, log_offset)? < wanted {
            return Err(torn(log_offset, "the data log ends too early"));
        }
    }
    let some = |block| Some(block).filter(|block: &&[u8]| !block.is_empty());
    let blocks =
        (some(&front[..]).into_iter()).chain(middle.chunks(block_bytes as usize)).chain(some(&back[..]));
    for ((block, sum), seed) in blocks.zip(&sums).zip((first.0..).step_by(block_bytes as usize)) {
        if xxh3_64_with_seed(block, seed) != u64::from_le_bytes(*sum) {
            return Err(torn(log_offset + (seed - first.0), "the checksum of a block does not match"));
        }
    }
    from_front.copy_from_slice(&front[lead.min(front.len())..][..from_front.len()]);
    from_back.copy_from_slice(&back[..from_back.len()]);
    for (start, bytes) in [(first, front), (last, back)] {
        if !bytes.is_empty() {
            edges.put(Arc::new(Block { start, bytes }));
        }
    }
    Ok(())
}

/// Returns the payload ranges of the blocks of `frame` that were not written completely: their
/// checksum, which is written last, is missing or zero. A block with any other wrong checksum is
/// damaged, not torn, and is not returned. A frame of zeros counts as one block.
pub fn torn_blocks(file: &dyn OpenFile, frame: &Frame, block_bytes: u64) -> Result<Vec<PayloadRange>> {
    if frame.kind == FrameKind::Zeros {
        let is_torn = matches!(zeros_sum(file, frame)?, None | Some(0));
        let whole = PayloadRange { start: frame.payload_start, end: frame.payload_end() };
        return Ok(is_torn.then_some(whole).into_iter().collect());
    }
    let mut torn = Vec::new();
    let mut log_offset = frame.payload_log_offset;
    let mut start = frame.payload_start;
    while start < frame.payload_end() {
        let end = (start + block_bytes).min(frame.payload_end());
        log_offset += end - start;
        let mut sum = [0; SUM_BYTES as usize];
        if file.read_at(&mut sum, log_offset)? < sum.len() || sum == [0; SUM_BYTES as usize] {
            torn.push(PayloadRange { start, end });
        }
        log_offset += SUM_BYTES;
        start = end;
    }
    Ok(torn)
}

/// Rewrites the bytes from log offset `start` to `end` with the same content. After a failed sync
/// these bytes may exist in the page cache only, although the kernel regards their pages as clean.
///
/// Each page is dropped from the cache before it is rewritten. Otherwise ext4 writes the blocks of
/// a page whose first writeback failed, but leaves them marked as unwritten: the sync succeeds, and
/// the page reads as zeros once it has left the cache. If the process is killed between the two
/// steps, bytes that exist in the page cache only are lost.
pub fn rewrite(file: &dyn WritableFile, start: u64, end: u64) -> Result<()> {
    let mut at = start - start % REWRITE_BYTES.get();
    let mut buffer = vec![0; REWRITE_BYTES.get().min(end.saturating_sub(at)) as usize];
    while at < end {
        let wanted = REWRITE_BYTES.get().min(end - at) as usize;
        let length = file.read_at(&mut buffer[..wanted], at)?;
        if length == 0 {
            break;
        }
        file.drop_cache(at, REWRITE_BYTES)?;
        file.write_at(&buffer[..length], at)?;
        at += REWRITE_BYTES.get();
    }
    Ok(())
}

/// Verifies the frames from `start` up to log offset `end`. Drops them from the page cache first,
/// so that they are read from the store.
///
/// # Errors
///
/// `Damaged` if a frame is incomplete or does not match its checksums.
pub fn verify_frames(file: &dyn WritableFile, start: LogPosition, end: u64, block_bytes: u64) -> Result<()> {
    let LogPosition { mut log_offset, mut payload } = start;
    let from = log_offset - log_offset % REWRITE_BYTES.get();
    file.drop_cache(from, REWRITE_BYTES.saturating_add(end.saturating_sub(from)))?;
    while log_offset < end {
        let Some((head, _)) = read_frame_head(file, LogPosition { log_offset, payload })? else {
            return Err(torn(log_offset, "a frame is lost: a sync of it failed"));
        };
        let frame = head.frame(log_offset);
        if !is_frame_whole(file, &frame, block_bytes)? {
            return Err(torn(log_offset, "a block is lost: a sync of it failed"));
        }
        log_offset = frame.log_end(block_bytes);
        payload = frame.payload_end();
    }
    Ok(())
}

/// Copies the bytes of `block` from payload offset `at` on to `into`, as far as they fit, and
/// returns their number.
fn take(block: &Block, at: PayloadOffset, into: &mut [u8]) -> usize {
    let from = &block.bytes[(at - block.start) as usize..];
    let n = from.len().min(into.len());
    into[..n].copy_from_slice(&from[..n]);
    n
}

fn torn(log_offset: u64, reason: &'static str) -> Error {
    LogDamage { object: "the data log", offset: log_offset, reason }.in_file("the data log")
}

/// Blocks of one log that were requested in part, kept for a later read of the remaining part.
pub trait Edges {
    /// Returns the block whose first byte has this payload offset.
    fn get(&self, start: PayloadOffset) -> Option<Arc<Block>>;
    fn put(&self, block: Arc<Block>);
}

/// An `Edges` that keeps no blocks.
#[derive(Debug)]
pub struct NoEdges;

impl Edges for NoEdges {
    fn get(&self, _: PayloadOffset) -> Option<Arc<Block>> {
        None
    }

    fn put(&self, _: Arc<Block>) {}
}

/// Reads the header and the runs of the frame at this position. Returns `Ok(None)` at the end of
/// the log, that is, if no complete header with this payload offset begins at this log offset.
pub fn read_frame_head(file: &dyn OpenFile, at: LogPosition) -> Result<Option<(FrameHead, Vec<Run>)>> {
    let mut fixed = [0; FRAME_HEAD_BYTES as usize];
    if file.read_at(&mut fixed, at.log_offset)? < fixed.len() {
        return Ok(None);
    }
    let Ok(head) = decode_frame_head(&fixed) else { return Ok(None) };
    if head.payload_start != at.payload {
        return Ok(None);
    }
    let mut bytes = vec![0; head.bytes() as usize];
    bytes[..fixed.len()].copy_from_slice(&fixed);
    let rest = &mut bytes[fixed.len()..];
    if file.read_at(rest, at.log_offset + FRAME_HEAD_BYTES)? < rest.len() {
        return Ok(None);
    }
    Ok(decode_frame_runs(&head, &bytes).ok().map(|runs| (head, runs)))
}

/// Returns true if every block of `frame` is present and matches its checksum.
pub fn is_frame_whole(file: &dyn OpenFile, frame: &Frame, block_bytes: u64) -> Result<bool> {
    let size = file.stat()?.size_bytes;
    if frame.log_end(block_bytes) > size {
        return Ok(false);
    }
    if frame.kind == FrameKind::Zeros {
        return Ok(zeros_sum(file, frame)? == Some(sum_of_zeros(frame.payload_start)));
    }
    // Reads a few blocks at a time, so that the buffer is small even if the header gives a large
    // size.
    let step = (64 * block_bytes).min(frame.payload_bytes);
    let mut buffer = vec![0; step as usize];
    let mut at = frame.payload_start;
    while at < frame.payload_end() {
        let n = step.min(frame.payload_end() - at);
        match read_payload(file, frame, block_bytes, at, &mut buffer[..n as usize], &NoEdges) {
            Ok(()) => at += n,
            Err(error) if error.kind == ErrorKind::Damaged => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
