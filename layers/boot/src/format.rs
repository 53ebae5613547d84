//! The constants of the boot image format, described in docs/formats/boot.md.

/// The first bytes of a boot image.
pub const MAGIC: [u8; 8] = *b"QUELLBOO";
/// The version that is written.
pub const VERSION: u32 = 3;
/// The first version that can have blocks that no recording has read.
pub const VERSION_WITH_UNREAD: u32 = 3;
/// The oldest version that is read. Its rows in FILES are shorter.
pub const VERSION_MIN: u32 = 1;

/// The size of the header.
pub const HEADER_BYTES: usize = 128;
pub const FILE_ROW_BYTES: usize = 64;
const FILE_ROW_BYTES_OF_VERSION_1: usize = 40;
pub const RUN_ROW_BYTES: usize = 16;
pub const FRAME_ROW_BYTES: usize = 24;
/// Offset of the header checksum, which covers the rest of the header.
pub const HEADER_CHECKSUM_AT: usize = 24;
pub const HEADER_CHECKED_FROM: usize = 32;
pub const ZERO_FROM: usize = 84;

/// The size of a page, the unit of page faults and of the kernel's reads.
pub const BLOCK_BYTES: usize = 4096;
pub const FRAME_BLOCKS: usize = 256;
pub const FRAME_BYTES_MAX: usize = 2 << 20;
/// Limit on the blocks of all runs together, including zeros: 16 GiB, more than a start reads, and
/// few enough for every tool to list.
pub const BLOCKS_MAX: u64 = 1 << 22;
/// The maximum size of an image.
pub const FILE_BYTES_MAX: u64 = 64 << 30;

/// Returns the size of a row in FILES.
pub fn file_row_bytes(version: u32) -> usize {
    if version == VERSION_MIN { FILE_ROW_BYTES_OF_VERSION_1 } else { FILE_ROW_BYTES }
}

/// The number of a content.
pub type ContentId = u32;
/// The number of a block of zeros, which has no content.
pub const ZEROS: ContentId = u32::MAX;

const _: () = assert!(HEADER_BYTES.is_multiple_of(8) && FRAME_ROW_BYTES.is_multiple_of(8));
