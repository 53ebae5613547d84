//! Creates a qcow2 image of version 3 on top of a backing file, with clusters of one block, in the
//! layout of QEMU.
//!
//! ```text
//! cluster 0          header, the backing file's format and name
//! then               L1 table, refcount table, refcount blocks, L2 tables, contents
//! ```

use crate::damage::{Qcow2Error, unsupported};
use crate::header::L1_ENTRIES_MAX;

const CLUSTER_BITS: u32 = 12;
const CLUSTER_BYTES: u64 = 1 << CLUSTER_BITS;
/// Number of entries in an L2 table.
const IN_TABLE: u64 = CLUSTER_BYTES / 8;
/// Number of 16-bit reference counts in a cluster.
const COUNTS: u64 = CLUSTER_BYTES / 2;
const HEADER_BYTES: usize = 104;
const SECTOR_BYTES: u64 = 512;
/// Flag of a cluster with a reference count of 1, which may be written in place.
const COPIED: u64 = 1 << 63;
const ZERO: u64 = 1;

/// A block of the disk.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    /// The number of the block on the disk.
    pub number: u64,
    /// 4,096 bytes; `None`: zeros.
    pub content: Option<&'a [u8]>,
}

/// Returns the bytes of an image of a disk of this size. `blocks` must be within the disk, and no
/// number may occur twice. Their contents are stored consecutively in the given order.
pub fn write(
    virtual_bytes: u64,
    backing: &[u8],
    format: &str,
    blocks: &[Block<'_>],
) -> Result<Vec<u8>, Qcow2Error> {
    let l1_entries = virtual_bytes.div_ceil(IN_TABLE * CLUSTER_BYTES);
    if l1_entries > L1_ENTRIES_MAX.into() {
        return unsupported(format!(
            "a disk of {virtual_bytes} bytes is too large for clusters of {CLUSTER_BYTES}"
        ));
    }
    let header = header(virtual_bytes, backing, format, l1_entries as u32)?;
    let mut tables: Vec<u64> = blocks.iter().map(|block| block.number / IN_TABLE).collect();
    tables.sort_unstable();
    tables.dedup();
    let contents = blocks.iter().filter(|block| block.content.is_some()).count() as u64;
    let l1_clusters = (l1_entries * 8).div_ceil(CLUSTER_BYTES);
    let others = 1 + l1_clusters + tables.len() as u64 + contents;
    // The reference counts include the clusters that contain the counts, and the clusters of the
    // table that refers to them.
    let (mut count_clusters, mut count_tables) = (1, 1);
    loop {
        let clusters = (others + count_clusters + count_tables).div_ceil(COUNTS);
        let tables = (clusters * 8).div_ceil(CLUSTER_BYTES);
        if clusters <= count_clusters && tables <= count_tables {
            break;
        }
        (count_clusters, count_tables) = (clusters.max(count_clusters), tables.max(count_tables));
    }
    let all = others + count_clusters + count_tables;
    let l1_at = 1;
    let count_table_at = l1_at + l1_clusters;
    let counts_at = count_table_at + count_tables;
    let tables_at = counts_at + count_clusters;
    let contents_at = tables_at + tables.len() as u64;
    let mut image = Vec::with_capacity((all * CLUSTER_BYTES) as usize);
    image.extend_from_slice(&header);
    image.resize((contents_at * CLUSTER_BYTES) as usize, 0);
    let mut put =
        |at: u64, value: &[u8]| image[at as usize..at as usize + value.len()].copy_from_slice(value);
    put(40, &(l1_at * CLUSTER_BYTES).to_be_bytes());
    put(48, &(count_table_at * CLUSTER_BYTES).to_be_bytes());
    put(56, &(count_tables as u32).to_be_bytes());
    for number in 0..count_clusters {
        put(
            count_table_at * CLUSTER_BYTES + number * 8,
            &((counts_at + number) * CLUSTER_BYTES).to_be_bytes(),
        );
    }
    for cluster in 0..all {
        put(counts_at * CLUSTER_BYTES + cluster * 2, &1u16.to_be_bytes());
    }
    for (table, number) in (tables_at..).zip(&tables) {
        put(l1_at * CLUSTER_BYTES + number * 8, &((table * CLUSTER_BYTES) | COPIED).to_be_bytes());
    }
    let mut next = contents_at;
    for block in blocks {
        let table =
            tables.binary_search(&(block.number / IN_TABLE)).expect("made of the same numbers") as u64;
        let entry = match block.content {
            None => ZERO,
            Some(_) => {
                next += 1;
                ((next - 1) * CLUSTER_BYTES) | COPIED
            }
        };
        put((tables_at + table) * CLUSTER_BYTES + block.number % IN_TABLE * 8, &entry.to_be_bytes());
    }
    for content in blocks.iter().filter_map(|block| block.content) {
        assert_eq!(content.len() as u64, CLUSTER_BYTES, "a block is whole");
        image.extend_from_slice(content);
    }
    Ok(image)
}

/// Returns the header without the offsets of the tables.
fn header(virtual_bytes: u64, backing: &[u8], format: &str, l1_entries: u32) -> Result<Vec<u8>, Qcow2Error> {
    let mut header = vec![0; HEADER_BYTES];
    let mut put = |at: usize, value: &[u8]| header[at..at + value.len()].copy_from_slice(value);
    put(0, b"QFI\xfb");
    put(4, &3u32.to_be_bytes());
    put(16, &(backing.len() as u32).to_be_bytes());
    put(20, &CLUSTER_BITS.to_be_bytes());
    // The size of a disk is a multiple of the sector size.
    put(24, &virtual_bytes.next_multiple_of(SECTOR_BYTES).to_be_bytes());
    put(36, &l1_entries.to_be_bytes());
    put(96, &4u32.to_be_bytes()); // reference counts of 2^4 bits
    put(100, &(HEADER_BYTES as u32).to_be_bytes());
    header.extend_from_slice(&0xe279_2aca_u32.to_be_bytes());
    header.extend_from_slice(&(format.len() as u32).to_be_bytes());
    header.extend_from_slice(format.as_bytes());
    header.resize(header.len().next_multiple_of(8), 0);
    header.extend_from_slice(&[0; 8]);
    let name_at = header.len() as u64;
    header[8..16].copy_from_slice(&name_at.to_be_bytes());
    header.extend_from_slice(backing);
    if backing.is_empty() || backing.len() > 1023 || header.len() as u64 > CLUSTER_BYTES {
        return unsupported(format!("a backing file's name of {} bytes", backing.len()));
    }
    Ok(header)
}
