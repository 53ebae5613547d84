//! The numbers of the boot image's format, drawn in docs/formats/boot.md. Constants alone.

pub const MAGIC: [u8; 8] = *b"QUELLBOO";
pub const VERSION: u32 = 1;

pub const HEADER_BYTES: usize = 128;
pub const FILE_ROW_BYTES: usize = 40;
pub const RUN_ROW_BYTES: usize = 16;
pub const FRAME_ROW_BYTES: usize = 24;
/// The header checksum stands here and covers the header but for itself.
pub const HEADER_CHECKSUM_AT: usize = 24;
pub const HEADER_CHECKED_FROM: usize = 32;
pub const ZERO_FROM: usize = 84;

/// A page: what programs fault and kernels read.
pub const BLOCK_BYTES: usize = 4096;
pub const FRAME_BLOCKS: usize = 256;
pub const FRAME_BYTES_MAX: usize = 2 << 20;
/// Of all runs together, zeros included: 16 GiB, which no start reads and every tool can list.
pub const BLOCKS_MAX: u64 = 1 << 22;
pub const FILE_BYTES_MAX: u64 = 64 << 30;

/// The number of a content.
pub type ContentId = u32;
/// A block of zeros, which has no content.
pub const ZEROS: ContentId = u32::MAX;

const _: () = assert!(HEADER_BYTES.is_multiple_of(8) && FRAME_ROW_BYTES.is_multiple_of(8));
