//! Merges tables, so that a look-up reads few of them.

use quell_vfs::Result;

use crate::files::TableFiles;
use crate::merge::{Merge, Source};
use crate::table::{TableSummary, TableWriter};
use crate::table_ref::TableRef;

/// The number of tables below which none are merged.
const TABLES_MIN: usize = 4;
/// A table is ended when it has this many bytes.
const TABLE_BYTES: u64 = 64 << 20;

/// Returns the number of the newest tables that are to be merged; 0 if none are. A table is merged
/// with all newer ones when these together have at least half of its size. So each entry is written
/// a number of times that grows with the logarithm of the size of the image.
pub(crate) fn tables_to_merge(tables: &[TableRef]) -> usize {
    let mut newer_bytes = 0;
    let mut count = 0;
    for table in tables {
        if count > 0 && table.bytes > 2 * newer_bytes {
            break;
        }
        newer_bytes += table.bytes;
        count += 1;
    }
    if count < TABLES_MIN { 0 } else { count }
}

/// Writes the entries of `sources`, of which the newest is the first, to tables of `files` that
/// `create` begins. Returns the tables in the order of their keys. Removals are left out if
/// `is_oldest` is set: then there is no older table with the removed entries.
pub(crate) fn merge(
    files: &dyn TableFiles,
    sources: Vec<Box<dyn Source + '_>>,
    is_oldest: bool,
    create: &mut dyn FnMut() -> Result<(u64, TableWriter)>,
) -> Result<Vec<TableRef>> {
    let mut merge = Merge::new(sources)?;
    let mut written = Vec::new();
    let mut current: Option<(u64, TableWriter)> = None;
    let mut end = |number, writer: TableWriter| -> Result<()> {
        let summary: TableSummary = writer.finish_synced(files, number)?;
        written.push(TableRef::new(number, &summary));
        Ok(())
    };
    while let Some((key, value)) = merge.next()? {
        if is_oldest && value.is_empty() {
            continue;
        }
        if let Some((number, writer)) = current.take_if(|(_, writer)| writer.bytes() >= TABLE_BYTES) {
            end(number, writer)?;
        }
        if current.is_none() {
            current = Some(create()?);
        }
        if let Some((_, writer)) = &mut current {
            writer.add(key, value)?;
        }
    }
    if let Some((number, writer)) = current {
        end(number, writer)?;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_merged_when_the_newer_ones_have_half_of_their_size() {
        let count = |sizes: &[u64]| {
            let table = |(number, bytes): (usize, &u64)| TableRef {
                number: number as u64,
                bytes: *bytes,
                entries: 1,
                checksum: 0,
            };
            tables_to_merge(&sizes.iter().enumerate().map(table).collect::<Vec<_>>())
        };
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&[1, 1, 1]), 0);
        assert_eq!(count(&[1, 1, 1, 1]), 4);
        assert_eq!(count(&[1, 1, 1, 1, 9]), 4);
        assert_eq!(count(&[1, 1, 1, 1, 8, 25]), 5);
        assert_eq!(count(&[1, 3, 1, 1, 1]), 0);
    }

    #[test]
    fn each_entry_is_written_a_logarithmic_number_of_times() {
        let (mut tables, mut written) = (Vec::new(), 0);
        for number in 0..4096 {
            tables.insert(0, TableRef { number, bytes: 1, entries: 1, checksum: 0 });
            let count = tables_to_merge(&tables);
            if count > 0 {
                let bytes = tables.drain(..count).map(|table| table.bytes).sum();
                written += bytes;
                tables.insert(0, TableRef { number, bytes, entries: 1, checksum: 0 });
            }
            assert!(tables.len() <= 20, "{} tables", tables.len());
        }
        assert!(written <= 4096 * 12, "{written}");
    }
}
