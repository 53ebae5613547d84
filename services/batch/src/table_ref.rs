//! References to the tables of an image, and the numbers of their files.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::table::TableSummary;

/// The numbers of the tables that the verification of a batch writes begin here, and there are this
/// many for each batch. The primary server numbers its own tables from 1.
const FIRST_OF_BATCHES: u64 = 1 << 40;
const TABLES_OF_BATCH: u64 = 1 << 20;

/// A table of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRef {
    /// The number of its file.
    pub number: u64,
    /// The size of the file, in bytes.
    pub bytes: u64,
    /// The number of entries, including removals.
    pub entries: u64,
    /// The checksum of its footer.
    pub checksum: u64,
}

impl TableRef {
    pub(crate) fn new(number: u64, summary: &TableSummary) -> TableRef {
        let TableSummary { bytes, entries, checksum, .. } = *summary;
        TableRef { number, bytes, entries, checksum }
    }
}

/// Returns the number of the first table that the verification of a batch writes.
pub(crate) fn first_table_of_batch(batch: u64) -> u64 {
    FIRST_OF_BATCHES + batch * TABLES_OF_BATCH
}

/// Returns the number of the first table that the verification of a part writes with the entries of
/// directories that an earlier part has created as well.
pub(crate) fn first_merged_of_batch(part: u64) -> u64 {
    first_table_of_batch(part) + TABLES_OF_BATCH / 4
}

/// Returns the number of the first table with conflicts that the verification of a batch writes.
pub(crate) fn first_conflicts_of_batch(batch: u64) -> u64 {
    first_table_of_batch(batch) + TABLES_OF_BATCH / 2
}

/// Returns the numbers of the tables with entries that the verification of a batch can write.
pub(crate) fn tables_of_batch(batch: u64) -> Range<u64> {
    first_table_of_batch(batch)..first_conflicts_of_batch(batch)
}

/// Returns the numbers of the tables with conflicts that the verification of a batch can write.
pub(crate) fn conflict_tables_of_batch(batch: u64) -> Range<u64> {
    first_conflicts_of_batch(batch)..first_table_of_batch(batch) + TABLES_OF_BATCH
}

/// Returns the batch whose verification has written a table. `None` for a table of the primary
/// server.
pub(crate) fn batch_of_table(number: u64) -> Option<u64> {
    number.checked_sub(FIRST_OF_BATCHES).map(|number| number / TABLES_OF_BATCH)
}
