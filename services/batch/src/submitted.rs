//! The tables of a batch, as a verification opens them.

use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, Result};

use crate::certificate::Certificate;
use crate::files::TableFiles;
use crate::table::{BlockCache, Table};

/// The largest number of tables of a batch, or of a part of one.
const TABLES_MAX: usize = 4096;
/// The largest total length of the footers of these tables, in bytes.
const FOOTERS_BYTES_MAX: u64 = 256 << 20;

/// Opens the tables of a batch, whose number and whose descriptions are bounded.
pub(crate) fn open_submitted(
    certificate: &Certificate,
    files: &dyn TableFiles,
    cache: &Arc<BlockCache>,
) -> Result<Vec<Arc<Table>>> {
    let refuse = |reason: &'static str| Error {
        source: Some(reason.into()),
        ..Error::new(ErrorKind::InvalidInput, "commit a batch", "")
    };
    let ascends = certificate.tables.windows(2).all(|pair| pair[0].number < pair[1].number);
    if certificate.tables.len() > TABLES_MAX || !ascends {
        return Err(refuse("it has too many tables, or one of them twice"));
    }
    let mut footer_bytes = 0;
    let mut tables = Vec::with_capacity(certificate.tables.len());
    for stated in &certificate.tables {
        let table = Table::open(files.open(stated.number)?, Some(stated.checksum), cache.clone())?;
        footer_bytes += table.footer_bytes();
        if footer_bytes > FOOTERS_BYTES_MAX {
            return Err(refuse("the descriptions of its tables are too long"));
        }
        tables.push(Arc::new(table));
    }
    Ok(tables)
}
