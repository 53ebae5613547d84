//! Merges tables, so that a look-up reads few of them.

use std::sync::Arc;

use quell_vfs::Result;

use crate::files::TableFiles;
use crate::merge::{Merge, Source};
use crate::pinned_tables::TablePins;
use crate::table::{TableSummary, TableWriter};
use crate::table_ref::TableRef;
use crate::table_set::TableSet;

/// The number of runs below which none are merged.
const RUNS_MIN: usize = 4;
/// The number of runs from which an operation waits until they are merged.
const RUNS_MAX: usize = 32;
/// A table is ended when it has this many bytes.
const TABLE_BYTES: u64 = 64 << 20;

/// The size of a table, and its first and last keys.
pub(crate) struct TableRange<'a> {
    pub(crate) bytes: u64,
    pub(crate) first: &'a [u8],
    pub(crate) last: &'a [u8],
}

/// Adjacent tables of a list of which no two can have the same key, for example the tables that one
/// merge or one batch has written. A look-up reads at most one of them. Of two adjacent tables, at
/// least one has half of the size at which a table is ended: otherwise thousands of small tables
/// could be in one run, and would never be merged.
struct Run<'a> {
    tables: usize,
    range: TableRange<'a>,
    /// The size of the last table, in bytes.
    last_bytes: u64,
}

/// Returns the runs of tables, of which the newest is the first.
fn runs<'a>(tables: impl Iterator<Item = TableRange<'a>>) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    for table in tables {
        let run = runs.last_mut().filter(|run| {
            let is_separate = table.first > run.range.last || table.last < run.range.first;
            is_separate && table.bytes.max(run.last_bytes) >= TABLE_BYTES / 2
        });
        match run {
            Some(run) => {
                run.tables += 1;
                run.range.bytes += table.bytes;
                run.range.first = run.range.first.min(table.first);
                run.range.last = run.range.last.max(table.last);
                run.last_bytes = table.bytes;
            }
            None => runs.push(Run { tables: 1, last_bytes: table.bytes, range: table }),
        }
    }
    runs
}

/// Returns the number of the newest tables that are to be merged; 0 if none are. A run is merged
/// with all newer ones when these together have at least half of its size. So each entry is written
/// a number of times that grows with the logarithm of the size of the image.
pub(crate) fn tables_to_merge<'a>(tables: impl Iterator<Item = TableRange<'a>>) -> usize {
    let (mut newer_bytes, mut tables_count, mut runs_count) = (0, 0, 0);
    for Run { tables, range, .. } in runs(tables) {
        if runs_count > 0 && range.bytes > 2 * newer_bytes {
            break;
        }
        newer_bytes += range.bytes;
        tables_count += tables;
        runs_count += 1;
    }
    if runs_count < RUNS_MIN { 0 } else { tables_count }
}

/// Returns whether there are so many runs that look-ups have become slow.
pub(crate) fn are_too_many<'a>(tables: impl Iterator<Item = TableRange<'a>>) -> bool {
    runs(tables).len() > RUNS_MAX
}

/// Tables that are merged.
pub(crate) struct Compaction {
    /// The tables, the newest first.
    pub(crate) tables: Vec<TableRef>,
    pub(crate) sources: TableSet,
    /// Whether no older table exists, so that removals can be left out.
    pub(crate) is_oldest: bool,
    /// The directory of the image's tables.
    pub(crate) files: Arc<dyn TableFiles>,
}

/// Tables that a merge has written.
pub(crate) struct MergedTables {
    /// The tables, in the order of their keys.
    pub(crate) tables: Vec<TableRef>,
    /// Prevents the removal of the tables until the image refers to them.
    pub(crate) _pins: Vec<TablePins>,
}

impl Compaction {
    /// Merges the tables. `reserve` reserves the number of a new table.
    ///
    /// # Errors
    /// The errors of files and of `reserve`. Then the new tables are removed.
    pub(crate) fn merge(
        &self,
        reserve: &mut dyn FnMut() -> Result<(u64, TablePins)>,
    ) -> Result<MergedTables> {
        let files = &*self.files;
        let (mut numbers, mut pins) = (Vec::new(), Vec::new());
        let merged = merge(files, self.sources.sources().collect(), self.is_oldest, &mut || {
            let (number, pin) = reserve()?;
            numbers.push(number);
            pins.push(pin);
            Ok((number, TableWriter::new(files.create(number)?)))
        });
        let merged = merged.and_then(|tables| files.sync().map(|()| tables));
        match merged {
            Ok(tables) => Ok(MergedTables { tables, _pins: pins }),
            Err(error) => {
                // A table that remains is removed as garbage.
                numbers.into_iter().for_each(|number| drop(files.remove(number)));
                Err(error)
            }
        }
    }
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

    /// The keys of a table.
    type Keys = std::ops::RangeInclusive<u16>;

    fn count(tables: &[(Keys, u64)]) -> usize {
        let keys: Vec<_> =
            tables.iter().map(|(keys, _)| (keys.start().to_be_bytes(), keys.end().to_be_bytes())).collect();
        let sizes = tables.iter().map(|(_, bytes)| *bytes);
        tables_to_merge(keys.iter().zip(sizes).map(|((first, last), bytes)| TableRange {
            bytes,
            first,
            last,
        }))
    }

    #[test]
    fn tables_are_merged_when_the_newer_ones_have_half_of_their_size() {
        let count = |sizes: &[u64]| count(&sizes.iter().map(|bytes| (0..=9, *bytes)).collect::<Vec<_>>());
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&[1, 1, 1]), 0);
        assert_eq!(count(&[1, 1, 1, 1]), 4);
        assert_eq!(count(&[1, 1, 1, 1, 9]), 4);
        assert_eq!(count(&[1, 1, 1, 1, 8, 25]), 5);
        assert_eq!(count(&[1, 3, 1, 1, 1]), 0);
    }

    #[test]
    fn large_tables_without_common_keys_count_as_one() {
        const LARGE: u64 = TABLE_BYTES;
        let ascending = [(0..=1, LARGE), (2..=3, LARGE), (4..=5, LARGE), (6..=7, LARGE), (8..=9, 1)];
        let descending: Vec<_> = ascending.iter().rev().cloned().collect();
        assert_eq!(count(&ascending), 0);
        assert_eq!(count(&descending), 0);
        // Three newer tables of the same keys have less than half of the size of the run.
        let newer = |bytes| [(0..=9, bytes), (0..=9, bytes), (0..=9, bytes)];
        let with_newer = |bytes| [&newer(bytes)[..], &[(0..=4, LARGE), (5..=9, LARGE)]].concat();
        assert_eq!(count(&with_newer(LARGE / 4)), 0);
        assert_eq!(count(&with_newer(LARGE / 2)), 5);
        // Tables with a common key, and small ones, do not belong to one run.
        assert_eq!(count(&[(0..=3, LARGE), (3..=5, LARGE), (5..=7, LARGE), (7..=9, LARGE)]), 4);
        assert_eq!(count(&[(0..=1, 1), (2..=3, 1), (4..=5, 1), (6..=7, 1)]), 4);
    }

    #[test]
    fn each_entry_is_written_a_logarithmic_number_of_times() {
        const NEW: u64 = TABLE_BYTES / 64;
        let (mut tables, mut written): (Vec<(Keys, u64)>, u64) = (Vec::new(), 0);
        for _ in 0..4096 {
            tables.insert(0, (0..=u16::MAX, NEW));
            let merged = count(&tables);
            if merged > 0 {
                let bytes: u64 = tables.drain(..merged).map(|(_, bytes)| bytes).sum();
                written += bytes;
                // As a merge ends its tables: each has keys of its own.
                let parts = bytes.div_ceil(TABLE_BYTES);
                let parts = (0..parts).map(|part| {
                    let bytes = TABLE_BYTES.min(bytes - part * TABLE_BYTES);
                    (part as u16 * 100..=part as u16 * 100 + 99, bytes)
                });
                tables.splice(0..0, parts.collect::<Vec<_>>());
            }
            assert!(tables.len() <= 20 + 4096 / 64, "{} tables", tables.len());
        }
        assert!(written <= 4096 * NEW * 12, "{written}");
    }
}
