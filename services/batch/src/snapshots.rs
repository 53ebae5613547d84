//! The snapshots of a store, for users: each open batch has one.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::batch::BatchRecord;
use crate::entry::Timestamp;
use crate::files::TableFiles;
use crate::table_ref::TableRef;

/// The description of the snapshot of an open batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSummary {
    /// The number of the batch.
    pub batch: u64,
    /// The name of the batch.
    pub name: String,
    /// The user of the batch.
    pub uid: u32,
    /// The time at which the newest table was written. The snapshot has all changes up to this
    /// time, and there were no later ones before the batch began.
    pub written: Timestamp,
    /// The number of tables.
    pub tables: u64,
    /// The number of entries of the tables, including those that newer tables supersede.
    pub entries: u64,
    /// The size of the tables, in bytes.
    pub bytes: u64,
    /// The number of tables that the image or another snapshot has as well.
    pub shared_tables: u64,
    /// The size of the other tables, in bytes. They are removed after the end of the batch.
    pub own_bytes: u64,
}

/// Returns the snapshots of the open batches of `batches`, in their order. A part has the snapshot
/// of its batch, so parts are left out. `image` has the tables of the image, whose files are in
/// `files`.
pub(crate) fn summaries(
    image: &[TableRef],
    batches: &[BatchRecord],
    files: &dyn TableFiles,
) -> Result<Vec<SnapshotSummary>> {
    let open = || batches.iter().filter(|batch| !batch.state.has_ended() && batch.part_of().is_none());
    let mut references: HashMap<u64, u64> = HashMap::new();
    for table in image.iter().chain(open().flat_map(|batch| &batch.snapshot)) {
        *references.entry(table.number).or_default() += 1;
    }
    let is_shared = |table: &&TableRef| references.get(&table.number).is_some_and(|count| *count > 1);
    let mut found = Vec::new();
    for batch in open() {
        let Some(written) = written(&batch.snapshot, files)? else { continue };
        let (shared, own): (Vec<_>, Vec<_>) = batch.snapshot.iter().partition(is_shared);
        found.push(SnapshotSummary {
            batch: batch.number,
            name: batch.name.clone(),
            uid: batch.caller.uid,
            written,
            tables: batch.snapshot.len() as u64,
            entries: batch.snapshot.iter().map(|table| table.entries).sum(),
            bytes: batch.snapshot.iter().map(|table| table.bytes).sum(),
            shared_tables: shared.len() as u64,
            own_bytes: own.iter().map(|table| table.bytes).sum(),
        });
    }
    Ok(found)
}

/// Returns the time at which the newest table of a snapshot was written. `None` if the table was
/// removed, because the batch has ended meanwhile.
fn written(snapshot: &[TableRef], files: &dyn TableFiles) -> Result<Option<Timestamp>> {
    // The image has the entry of the root directory, so a snapshot has a table.
    let Some(newest) = snapshot.first() else { return Ok(None) };
    let file = match files.open(newest.number) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let found = file.metadata().map_err(|cause| Error::from_io(cause, "stat", "a table"))?;
    Ok(Some(Timestamp(found.mtime(), found.mtime_nsec() as u32)))
}
