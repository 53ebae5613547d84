//! The tables of a batch, or the files of its log, as a verification opens them.

use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, Result};

use crate::batch::BatchRecord;
use crate::batch_size::{FOOTERS_BYTES_MAX, TABLES_MAX};
use crate::certificate::{Certificate, ProofForm};
use crate::files::TableFiles;
use crate::operations;
use crate::readable::ReadAccess;
use crate::table::{BlockCache, Table};
use crate::table_set::TableSet;

/// Opens the tables of a batch, or the files of its log. Their number and the length of their
/// footers are limited. A user who may not read all entries submits no log: the results of its
/// operations would show the entries on which they are executed.
pub(crate) fn open_submitted(
    record: &BatchRecord,
    reads: ReadAccess,
    certificate: &Certificate,
    snapshot: &TableSet,
    files: &dyn TableFiles,
    cache: &Arc<BlockCache>,
) -> Result<Vec<Arc<Table>>> {
    let refuse = |reason: &'static str| Error {
        source: Some(reason.into()),
        ..Error::new(ErrorKind::InvalidInput, "commit a batch", "")
    };
    if reads == ReadAccess::Permitted && certificate.form == ProofForm::Log {
        return Err(refuse(
            "in a private store, only the owner can submit an operation log; use --proof certificate",
        ));
    }
    let ascends = certificate.tables.windows(2).all(|pair| pair[0].number < pair[1].number);
    if certificate.tables.len() > TABLES_MAX || !ascends {
        return Err(refuse("it has too many tables, or one of them twice"));
    }
    let mut footer_bytes = 0;
    let mut tables = Vec::with_capacity(certificate.tables.len());
    for stated in &certificate.tables {
        let (file, checksum) = (files.open(stated.number)?, Some(stated.checksum));
        let table = match certificate.form {
            ProofForm::Certificate => Table::open(file, checksum, cache.clone())?,
            ProofForm::Log => operations::open(file, record, snapshot, checksum, cache.clone())?,
        };
        footer_bytes += table.footer_bytes();
        if footer_bytes > FOOTERS_BYTES_MAX {
            return Err(refuse("the descriptions of its tables are too long"));
        }
        tables.push(Arc::new(table));
    }
    Ok(tables)
}

impl Certificate {
    /// Checks that the files which the certificate names can be opened and, if `reads_all` is set,
    /// reads them to the end. Their entries are not verified.
    ///
    /// # Errors
    /// `Damaged`; the errors of files.
    pub fn check_files(&self, files: &dyn TableFiles, reads_all: bool) -> Result<()> {
        let cache = Arc::new(BlockCache::default());
        for stated in &self.tables {
            let (file, checksum) = (files.open(stated.number)?, Some(stated.checksum));
            let table = match self.form {
                ProofForm::Certificate => Table::open(file, checksum, cache.clone())?,
                ProofForm::Log => operations::open_unexecuted(file, checksum, cache.clone())?,
            };
            if reads_all {
                table.check_file()?;
            }
        }
        Ok(())
    }
}
