//! The object as which a file begins: the data log of its first writer. The sizes of its frames are
//! fixed, so that the size of the file follows from the size of the object. The format is described
//! in docs/formats/log.md. Pure functions on values, no I/O.

use xxhash_rust::xxh3::xxh3_64;

use crate::format::bytes::put_varint;
use crate::format::frame_head::{FrameHead, decode_frame_head, decode_frame_runs, seal_frame_head};
use crate::format::frames::{FRAME_HEAD_BYTES, FrameKind, SUM_BYTES};
use crate::format::heads::{BLOCK_BYTES, HEAD_BYTES, ObjectProcess};
use crate::format::meta::Holder;
use crate::format::offsets::{FileOffset, LogPosition, PayloadOffset};
use crate::format::runs::{FILE_END_MAX, Run};

/// Payload of every frame of an object but the last, in bytes.
pub const OBJECT_FRAME_BYTES: u64 = 1 << 20;
/// Size of the header and the run of a frame of an object, in bytes.
pub const OBJECT_FRAME_HEAD_BYTES: usize = FRAME_HEAD_BYTES as usize + LENGTH_BYTES + START_BYTES;
/// The bytes after the last frame of an object whose writer has ended, if that frame is full or
/// there is none.
pub const OBJECT_END: &[u8; OBJECT_END_BYTES as usize] = b"QLOGEND\n";

/// Sizes of the encoded length and the encoded start of a run.
const LENGTH_BYTES: usize = 4;
const START_BYTES: usize = 10;
const OBJECT_END_BYTES: u64 = 8;
const BLOCK: u64 = BLOCK_BYTES as u64;
const HEAD: u64 = HEAD_BYTES as u64;
/// Size of a full frame in the object.
const FULL_BYTES: u64 =
    OBJECT_FRAME_HEAD_BYTES as u64 + OBJECT_FRAME_BYTES + OBJECT_FRAME_BYTES / BLOCK * SUM_BYTES;

/// The content of an object according to its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectSize {
    /// Number of full frames.
    pub full: u64,
    pub rest: ObjectRest,
}

/// The bytes of an object after its full frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectRest {
    /// No bytes: the first writer may append more data.
    Nothing,
    /// [`OBJECT_END`]: the first writer appends no more data.
    End,
    /// A last frame with this payload, if it is complete. The first writer appends no more data.
    Frame(u64),
    /// A frame that is being written, or was torn.
    Part,
}

impl ObjectSize {
    /// Returns the content of an object of `bytes` bytes, or `None` if it has no complete header.
    pub fn of(bytes: u64) -> Option<ObjectSize> {
        let frames = bytes.checked_sub(HEAD)?;
        let (full, rest) = (frames / FULL_BYTES, frames % FULL_BYTES);
        let rest = match rest {
            0 => ObjectRest::Nothing,
            OBJECT_END_BYTES => ObjectRest::End,
            rest => last_payload(rest).map_or(ObjectRest::Part, ObjectRest::Frame),
        };
        Some(ObjectSize { full, rest })
    }

    /// Returns the end of the full frames.
    pub fn full_end(&self) -> LogPosition {
        LogPosition {
            log_offset: HEAD + self.full * FULL_BYTES,
            payload: PayloadOffset(self.full * OBJECT_FRAME_BYTES),
        }
    }

    /// Returns the size of the file, if the last frame is complete.
    pub fn file_bytes(&self) -> u64 {
        let last = if let ObjectRest::Frame(payload) = self.rest { payload } else { 0 };
        self.full_end().payload.0 + last
    }

    /// Returns the end of the last frame, if it is complete.
    pub fn log_end(&self) -> u64 {
        let last = if let ObjectRest::Frame(payload) = self.rest { stored_bytes(payload) } else { 0 };
        self.full_end().log_offset + last
    }
}

impl ObjectProcess {
    /// Returns the form of a process for the header.
    pub fn of(holder: &Holder) -> ObjectProcess {
        ObjectProcess { node_sum: node_sum(&holder.node), pid: holder.pid, start: holder.start }
    }

    /// Returns the process, with the name of this node if it runs on this node. The state of the
    /// process is unknown to all other nodes.
    pub fn holder(&self, this_node: &str) -> Holder {
        let is_here = self.node_sum != 0 && self.node_sum == node_sum(this_node);
        let node = if is_here { this_node.to_owned() } else { format!("{:x}-0-0.other", self.node_sum) };
        Holder { pid: self.pid, start: self.start, node }
    }
}

fn node_sum(node: &str) -> u32 {
    xxh3_64(node.as_bytes()) as u32
}

/// Returns the size of a frame in an object.
fn stored_bytes(payload: u64) -> u64 {
    OBJECT_FRAME_HEAD_BYTES as u64 + FrameKind::Data.stored_bytes(payload, BLOCK)
}

/// Returns the payload of a frame that takes `stored` bytes and is not full.
fn last_payload(stored: u64) -> Option<u64> {
    let blocks = stored.checked_sub(OBJECT_FRAME_HEAD_BYTES as u64)?;
    let payload = blocks.checked_sub(blocks.div_ceil(BLOCK + SUM_BYTES) * SUM_BYTES)?;
    let is_frame = (1..OBJECT_FRAME_BYTES).contains(&payload) && stored_bytes(payload) == stored;
    is_frame.then_some(payload)
}

/// Encodes the header and the run of the frame of an object at payload offset `start`, which is
/// also its file offset. The numbers of the run have a fixed size.
pub fn encode_object_frame_head(payload: u64, epoch: u64, sequence: u64, start: PayloadOffset) -> Vec<u8> {
    let mut runs = Vec::with_capacity(LENGTH_BYTES + START_BYTES);
    put_fixed_varint(&mut runs, payload * 2, LENGTH_BYTES);
    // The zigzag encoding of a number that is not negative is twice the number.
    put_fixed_varint(&mut runs, start.0 * 2, START_BYTES);
    seal_frame_head(FrameKind::Data, &runs, 1, payload, epoch, sequence, start)
}

/// Encodes `value` as a varint of `bytes` bytes, which must be enough for it.
fn put_fixed_varint(out: &mut Vec<u8>, value: u64, bytes: usize) {
    let begin = out.len();
    put_varint(out, value);
    debug_assert!(out.len() - begin <= bytes);
    while out.len() - begin < bytes {
        *out.last_mut().expect("a varint has a byte") |= 0x80;
        out.push(0);
    }
}

/// Decodes the header and the run of the frame at `start`. Returns `None` if it is not the header
/// of a frame of an object at this position with this payload, that is, if the frame was not
/// written completely.
pub fn decode_object_frame_head(bytes: &[u8], start: LogPosition, payload: u64) -> Option<FrameHead> {
    let bytes = bytes.get(..OBJECT_FRAME_HEAD_BYTES)?;
    let head = decode_frame_head(bytes.first_chunk()?).ok()?;
    let is_here = head.bytes() == bytes.len() as u64 && head.payload_start == start.payload;
    if !is_here || head.payload_bytes != payload || head.kind != FrameKind::Data {
        return None;
    }
    let runs = decode_frame_runs(&head, bytes).ok()?;
    (runs == [Run::one(FileOffset(start.payload.0), payload)]).then_some(head)
}

/// Returns true if all frames before `end` are full, and a writer may append to its object the
/// bytes of the file that begin at `end`.
pub fn is_frame_boundary(end: LogPosition) -> bool {
    end.payload.0 < FILE_END_MAX - OBJECT_FRAME_BYTES
        && end
            == ObjectSize { full: end.payload.0 / OBJECT_FRAME_BYTES, rest: ObjectRest::Nothing }.full_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::heads::{Head, HeadKind, OBJECT_VERSION};
    use quell_testkit::Random;

    fn position(payload: u64) -> LogPosition {
        ObjectSize { full: payload / OBJECT_FRAME_BYTES, rest: ObjectRest::Nothing }.full_end()
    }

    #[test]
    fn the_size_of_a_file_follows_from_the_size_of_its_object() {
        let mut random = Random::new(1);
        let borders = (0..=4).flat_map(|i| (0..3).map(move |by| (i * BLOCK + by).saturating_sub(1)));
        let sizes: Vec<u64> = borders.chain((0..2000).map(|_| random.below(9 << 20) as u64)).collect();
        for size in sizes {
            let (full, last) = (size / OBJECT_FRAME_BYTES, size % OBJECT_FRAME_BYTES);
            let stored = if last == 0 { 0 } else { stored_bytes(last) };
            let bytes = position(size).log_offset + stored;
            let found = ObjectSize::of(bytes).unwrap();
            let rest = if last == 0 { ObjectRest::Nothing } else { ObjectRest::Frame(last) };
            assert_eq!(found, ObjectSize { full, rest }, "{size}");
            assert_eq!((found.file_bytes(), found.log_end()), (size, bytes));
            if last == 0 {
                let ended = ObjectSize::of(bytes + OBJECT_END_BYTES).unwrap();
                assert_eq!(ended, ObjectSize { full, rest: ObjectRest::End });
                assert_eq!((ended.file_bytes(), ended.log_end()), (size, bytes));
            }
        }
    }

    #[test]
    fn only_the_header_of_an_object_names_a_process() {
        let holder = Holder::new(77, 1 << 40, "boot-1-2.node1");
        let process = ObjectProcess::of(&holder);
        let (kind, version) = (HeadKind::Data, OBJECT_VERSION);
        let object = Head {
            kind,
            version,
            writer: 5,
            directories: 0,
            process: Some(process),
            block_bytes: BLOCK_BYTES,
            container: 77,
        };
        assert_eq!(Head::decode(kind, &object.encode()), Ok(object));
        for other in [Head { version: 2, ..object }, Head { kind: HeadKind::Index, ..object }] {
            assert!(Head::decode(other.kind, &other.encode()).is_err(), "{other:?}");
        }
        assert_eq!(object.for_file(kind, 5).process, None);
        assert_eq!(process.holder("boot-1-2.node1"), holder);
        let elsewhere = process.holder("boot-1-2.node2");
        assert!(elsewhere.node != holder.node && (elsewhere.pid, elsewhere.start) == (77, 1 << 40));
    }

    #[test]
    fn every_size_is_classified() {
        assert!((0..HEAD).all(|bytes| ObjectSize::of(bytes).is_none()));
        let mut payload = 0;
        for rest in 1..FULL_BYTES {
            match ObjectSize::of(HEAD + rest).unwrap().rest {
                // The payloads of consecutive sizes are consecutive.
                ObjectRest::Frame(found) => {
                    assert_eq!(found, payload + 1, "{rest}");
                    payload = found;
                }
                ObjectRest::End => assert_eq!(rest, OBJECT_END_BYTES),
                ObjectRest::Part => {}
                ObjectRest::Nothing => panic!("{rest}"),
            }
        }
        assert_eq!(payload, OBJECT_FRAME_BYTES - 1);
        let largest = ObjectSize::of(u64::MAX).unwrap();
        assert!(largest.file_bytes() < largest.log_end());
    }

    #[test]
    fn a_frame_has_the_same_size_at_each_offset_and_is_found_only_there() {
        for (full, payload) in [(0, 1), (0, 4096), (1, OBJECT_FRAME_BYTES), (1 << 42, 77)] {
            let start = position(full * OBJECT_FRAME_BYTES);
            let bytes = encode_object_frame_head(payload, 1, 9, start.payload);
            assert_eq!(bytes.len(), OBJECT_FRAME_HEAD_BYTES);
            let head = decode_object_frame_head(&bytes, start, payload).unwrap();
            assert_eq!((head.epoch, head.sequence, head.payload_bytes), (1, 9, payload));
            assert!(decode_object_frame_head(&bytes, start, payload + 1).is_none());
            let next = position((full + 1) * OBJECT_FRAME_BYTES);
            assert!(decode_object_frame_head(&bytes, next, payload).is_none());
            for at in 0..bytes.len() {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1;
                assert!(decode_object_frame_head(&wrong, start, payload).is_none(), "byte {at}");
                assert!(decode_object_frame_head(&bytes[..at], start, payload).is_none());
            }
        }
    }

    #[test]
    fn only_the_end_of_a_full_frame_is_a_boundary() {
        assert!(is_frame_boundary(LogPosition::START) && is_frame_boundary(position(OBJECT_FRAME_BYTES)));
        let short = LogPosition { log_offset: HEAD + stored_bytes(5), payload: PayloadOffset(5) };
        assert!(!is_frame_boundary(short));
        let irregular = LogPosition { payload: PayloadOffset(OBJECT_FRAME_BYTES), ..LogPosition::START };
        assert!(!is_frame_boundary(irregular));
        assert!(!is_frame_boundary(position(FILE_END_MAX)));
    }
}
