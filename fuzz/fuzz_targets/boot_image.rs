//! Decodes bytes as a boot image: it is refused, or every request to it is answered. If the first
//! byte is odd, the start of the header and the checksums are corrected first, so that the later
//! checks are reached; its other bits select the format version.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_boot::{BootImage, reseal};

/// Limit on the memory of the decoded blocks, in bytes: frames may decompress to a thousand times
/// their size. A caller of `decode` has to check such a limit first.
const MEMORY_BYTES_MAX: u64 = 16 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if choice % 2 == 1 && bytes.len() >= 128 {
        bytes[..8].copy_from_slice(b"QUELLBOO");
        bytes[8..12].copy_from_slice(&(1 + u32::from(choice / 2 % 3)).to_le_bytes());
        bytes[84..128].fill(0);
        reseal(&mut bytes);
    }
    let Ok(image) = BootImage::parse(bytes) else { return };
    let recording = image.recording();
    assert!(recording.recordings() >= 1);
    assert!(image.read_contents() <= image.contents() && image.read_part_bytes() <= image.file_bytes());
    assert_eq!(recording.blocks() as u64, image.blocks());
    let contents = (image.decoded_bytes() <= MEMORY_BYTES_MAX).then(|| image.decode(1));
    for number in 0..image.files() {
        let file = image.file(number);
        assert_eq!(image.find(file.name), Some(number));
        let here: u64 = image.runs_of(&file).map(|run| u64::from(run.blocks)).sum();
        assert!(here <= u64::from(file.blocks()));
        let read = here - image.unread_of(&file).count() as u64;
        assert_eq!(image.blocks_of(number), read);
        assert_eq!(image.is_whole(&file), read == u64::from(file.blocks()));
        for run in image.runs_of(&file) {
            for block in [run.first_block, run.first_block + (run.blocks - 1)] {
                let content = image.content(&file, block).expect("it is in a run");
                if let Some(Ok(contents)) = &contents {
                    contents.block(content);
                }
            }
        }
    }
});
