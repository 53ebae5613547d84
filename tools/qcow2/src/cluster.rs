//! Entries of an L2 table: the location of a cluster's bytes, and the decompression of compressed
//! clusters.

use crate::damage::{Qcow2Error, wrong};
use crate::header::{Compression, Header};

const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
pub(crate) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const SECTOR_BYTES: u64 = 512;

/// The location of a cluster that is allocated in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// The cluster consists of zeros.
    Zeros,
    /// Uncompressed, from this offset in the file.
    Plain {
        /// In bytes.
        offset: u64,
    },
    /// Compressed into at most this many bytes.
    Compressed {
        /// The offset in the file, in bytes.
        offset: u64,
        /// The maximum number of compressed bytes.
        bytes: u64,
    },
}

impl Cluster {
    /// Parses an entry; `None` means that the backing file has the cluster.
    pub(crate) fn parse(entry: u64, header: &Header) -> Result<Option<Cluster>, Qcow2Error> {
        if entry & COMPRESSED != 0 {
            let bits = 62 - (header.cluster_bits - 8);
            let offset = entry & ((1 << bits) - 1);
            let sectors = ((entry & (COMPRESSED - 1)) >> bits) + 1;
            let bytes = sectors * SECTOR_BYTES - offset % SECTOR_BYTES;
            return Ok(Some(Cluster::Compressed { offset, bytes }));
        }
        if header.version >= 3 && entry & ZERO != 0 {
            return Ok(Some(Cluster::Zeros));
        }
        match entry & OFFSET {
            0 => Ok(None),
            offset if offset.is_multiple_of(header.cluster_bytes()) => Ok(Some(Cluster::Plain { offset })),
            offset => wrong(format!("a cluster at byte {offset}, where none begins")),
        }
    }
}

/// Decompresses a cluster from the beginning of `bytes`.
pub fn expand(bytes: &[u8], header: &Header) -> Result<Vec<u8>, Qcow2Error> {
    let mut cluster = vec![0; header.cluster_bytes() as usize];
    let whole = match header.compression {
        Compression::Deflate => {
            // Other bytes may follow the compressed data, because the size in an L2 entry is in
            // whole sectors.
            let mut inflater = miniz_oxide::inflate::core::DecompressorOxide::new();
            let flags = miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
            let (_, _, length) =
                miniz_oxide::inflate::core::decompress(&mut inflater, bytes, &mut cluster, 0, flags);
            length == cluster.len()
        }
        Compression::Zstd => {
            let mut decoder =
                zstd::stream::raw::Decoder::new().map_err(|e| Qcow2Error::Wrong(e.to_string()))?;
            let ran = zstd::stream::raw::Operation::run_on_buffers(&mut decoder, bytes, &mut cluster);
            ran.is_ok_and(|status| status.bytes_written == cluster.len())
        }
    };
    if whole { Ok(cluster) } else { wrong("a compressed cluster that does not make a whole one") }
}
