//! Opens a file of the operation log.

use std::fs::File;
use std::sync::Arc;

use quell_vfs::Result;

use super::execution::Execution;
use super::format::HEADER;
use crate::batch::BatchRecord;
use crate::table::{BlockCache, Table};
use crate::table_set::TableSet;

/// Opens a file of the operation log of a batch, as a table. The entries are the result of its
/// operations on the snapshot.
///
/// # Errors
/// As for [`Table::open`].
pub(crate) fn open(
    file: File,
    record: &BatchRecord,
    snapshot: &TableSet,
    checksum: Option<u64>,
    cache: Arc<BlockCache>,
) -> Result<Table> {
    let execution = Execution::new(snapshot.clone(), record.number);
    Table::open_encoded(file, HEADER, Box::new(execution), checksum, cache)
}

/// Opens a file of the operation log of a batch, whose blocks are read but not executed.
///
/// # Errors
/// As for [`Table::open`].
pub(crate) fn open_unexecuted(file: File, checksum: Option<u64>, cache: Arc<BlockCache>) -> Result<Table> {
    let execution = Execution::new(TableSet::default(), 0);
    Table::open_encoded(file, HEADER, Box::new(execution), checksum, cache)
}
