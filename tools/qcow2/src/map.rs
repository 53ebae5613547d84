//! Reads the L1 and L2 tables, which map the clusters of a disk, from an open file, and visits the
//! clusters in the order of the disk.

use std::collections::HashSet;

use quell_vfs::ReadAt;

use crate::cluster::{Cluster, OFFSET};
use crate::damage::{Qcow2Error, unsupported, wrong};
use crate::header::Header;

/// Size limit of all tables of one image together: the tables of 8 TiB in clusters of the usual 64
/// KiB.
pub const TABLE_BYTES_MAX: u64 = 1 << 30;

/// Calls `visit` with each cluster that is allocated in the image, and its number on the disk.
pub fn visit(
    header: &Header,
    file: &dyn ReadAt,
    visit: &mut dyn FnMut(u64, Cluster) -> Result<(), Qcow2Error>,
) -> Result<(), Qcow2Error> {
    if header.encrypted {
        return unsupported("it is encrypted");
    }
    if header.data_file.is_some() {
        return unsupported("its data is in an external file");
    }
    if header.extended_l2 {
        return unsupported("its tables have extended entries (extended_l2)");
    }
    if header.corrupt {
        return unsupported("it is marked as corrupt; `qemu-img check` may repair it");
    }
    let cluster_bytes = header.cluster_bytes();
    let clusters = header.virtual_bytes.div_ceil(cluster_bytes);
    let in_table = cluster_bytes / 8;
    let tables = clusters.div_ceil(in_table);
    if tables > header.l1_entries.into() {
        return wrong(format!("an L1 table of {} entries where {tables} are required", header.l1_entries));
    }
    let mut first = vec![0; tables as usize * 8];
    read_whole(file, &mut first, header.l1_offset, "the L1 table")?;
    let mut second = vec![0; cluster_bytes as usize];
    let mut seen = HashSet::new();
    for (number, entry) in (0u64..).zip(entries(&first)) {
        let offset = entry & OFFSET;
        if offset == 0 {
            continue;
        }
        if !offset.is_multiple_of(cluster_bytes) {
            return wrong(format!("an L2 table at byte {offset}, where no cluster begins"));
        }
        if !seen.insert(offset) {
            return wrong(format!("the L2 table at byte {offset} is used twice"));
        }
        if seen.len() as u64 * cluster_bytes > TABLE_BYTES_MAX {
            return unsupported(format!("more than {} MiB of tables", TABLE_BYTES_MAX >> 20));
        }
        read_whole(file, &mut second, offset, "an L2 table")?;
        for (at, entry) in (0u64..).zip(entries(&second)) {
            let disk_cluster = number * in_table + at;
            if disk_cluster >= clusters {
                break;
            }
            if let Some(cluster) = Cluster::parse(entry, header)? {
                visit(disk_cluster, cluster)?;
            }
        }
    }
    Ok(())
}

fn entries(table: &[u8]) -> impl Iterator<Item = u64> {
    table.chunks_exact(8).map(|entry| u64::from_be_bytes(entry.try_into().expect("eight bytes")))
}

fn read_whole(file: &dyn ReadAt, into: &mut [u8], offset: u64, what: &str) -> Result<(), Qcow2Error> {
    match file.read_at(into, offset)? {
        length if length == into.len() => Ok(()),
        _ => wrong(format!("the file ends in {what}")),
    }
}
