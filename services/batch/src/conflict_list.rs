//! The lists of conflicts in tables (docs/formats/batch.md).

use std::sync::Arc;

use quell_vfs::Result;

use crate::batch::{Conflict, Conflicts};
use crate::entry::damaged;
use crate::files::TableFiles;
use crate::table::{BlockCache, Table};

/// Returns the key of a conflict, from its position in the list.
pub(crate) fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Encodes a conflict.
pub(crate) fn encode(conflict: &Conflict) -> Vec<u8> {
    postcard::to_stdvec(conflict).expect("a conflict has no value that postcard refuses")
}

/// Passes the conflicts from the position `from` to `visit`, in their order, until it returns
/// false.
pub(crate) fn visit(
    list: &Conflicts,
    from: u64,
    files: &dyn TableFiles,
    visit: &mut dyn FnMut(Conflict) -> Result<bool>,
) -> Result<()> {
    let mut end: u64 = 0;
    for table in &list.tables {
        // The position after the last conflict of the table.
        end = end.saturating_add(table.entries);
        if end <= from {
            continue;
        }
        let file = files.open(table.number)?;
        let table = Arc::new(Table::open(file, Some(table.checksum), Arc::new(BlockCache::default()))?);
        let mut entries = match from.checked_sub(1) {
            Some(last) => table.entries_after(&key(last)),
            None => table.entries(),
        };
        while let Some(decoded) = entries.next(|_, value| {
            postcard::take_from_bytes::<Conflict>(value).ok().map(|(conflict, _)| conflict)
        })? {
            if !visit(decoded.ok_or_else(|| damaged("a conflict"))?)? {
                return Ok(());
            }
        }
    }
    Ok(())
}
