//! Tests that a packed image gives the same blocks, and that damaged bytes are refused and never
//! cause a panic.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_vfs::{Result, Time};

use crate::format::{BLOCK_BYTES, FRAME_BLOCKS, ZEROS};
use crate::identity::Identity;
use crate::image::{BootImage, BootImageDamage, ImageKind, reseal};
use crate::pack::{Packer, ReadBlock};
use crate::recording::{Recorded, Recording};

const WHEN: Time = Time { seconds: -5, nanoseconds: 7 };
const CHANGED: Time = Time { seconds: 3, nanoseconds: 999_999_999 };

/// Returns the identity of a file with this number; every third file is not identified.
fn identity(number: usize) -> Option<Identity> {
    let inode = if number == 1 { 0 } else { u64::MAX - number as u64 };
    (number % 3 != 2).then_some(Identity { nlink: 1 + number as u32, changed: CHANGED, inode })
}

/// Files in memory.
struct Files(Vec<Option<Vec<u8>>>);

impl ReadBlock for Files {
    fn read(&mut self, recorded: &Recorded, into: &mut [u8; BLOCK_BYTES]) -> Result<bool> {
        let Some(bytes) = &self.0[recorded.file as usize] else { return Ok(false) };
        let begin = recorded.block as usize * BLOCK_BYTES;
        let piece = &bytes[begin..bytes.len().min(begin + BLOCK_BYTES)];
        into[..piece.len()].copy_from_slice(piece);
        into[piece.len()..].fill(0);
        Ok(true)
    }
}

/// Returns incompressible bytes, different for each seed.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

struct Packed {
    files: Vec<Vec<u8>>,
    recording: Recording,
    packer: Packer,
}

fn packed() -> Packed {
    let mut files = vec![
        noise(3 * BLOCK_BYTES + 5, 1),
        noise(10, 2),
        noise(300 * BLOCK_BYTES, 3),
        vec![0; 5 * BLOCK_BYTES],
    ];
    // The same library under another name.
    files.push(files[0].clone());
    let mut packer = Packer::default();
    let mut recording = Recording::new();
    let names = ["lib/b.so", "a.py", "data/large", "zeros", "lib/c.so"];
    for (number, (name, file)) in names.iter().zip(&files).enumerate() {
        packer.add(name.as_bytes(), file.len() as u64, WHEN, identity(number));
    }
    recording.add(2, 270..299);
    recording.add(0, 0..4);
    recording.add(2, 0..260);
    recording.add(1, 0..1);
    recording.add(3, 1..4);
    recording.add(4, 0..4);
    Packed { files, recording, packer }
}

fn pack(from: &Packed, threads: usize) -> Vec<u8> {
    let mut files = Files(from.files.iter().cloned().map(Some).collect());
    from.packer.pack(ImageKind::Tree(77), &from.recording, &mut files, threads).unwrap()
}

#[test]
fn the_image_has_exactly_the_recorded_blocks() {
    let from = packed();
    let image = BootImage::parse(pack(&from, 2)).unwrap();
    assert_eq!((image.kind(), image.files(), image.recordings()), (ImageKind::Tree(77), 5, 1));
    let contents = image.decode(2).unwrap();
    let recorded: std::collections::HashSet<(u32, u32)> =
        from.recording.all().map(|r| (r.file, r.block)).collect();
    for (number, (name, bytes)) in
        ["lib/b.so", "a.py", "data/large", "zeros", "lib/c.so"].iter().zip(&from.files).enumerate()
    {
        let file = image.file(image.find(name.as_bytes()).expect(name));
        assert_eq!((file.size_bytes, file.modified), (bytes.len() as u64, WHEN));
        assert_eq!(file.identity, identity(number), "{name}");
        for (block, piece) in (0u32..).zip(bytes.chunks(BLOCK_BYTES)) {
            let content = image.content(&file, block);
            assert_eq!(content.is_some(), recorded.contains(&(number as u32, block)), "{name} {block}");
            if let Some(content) = content {
                assert_eq!(&contents.block(content)[..piece.len()], piece, "{name} {block}");
            }
        }
        assert_eq!(image.content(&file, file.blocks()), None);
    }
    let is_whole = |name: &[u8]| image.is_whole(&image.file(image.find(name).unwrap()));
    assert!(is_whole(b"a.py") && is_whole(b"lib/b.so") && !is_whole(b"data/large") && !is_whole(b"zeros"));
    assert_eq!(image.find(b"lib"), None);
}

#[test]
fn equal_blocks_are_stored_once_and_zeros_not_at_all() {
    let from = packed();
    let image = BootImage::parse(pack(&from, 1)).unwrap();
    assert_eq!(image.contents(), 289 + 4 + 1);
    let zeros = image.file(image.find(b"zeros").unwrap());
    assert_eq!(image.content(&zeros, 2), Some(ZEROS));
    let (b, c) = (image.file(image.find(b"lib/b.so").unwrap()), image.file(image.find(b"lib/c.so").unwrap()));
    assert_eq!(image.content(&b, 3), image.content(&c, 3));
}

/// Returns an image with the recorded blocks and, as unread blocks, all others.
fn with_unread(mut from: Packed) -> (Packed, BootImage) {
    let blocks = |file: &Vec<u8>| file.len().div_ceil(BLOCK_BYTES) as u32;
    let files: Vec<_> = (0..).zip(from.files.iter().map(blocks)).collect();
    from.recording.complete_unread(files.into_iter(), usize::MAX);
    let image = BootImage::parse(pack(&from, 2)).unwrap();
    (from, image)
}

#[test]
fn unread_blocks_are_behind_the_part_that_is_read_at_the_start() {
    let recorded = BootImage::parse(pack(&packed(), 1)).unwrap();
    let (from, image) = with_unread(packed());
    assert_eq!((recorded.unread_blocks(), image.unread_blocks()), (0, 11 + 2));
    assert_eq!((image.blocks(), image.read_contents()), (recorded.blocks(), recorded.contents()));
    assert_eq!(
        (image.memory_bytes(), image.serving_bytes()),
        (recorded.memory_bytes(), recorded.serving_bytes())
    );
    assert_eq!((image.contents(), image.decoded_bytes()), (294 + 11, 305 * BLOCK_BYTES as u64));
    assert_eq!(recorded.read_part_bytes(), recorded.file_bytes());
    assert!(image.read_part_bytes() <= image.file_bytes());
    // The recording and the whole files are the same as without the unread blocks.
    let recording = |image: &BootImage| image.recording().all().collect::<Vec<_>>();
    assert_eq!(recording(&image), recording(&recorded));
    for (number, bytes) in from.files.iter().enumerate() {
        let name = ["lib/b.so", "a.py", "data/large", "zeros", "lib/c.so"][number].as_bytes();
        let (file, without) =
            (image.file(image.find(name).unwrap()), recorded.file(recorded.find(name).unwrap()));
        assert_eq!(image.is_whole(&file), recorded.is_whole(&without));
        let unread: Vec<u32> = image.unread_of(&file).collect();
        let blocks = 0..bytes.len().div_ceil(BLOCK_BYTES) as u32;
        assert_eq!(
            unread,
            blocks.filter(|block| recorded.content(&without, *block).is_none()).collect::<Vec<_>>()
        );
    }
    let contents = image.decode(2).unwrap();
    let large = image.file(image.find(b"data/large").unwrap());
    let content = image.content(&large, 299).unwrap();
    assert!(content >= image.read_contents());
    assert_eq!(contents.block(content), &from.files[2][299 * BLOCK_BYTES..]);
}

#[test]
fn only_the_frames_of_blocks_that_were_read_are_read_at_the_start() {
    let mut from = packed();
    from.recording = Recording::new();
    from.recording.add(2, 7..8);
    let bytes = {
        let (from, _) = with_unread(from);
        pack(&from, 1)
    };
    let whole = BootImage::parse(bytes.clone()).unwrap();
    let end = whole.read_part_bytes();
    assert!(end < whole.file_bytes(), "the second frame has only unread blocks");
    let tables_end = whole.tables_bytes() as usize;
    let image = BootImage::parse_tables(bytes[..tables_end].to_vec(), bytes.len() as u64).unwrap();
    assert!(whole.has_frames() && !image.has_frames());
    let read_to = AtomicU64::new(0);
    let decode = |number: usize, _: &mut Vec<u8>, into: &mut [u8]| {
        let (offset, length) = image.frame_range(number);
        read_to.fetch_max(offset + length as u64, Ordering::Relaxed);
        image.decode_bytes(number, &bytes[offset as usize..][..length], into)
    };
    let contents = image.decode_to(image.read_contents(), 2, &decode, &|_| true, &|_, _| Ok(())).unwrap();
    assert_eq!(read_to.into_inner(), end);
    let expected = whole.decode(1).unwrap();
    for content in 0..image.read_contents() {
        assert!(contents.block(content) == expected.block(content));
    }
}

#[test]
fn unread_blocks_need_version_3_and_a_tree() {
    let (_, image) = with_unread(packed());
    for (at, value, section) in [(8, 2, "RUNS"), (12, 1, "header")] {
        let mut bytes = image.as_bytes().to_vec();
        bytes[at] = value;
        reseal(&mut bytes);
        assert_eq!(BootImage::parse(bytes).unwrap_err().section, section);
    }
    let mut packer = Packer::default();
    packer.add(b"0/srv/disk", 2 * BLOCK_BYTES as u64, WHEN, None);
    let mut recording = Recording::new();
    recording.add(0, 0..1);
    recording.add_unread([(0, 1)]);
    let mut files = Files(vec![Some(noise(2 * BLOCK_BYTES, 1))]);
    let bytes = packer.pack(ImageKind::Disk, &recording, &mut files, 1).unwrap();
    assert_eq!(BootImage::parse(bytes).unwrap_err().section, "RUNS");
}

#[test]
fn the_bytes_do_not_depend_on_threads() {
    let from = packed();
    assert_eq!(pack(&from, 1), pack(&from, 7));
}

#[test]
fn contents_are_in_the_order_of_first_use() {
    let from = packed();
    let image = BootImage::parse(pack(&from, 1)).unwrap();
    let large = image.file(image.find(b"data/large").unwrap());
    assert_eq!((image.content(&large, 270), image.content(&large, 0)), (Some(0), Some(29 + 4)));
}

#[test]
fn a_file_that_changed_during_the_recording_is_left_out() {
    let from = packed();
    let mut files: Vec<_> = from.files.iter().cloned().map(Some).collect();
    files[2] = None;
    let bytes = from.packer.pack(ImageKind::Tree(77), &from.recording, &mut Files(files), 1).unwrap();
    let image = BootImage::parse(bytes).unwrap();
    assert_eq!((image.find(b"data/large"), image.files()), (None, 4));
}

#[test]
fn an_empty_recording_is_a_valid_image() {
    let bytes =
        Packer::default().pack(ImageKind::Disk, &Recording::new(), &mut Files(Vec::new()), 1).unwrap();
    let image = BootImage::parse(bytes).unwrap();
    assert_eq!((image.files(), image.contents(), image.decode(4).unwrap().block(ZEROS)[0]), (0, 0, 0));
}

#[test]
fn each_file_of_a_disk_has_a_position_of_its_own() {
    let parsed = |names: &[&str]| {
        let mut packer = Packer::default();
        let mut recording = Recording::new();
        for (number, name) in (0..).zip(names) {
            packer.add(name.as_bytes(), 10, WHEN, None);
            recording.add(number, 0..1);
        }
        let mut files = Files(names.iter().map(|_| Some(noise(10, 1))).collect());
        BootImage::parse(packer.pack(ImageKind::Disk, &recording, &mut files, 1).unwrap())
    };
    let image = parsed(&["0/srv/top", "10/srv/k", "2/srv/base"]).unwrap();
    assert_eq!((image.files(), image.contents()), (3, 1));
    for names in [&["disk"][..], &["/srv/top"], &["0/srv/a", "0/srv/b"], &["00/srv/a"], &["64/srv/a"]] {
        assert!(parsed(names).is_err(), "{names:?}");
    }
}

#[test]
fn a_file_of_a_disk_is_not_identified() {
    let mut packer = Packer::default();
    let mut recording = Recording::new();
    packer.add(b"0/srv/top", 10, WHEN, identity(0));
    recording.add(0, 0..1);
    let bytes = packer.pack(ImageKind::Disk, &recording, &mut Files(vec![Some(noise(10, 1))]), 1).unwrap();
    assert_eq!(BootImage::parse(bytes).unwrap_err().section, "FILES");
}

fn refused(bytes: Vec<u8>) -> Option<BootImageDamage> {
    match BootImage::parse(bytes) {
        Err(damage) => Some(damage),
        Ok(image) => image.decode(1).err(),
    }
}

#[test]
fn an_image_truncated_anywhere_is_refused() {
    let whole = pack(&packed(), 1);
    for end in (0..600).chain((600..whole.len()).step_by(4099)) {
        assert!(refused(whole[..end].to_vec()).is_some(), "{end} bytes");
    }
    let mut longer = whole;
    longer.push(0);
    assert!(refused(longer).is_some());
}

#[test]
fn any_flipped_bit_is_refused() {
    let whole = pack(&packed(), 1);
    for at in (0..600).chain((600..whole.len()).step_by(997)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(refused(bytes).is_some(), "byte {at}");
    }
}

#[test]
fn a_forged_table_is_refused_or_harmless() {
    let whole = pack(&packed(), 1);
    let tables = 128 + 5 * 64 + 40 + 16 * 8 + 24 * 2;
    for at in 8..tables {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if (24..40).contains(&at) {
                continue;
            }
            reseal(&mut bytes);
            let Ok(image) = BootImage::parse(bytes) else { continue };
            // All methods can be called on an accepted image.
            assert!(image.memory_bytes() <= 2 * FRAME_BLOCKS as u64 * BLOCK_BYTES as u64, "byte {at}");
            // Decoding is slow without optimisation, so it is done for one value in five.
            let contents = (value == 0x80).then(|| image.decode(1));
            for number in 0..image.files() {
                let file = image.file(number);
                for block in (0..file.blocks().min(400)).chain([u32::MAX]) {
                    if let (Some(content), Some(Ok(contents))) = (image.content(&file, block), &contents) {
                        contents.block(content);
                    }
                }
            }
        }
    }
}
