//! Entry points for the fuzz targets, one for each format of the log layer. The input is arbitrary:
//! a decoder must refuse it, or every function on the decoded value must succeed, and the value
//! must be the same after it was encoded and decoded again. Compiled for tests and with the feature
//! `fuzzing`, which only fuzz/ enables.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::format::{
    BATCH_HEAD_BYTES, BLOCK_BYTES, Builder, CONTAINER_VERSION, Extent, FILE_END_MAX, FRAME_HEAD_BYTES,
    FileOffset, FlatLog, FrameHead, FrameKind, Frames, HEAD_BYTES, Head, HeadKind, LogPosition,
    MAP_SUM_BYTES, Member, MetaName, OBJECT_VERSION, ObjectProcess, Order, PayloadOffset, Run, Runs,
    StoreMap, Stored, Summary, container_name, decode_batch, decode_frame_head, decode_frame_runs,
    decode_object_frame_head, encode_batch, encode_frame_head, encode_object_frame_head, other_name,
    reseal_flat, shown, u32_at, u64_at,
};
use crate::session::Share;

const KINDS: [HeadKind; 5] =
    [HeadKind::Container, HeadKind::Data, HeadKind::Index, HeadKind::Flat, HeadKind::Store];
const FRAME_SUM_AT: usize = 48;
const BATCH_SUM_AT: usize = 56;

/// Corrects the checksum at `sum_at`, which covers the bytes before it and the bytes from `from` to
/// `to`.
fn reseal(bytes: &mut [u8], sum_at: usize, from: usize, to: usize) {
    let mut sum = Xxh3::new();
    sum.update(&bytes[..sum_at]);
    sum.update(&bytes[from..to]);
    let sum = sum.digest();
    bytes[sum_at..sum_at + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Decodes the header of a file.
pub fn check_header(bytes: &[u8], is_sealed: bool) {
    let mut bytes = bytes.to_vec();
    if is_sealed && bytes.len() >= HEAD_BYTES {
        reseal(&mut bytes, HEAD_BYTES - 8, 0, 0);
    }
    for kind in KINDS {
        if let Ok(head) = Head::decode(kind, &bytes) {
            assert_eq!(head.encode(), bytes[..HEAD_BYTES]);
        }
    }
}

/// Checks the functions of a decoded run.
fn check_run(run: &Run) {
    assert!(run.length > 0 && run.count > 0);
    for i in [0, run.count / 2, run.count - 1] {
        assert!((run.start_of(i) + run.length).0 <= FILE_END_MAX);
        assert!(run.overlaps(run.start_of(i), run.start_of(i) + 1));
    }
    assert!(run.end().0 <= FILE_END_MAX && run.end_of_last() <= run.end());
    assert!(!run.overlaps(run.end(), FileOffset::MAX));
}

/// Decodes the header of a frame and its runs.
pub fn check_frame(bytes: &[u8], is_sealed: bool) {
    let Some(fixed) = bytes.first_chunk() else { return };
    let Ok(head) = decode_frame_head(fixed) else { return };
    if head.bytes() > bytes.len() as u64 {
        return;
    }
    let mut bytes = bytes[..head.bytes() as usize].to_vec();
    if is_sealed {
        let end = bytes.len();
        reseal(&mut bytes, FRAME_SUM_AT, FRAME_HEAD_BYTES as usize, end);
    }
    check_object_frame(&head, &bytes);
    let Ok(runs) = decode_frame_runs(&head, &bytes) else { return };
    runs.iter().for_each(check_run);
    assert_eq!(runs.iter().map(Run::bytes).sum::<u64>(), head.payload_bytes);
    let FrameHead { kind, payload_bytes, epoch, sequence, payload_start, .. } = head;
    let again = encode_frame_head(kind, &runs, payload_bytes, epoch, sequence, payload_start);
    let fixed = again.first_chunk().expect("an encoded header has this size");
    let second = decode_frame_head(fixed).expect("an encoded value can be decoded");
    assert_eq!(decode_frame_runs(&second, &again).expect("an encoded value can be decoded"), runs);
}

/// Decodes the header of a frame as the header of a frame of an object.
fn check_object_frame(head: &FrameHead, bytes: &[u8]) {
    let (payload, start) = (head.payload_bytes, head.payload_start);
    let at = LogPosition { payload: start, ..LogPosition::START };
    if let Some(found) = decode_object_frame_head(bytes, at, payload) {
        let again = encode_object_frame_head(payload, found.epoch, found.sequence, start);
        let again = decode_object_frame_head(&again, at, payload).expect("an encoded value can be decoded");
        assert_eq!((again.epoch, again.sequence), (found.epoch, found.sequence));
    }
}

/// Decodes a batch of an index log at the offsets that its own header gives.
pub fn check_batch(bytes: &[u8], is_sealed: bool) {
    if bytes.len() < BATCH_HEAD_BYTES {
        return;
    }
    let mut bytes = bytes.to_vec();
    let end = BATCH_HEAD_BYTES.saturating_add(u32_at(&bytes, 4) as usize);
    if is_sealed && end <= bytes.len() {
        reseal(&mut bytes, BATCH_SUM_AT, BATCH_HEAD_BYTES, end);
    }
    let start = LogPosition { log_offset: u64_at(&bytes, 40), payload: PayloadOffset(u64_at(&bytes, 24)) };
    let block_bytes = BLOCK_BYTES.into();
    let Ok(batch) = decode_batch(&bytes, block_bytes, start) else { return };
    batch.runs.iter().for_each(check_run);
    let frames = &batch.frames;
    for group in frames.groups() {
        for at in [group.payload_start, group.payload_start + (group.payload_bytes - 1)] {
            let frame = frames.frame(at);
            assert!(frame.payload_start <= at && at < frame.payload_end());
            assert!(frame.payload_end() <= frames.payload_end());
        }
    }
    frames.last();
    let again = encode_batch(frames, &batch.runs, start, batch.is_synced);
    let read = decode_batch(&again, block_bytes, start).expect("an encoded value can be decoded");
    assert_eq!((read.frames, read.runs, read.is_synced), (batch.frames, batch.runs, batch.is_synced));
}

const RECORD: Head = Head {
    kind: HeadKind::Container,
    version: CONTAINER_VERSION,
    block_bytes: BLOCK_BYTES,
    container: 0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF,
    writer: 0,
    directories: 32,
    process: None,
};

/// Encodes a flat index.
fn encode_flat(extents: &[Extent], logs: &[FlatLog], cuts: &[u64], size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let put = |pieces: &[&[u8]], _| {
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        Ok(())
    };
    let mut builder = Builder::new(put, &RECORD).expect("a write to memory succeeds");
    extents.iter().for_each(|extent| builder.push(*extent).expect("a write to memory succeeds"));
    builder.finish(logs, cuts, size).expect("a write to memory succeeds");
    bytes
}

fn extents_of(share: &Share) -> Vec<Extent> {
    share.extents().flat_map(|page| page.expect("decode has read all pages").to_vec()).collect()
}

/// Decodes a share of an index, which has the format of a flat index.
pub fn check_share(bytes: &[u8], is_sealed: bool) {
    let mut bytes = bytes.to_vec();
    if is_sealed {
        reseal_flat(&mut bytes, &RECORD);
    }
    let Ok(share) = Share::decode(bytes, &RECORD) else { return };
    let (extents, logs) = (extents_of(&share), share.logs());
    assert!(extents.windows(2).all(|pair| pair[0].end() <= pair[1].start));
    for extent in &extents {
        assert!(extent.length > 0 && extent.end().0 <= FILE_END_MAX);
        let last = extent.payload + (u64::from(extent.length) - 1);
        for at in [extent.payload, last] {
            let frame = logs[extent.log as usize].frames.frame(at);
            assert!(frame.payload_start <= at && at < frame.payload_end());
        }
    }
    let again = Share::decode(encode_flat(&extents, logs, share.truncations(), 0), &RECORD)
        .expect("an encoded value can be decoded");
    assert_eq!((extents_of(&again), again.logs()), (extents, logs));
    assert!(share.truncations().iter().all(|cut| again.truncations().contains(cut)));
}

/// Decodes the placement map.
pub fn check_map(bytes: &[u8], is_sealed: bool) {
    let mut bytes = bytes.to_vec();
    if let Some(end) = bytes.len().checked_sub(MAP_SUM_BYTES).filter(|_| is_sealed) {
        let sum = format!("{:016x}\n", xxh3_64(&bytes[..end]));
        bytes[end..].copy_from_slice(sum.as_bytes());
    }
    let Ok(map) = StoreMap::decode(1, &bytes) else { return };
    let used = map.used();
    for name in [&b""[..], b"checkpoint", &bytes] {
        let home = map.home(name);
        assert!(used.contains(&home) && map.member(home).is_some_and(|member| !member.is_draining));
    }
    assert_eq!(StoreMap::decode(1, &map.encode()).expect("an encoded value can be decoded"), map);
}

/// Decodes each line as a name in `meta`, as a name in a store and as the name of a placement map.
pub fn check_names(lines: &[u8]) {
    let names: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    for name in &names {
        if let Some(meta) = MetaName::decode(name) {
            assert_eq!(meta.encode().as_bytes(), *name);
        }
        if let Some(version) = StoreMap::version_of(name) {
            assert_eq!(StoreMap { version, members: Vec::new() }.file_name(), *name);
        }
        match shown(name) {
            Some(Stored::Container(file)) => {
                if let Ok(stored) = container_name(file) {
                    assert_eq!(stored, *name);
                }
            }
            Some(Stored::Other(other)) => {
                if let Ok(stored) = other_name(other) {
                    assert_eq!(stored, *name);
                }
            }
            None => {}
        }
    }
    let summary = Summary::from_names(names.iter().map(|name| name.to_vec()));
    let (size, unknown) = summary.size();
    assert!(summary.truncations.last().is_none_or(|cut| cut.size <= size));
    assert!(unknown.len() <= names.len());
    let _ = (summary.modified(), summary.written(), summary.data_bytes(), summary.epoch());
    for cut in summary.truncations.as_slice() {
        assert!(!summary.superseded(&MetaName::Truncation(*cut)).contains(&MetaName::Truncation(*cut)));
        let order = Order { epoch: 0, ..cut.order };
        assert!(summary.truncations.limit(order, 0) <= summary.truncations.limit(order, u64::MAX));
    }
}

/// Returns initial inputs: the fuzz target, a name, and the bytes.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut runs = Runs::default();
    (0..5).for_each(|i| runs.push(FileOffset(i * 47_008 * 8), 47_008));
    let mut frames = Frames::new(BLOCK_BYTES.into(), HEAD_BYTES as u64);
    (0..5).for_each(|i| frames.push(FrameKind::Data, 61, 47_008, 2, 1 + i));
    let strided = encode_batch(&frames, runs.finish(), LogPosition::START, true);
    let mut few = Runs::default();
    [(100, 10), (0, 50), (7, 1)].into_iter().for_each(|(start, length)| few.push(FileOffset(start), length));
    let frame = encode_frame_head(FrameKind::Data, few.finish(), 61, 3, 9, PayloadOffset(5 * 47_008));
    let mut alone = Frames::new(BLOCK_BYTES.into(), frames.log_end());
    alone.push(FrameKind::Data, frame.len() as u64, 61, 3, 9);
    alone.push(FrameKind::Zeros, 61, 61, 3, 10);
    [(100, 10), (0, 50), (7, 1)].into_iter().for_each(|(start, length)| few.push(FileOffset(start), length));
    let random = encode_batch(&alone, few.finish(), frames.end(), false);
    let both = [7, 9].map(|writer| {
        let frames = frames.clone();
        FlatLog { writer, index_offset: 150, indexed: frames.end(), synced: PayloadOffset(0), frames }
    });
    let extent = |i: u64| {
        let (payload, log) = (PayloadOffset(i / 2 * 47_008), (i % 2) as u32);
        Extent { start: FileOffset(i * 47_008), payload, length: 47_008, log }
    };
    let checkpoint: Vec<Extent> = (0..10).map(extent).collect();
    let shuffled: Vec<Extent> =
        (0..10).map(|i| Extent { start: FileOffset(i * 50_000), ..extent(i * 7 % 10) }).collect();
    let names = "open-0000000000000007-2-0-0-0-0-0-1f4-9c0-0123.node1\n\
        open-0000000000000007-2-3-f4240-f4a00-65f00000-3b9ac9ff-1f4-9c0-0123.node1\n\
        closed-0000000000000007-2-5-f4240-f4a00-65f00000-3b9ac9ff\n\
        cut-4-11-0000000000000009-1000-fffffffffffffffb-0\n\
        covers-0000000000000009-0000000000000007-f4a00-0000000000000008-40\ntime-5-12-000000000000000a-65f00000-0\n\
        ckpt.container\ndir.container~\nmeta\nmap-1f";
    let member = |number, is_draining, path: &[u8]| Member { number, is_draining, path: path.to_vec() };
    let two = vec![member(7 << 100, false, b"/scratch/a"), member(5, true, b"/with a space/100%\n\xff")];
    let map = StoreMap { version: 1, members: two }.encode();
    let with = |choice: u8, bytes: &[u8]| [&[choice], bytes].concat();
    let process = Some(ObjectProcess { node_sum: 7, pid: 77, start: 1 << 40 });
    let data = RECORD.for_file(HeadKind::Data, 7);
    let object = Head { version: OBJECT_VERSION, block_bytes: BLOCK_BYTES, process, ..data };
    vec![
        ("log_head", "container", with(0, &RECORD.encode())),
        ("log_head", "data", with(1, &RECORD.for_file(HeadKind::Data, 7).encode())),
        ("log_head", "object", with(1, &object.encode())),
        ("log_frame", "few", with(0, &frame)),
        ("log_frame", "object", with(1, &encode_object_frame_head(4096, 1, 9, PayloadOffset(0)))),
        (
            "log_frame",
            "strided",
            with(1, &encode_frame_head(FrameKind::Zeros, runs.finish(), 5 * 47_008, 2, 1, PayloadOffset(0))),
        ),
        ("log_batch", "strided", with(0, &strided)),
        ("log_batch", "random", with(1, &random)),
        ("log_share", "checkpoint", with(0, &encode_flat(&checkpoint, &both, &[11], 10 * 47_008))),
        ("log_share", "shuffled", with(1, &encode_flat(&shuffled, &both, &[], 500_000))),
        ("log_map", "two", with(1, &map)),
        ("log_names", "all", names.as_bytes().to_vec()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_testkit::Random;

    /// Passes one input to the function of the fuzz target.
    fn check(target: &str, bytes: &[u8]) {
        let (choice, rest) = bytes.split_first().unwrap_or((&0, &[]));
        match target {
            "log_head" => check_header(rest, choice % 2 == 1),
            "log_frame" => check_frame(rest, choice % 2 == 1),
            "log_batch" => check_batch(rest, choice % 2 == 1),
            "log_share" => check_share(rest, choice % 2 == 1),
            "log_map" => check_map(rest, choice % 2 == 1),
            _ => check_names(bytes),
        }
    }

    #[test]
    fn seeds_and_modified_seeds_are_refused_or_decoded_consistently() {
        let mut random = Random::new(3);
        for (target, _, seed) in seeds() {
            check(target, &seed);
            for _ in 0..20_000 {
                let mut bytes = seed.clone();
                for _ in 0..1 + random.below(4) {
                    let at = random.below(bytes.len());
                    bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, random.number() as u8][random.below(6)];
                }
                bytes[0] = if target == "log_names" { bytes[0] } else { 1 };
                bytes.truncate(bytes.len() - if random.one_in(8) { random.below(bytes.len()) } else { 0 });
                check(target, &bytes);
            }
        }
    }
}
