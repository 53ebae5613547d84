//! The lists of conflicts in tables (docs/formats/batch.md).

use std::sync::Arc;

use quell_vfs::Result;

use crate::batch::{Conflict, Conflicts};
use crate::entry::damaged;
use crate::files::TableFiles;
use crate::table::{BlockCache, Table};

/// Returns the key of a conflict.
pub(crate) fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Encodes a conflict.
pub(crate) fn encode(conflict: &Conflict) -> Vec<u8> {
    postcard::to_stdvec(conflict).expect("a conflict has no value that postcard refuses")
}

/// Passes all conflicts to `visit`, in their order.
pub(crate) fn visit(
    list: &Conflicts,
    files: &dyn TableFiles,
    visit: &mut dyn FnMut(Conflict) -> Result<()>,
) -> Result<()> {
    for table in &list.tables {
        let file = files.open(table.number)?;
        let table = Arc::new(Table::open(file, Some(table.checksum), Arc::new(BlockCache::default()))?);
        let mut entries = table.entries();
        while let Some(decoded) = entries.next(|_, value| {
            postcard::take_from_bytes::<Conflict>(value).ok().map(|(conflict, _)| conflict)
        })? {
            visit(decoded.ok_or_else(|| damaged("a conflict"))?)?;
        }
    }
    Ok(())
}
