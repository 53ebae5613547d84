//! Converts recorded blocks of the files of a backing chain to blocks of the disk. Each image of
//! the chain hides clusters of the images below it.

use std::collections::BTreeMap;

use quell_vfs::ReadAt;

use crate::cluster::Cluster;
use crate::damage::{Qcow2Error, unsupported};
use crate::header::Header;
use crate::map::visit;

/// The size of a block.
pub const BLOCK_BYTES: u64 = 4096;

/// Limit on the blocks of one disk: 16 GiB. Tables that map many clusters to the same few bytes
/// would exceed it.
const BLOCKS_MAX: usize = 1 << 22;

/// One file of a backing chain.
pub struct Layer<'a> {
    /// `None` for a raw file, whose bytes are the disk's bytes.
    pub header: Option<&'a Header>,
    /// The open file.
    pub file: &'a dyn ReadAt,
    /// The size of the file.
    pub file_bytes: u64,
    /// The numbers of its recorded blocks, sorted.
    pub hot: &'a [u32],
}

impl std::fmt::Debug for Layer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layer")
            .field("header", &self.header)
            .field("hot", &self.hot.len())
            .finish_non_exhaustive()
    }
}

/// The location of the content of a recorded block of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSource {
    /// A block of a layer's file.
    Block {
        /// The number of the layer, from the top.
        layer: usize,
        /// The number of the block in the file.
        block: u32,
    },
    /// The block at offset `within` of a compressed cluster.
    Compressed {
        /// The number of the layer, from the top.
        layer: usize,
        /// The offset of the cluster in the file, in bytes.
        offset: u64,
        /// The maximum number of compressed bytes.
        bytes: u64,
        /// The offset in the decompressed cluster, in bytes.
        within: u64,
    },
}

/// Returns the recorded blocks of the disk that the first of `layers` shows, in the order of the
/// disk. Each layer is the backing file of the previous one.
pub fn hot_blocks(layers: &[Layer<'_>]) -> Result<BTreeMap<u64, BlockSource>, Qcow2Error> {
    at_most(BLOCKS_MAX, layers)
}

fn at_most(blocks_max: usize, layers: &[Layer<'_>]) -> Result<BTreeMap<u64, BlockSource>, Qcow2Error> {
    let mut found = BTreeMap::new();
    for (number, layer) in layers.iter().enumerate().rev() {
        match layer.header {
            None => {
                // A raw file has no backing file.
                found = layer
                    .hot
                    .iter()
                    .map(|block| (u64::from(*block), BlockSource::Block { layer: number, block: *block }))
                    .collect();
            }
            Some(header) => overlay(&mut found, number, layer, header, blocks_max)?,
        }
    }
    Ok(found)
}

fn overlay(
    found: &mut BTreeMap<u64, BlockSource>,
    number: usize,
    layer: &Layer<'_>,
    header: &Header,
    blocks_max: usize,
) -> Result<(), Qcow2Error> {
    let cluster_bytes = header.cluster_bytes();
    if cluster_bytes < BLOCK_BYTES {
        return unsupported(format!("its clusters have {cluster_bytes} bytes, less than {BLOCK_BYTES}"));
    }
    let blocks = cluster_bytes / BLOCK_BYTES;
    // A smaller disk hides the rest of its backing file.
    found.split_off(&header.virtual_bytes.div_ceil(BLOCK_BYTES));
    let hot_in = |first: u64, end: u64| {
        let from = layer.hot.partition_point(|block| u64::from(*block) < first);
        layer.hot[from..].iter().take_while(move |block| u64::from(**block) < end)
    };
    visit(header, layer.file, &mut |cluster, place| {
        let first = cluster * blocks;
        let below: Vec<u64> = found.range(first..first + blocks).map(|(block, _)| *block).collect();
        for block in below {
            found.remove(&block);
        }
        match place {
            Cluster::Zeros => {}
            Cluster::Plain { offset } => {
                let begin = offset / BLOCK_BYTES;
                for block in hot_in(begin, begin + blocks) {
                    let disk_block = first + (u64::from(*block) - begin);
                    found.insert(disk_block, BlockSource::Block { layer: number, block: *block });
                }
            }
            Cluster::Compressed { offset, bytes } => {
                // The size is rounded up to whole sectors, so the last cluster may seem to end
                // beyond the file.
                let end = offset.saturating_add(bytes).min(layer.file_bytes);
                let (begin, end) = (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
                if begin >= end || hot_in(begin, end).count() as u64 != end - begin {
                    return Ok(());
                }
                for at in 0..blocks {
                    let source =
                        BlockSource::Compressed { layer: number, offset, bytes, within: at * BLOCK_BYTES };
                    found.insert(first + at, source);
                }
            }
        }
        match found.len() <= blocks_max {
            true => Ok(()),
            false => unsupported(format!("more than {blocks_max} blocks of the disk are recorded")),
        }
    })?;
    found.split_off(&header.virtual_bytes.div_ceil(BLOCK_BYTES));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{Block, write};

    struct Bytes(Vec<u8>);

    impl ReadAt for Bytes {
        fn read_at(&self, into: &mut [u8], offset: u64) -> quell_vfs::Result<usize> {
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            let length = rest.len().min(into.len());
            into[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }
    }

    fn image(disk_bytes: u64, blocks: &[(u64, Option<&[u8]>)]) -> (Header, Bytes) {
        let blocks: Vec<Block<'_>> =
            blocks.iter().map(|(number, content)| Block { number: *number, content: *content }).collect();
        let bytes = write(disk_bytes, b"base.raw", "raw", &blocks).unwrap();
        (Header::parse(&bytes).unwrap(), Bytes(bytes))
    }

    #[test]
    fn blocks_of_a_raw_disk_map_to_themselves() {
        let file = Bytes(vec![1; 8 * 4096]);
        let raw = Layer { header: None, file: &file, file_bytes: 8 * 4096, hot: &[2, 5] };
        let hot = hot_blocks(&[raw]).unwrap();
        assert_eq!(
            hot.into_iter().collect::<Vec<_>>(),
            [(2, BlockSource::Block { layer: 0, block: 2 }), (5, BlockSource::Block { layer: 0, block: 5 })]
        );
    }

    #[test]
    fn an_upper_image_hides_lower_ones() {
        let below = Bytes(vec![1; 16 * 4096]);
        // Block 1 has data, block 2 is zeros, block 3 has data that was not recorded.
        let (header, file) = image(4 * 4096, &[(1, Some(&[9; 4096])), (2, None), (3, Some(&[8; 4096]))]);
        let mut places = Vec::new();
        visit(&header, &file, &mut |cluster, place| {
            places.push((cluster, place));
            Ok(())
        })
        .unwrap();
        let [(1, Cluster::Plain { offset }), (2, Cluster::Zeros), (3, Cluster::Plain { .. })] = places[..]
        else {
            panic!("{places:?}")
        };
        let own = (offset / 4096) as u32;
        let upper =
            Layer { header: Some(&header), file: &file, file_bytes: file.0.len() as u64, hot: &[own] };
        let raw = Layer { header: None, file: &below, file_bytes: 16 * 4096, hot: &[0, 1, 2, 3, 9] };
        let hot = hot_blocks(&[upper, raw]).unwrap();
        assert_eq!(
            hot.into_iter().collect::<Vec<_>>(),
            [
                (0, BlockSource::Block { layer: 1, block: 0 }),
                (1, BlockSource::Block { layer: 0, block: own })
            ]
        );
    }

    #[test]
    fn a_disk_whose_entries_share_one_cluster_is_refused() {
        // Sixteen clusters of 64 KiB, all of which refer to the compressed cluster at byte 12,288.
        let header = Header {
            version: 3,
            virtual_bytes: 1 << 20,
            cluster_bits: 16,
            backing: None,
            data_file: None,
            encrypted: false,
            compression: crate::header::Compression::Deflate,
            extended_l2: false,
            corrupt: false,
            l1_entries: 1,
            l1_offset: 0,
        };
        let mut bytes = vec![0; 3 << 16];
        bytes[..8].copy_from_slice(&(2u64 << 16).to_be_bytes());
        for entry in 0..16 {
            let at = (2 << 16) + entry * 8;
            bytes[at..at + 8].copy_from_slice(&(1u64 << 62 | 12288).to_be_bytes());
        }
        let file = Bytes(bytes);
        let layer = || Layer { header: Some(&header), file: &file, file_bytes: 3 << 16, hot: &[3] };
        assert_eq!(at_most(256, &[layer()]).unwrap().len(), 256);
        let refused = at_most(255, &[layer()]).unwrap_err();
        assert!(refused.to_string().contains("more than 255 blocks"), "{refused}");
    }

    #[test]
    fn tables_with_invalid_references_are_refused() {
        let (header, file) = image(64 << 20, &[(1, Some(&[9; 4096])), (5000, Some(&[9; 4096]))]);
        let visited = |bytes: Vec<u8>| visit(&header, &Bytes(bytes), &mut |_, _| Ok(()));
        assert!(visited(file.0.clone()).is_ok());
        let l1 = header.l1_offset as usize;
        let change = |at: usize, value: u64| {
            let mut bytes = file.0.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
            visited(bytes)
        };
        let entry = u64::from_be_bytes(file.0[l1..l1 + 8].try_into().unwrap());
        assert!(change(l1, 1 << 50).is_err(), "behind the end");
        assert!(change(l1, 512).is_err(), "where no cluster begins");
        assert!(change(l1 + 8, entry).is_err(), "the same table twice");
        let second = (entry & OFFSET_MASK) as usize;
        assert!(change(second, 512).is_err(), "where no cluster begins");
        assert!(visited(file.0[..l1 + 4].to_vec()).is_err());
        assert!(visit(&Header { l1_entries: 1, ..header.clone() }, &file, &mut |_, _| Ok(())).is_err());
    }

    const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
}
