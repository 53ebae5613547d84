//! The check of the tables of an image, without the image.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_kv::KeyValue;
use quell_vfs::{Error, ErrorKind, Result};

use super::problem::{Problem, ProblemKind};
use crate::batch::BatchRecord;
use crate::entry::damaged;
use crate::files::TableFiles;
use crate::image::Image;
use crate::key::split;
use crate::table::{BlockCache, Table};
use crate::table_ref::TableRef;

/// Checks the tables of the image in `store`, of the snapshots of its open batches, and of prepared
/// batches, and passes each problem to `report`. The image is not opened, because that fails if a
/// table is missing.
///
/// # Errors
/// `NotFound` or `Damaged` if the store has no image.
pub fn check_tables(
    store: &dyn KeyValue,
    files: &dyn TableFiles,
    report: &mut dyn FnMut(&Problem),
) -> Result<()> {
    let (image, batches) = Image::stored(store)?;
    let open = batches.iter().filter(|batch| !batch.state.has_ended());
    let mut checked = BTreeSet::new();
    let snapshots = open.flat_map(|batch| &batch.snapshot);
    let conflicts = batches.iter().flat_map(BatchRecord::conflict_tables);
    let prepared = batches.iter().flat_map(BatchRecord::prepared_tables);
    for table in image.iter().chain(snapshots).chain(conflicts).chain(prepared) {
        if !checked.insert(table.number) {
            continue;
        }
        if let Err(error) = check_table(table, files) {
            let kind = match error.kind {
                ErrorKind::NotFound => ProblemKind::MissingTable,
                _ => ProblemKind::DamagedTable,
            };
            report(&Problem::of_table(kind, table.number, &error.to_string()));
        }
    }
    Ok(())
}

/// Reads a whole table.
fn check_table(stated: &TableRef, files: &dyn TableFiles) -> Result<()> {
    let refuse = |reason: &'static str| Error { source: Some(reason.into()), ..damaged("a table") };
    let cache = Arc::new(BlockCache::default());
    let table = Arc::new(Table::open(files.open(stated.number)?, Some(stated.checksum), cache)?);
    table.check_filter()?;
    let (mut count, mut last_key) = (0, Vec::new());
    let mut entries = table.entries();
    let mut visit = |key: &[u8]| {
        let ascends = (count == 0 || *key > *last_key) && split(key).is_some();
        count += 1;
        last_key.clear();
        last_key.extend_from_slice(key);
        ascends
    };
    while let Some(ascends) = entries.next(|key, _| visit(key))? {
        if !ascends {
            return Err(refuse("its keys do not ascend"));
        }
    }
    match count == stated.entries {
        true => Ok(()),
        false => Err(refuse("it has another number of entries")),
    }
}
