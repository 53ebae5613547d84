//! The views of a running batch: states of its private name space, which other processes read.
//!
//! A view is a list of tables. The tables that the private name space has written never change; its
//! changes in memory are copied to another table. docs/formats/batch.md describes the file.

use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::batch::{BatchRecord, BatchState};
use crate::entry::damaged;
use crate::files::TableFiles;
use crate::image_copy::ImageCopy;
use crate::memtable::MemCopy;
use crate::stored::{decode, encode};
use crate::table::TableWriter;
use crate::table_ref::TableRef;

/// The first bytes of a view, with the version of the format.
const MAGIC: [u8; 16] = *b"QUELL VIEW 1\0\0\0\0";
/// The numbers of the tables with changes that were in memory begin here: above the numbers of
/// tables of the private name space, and below the numbers of submitted files.
const FIRST_TABLE: u64 = 1 << 31;

/// A state of the private name space of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The number of the batch.
    pub batch: u64,
    /// The number of the view, which is greater than the numbers of earlier views.
    pub number: u64,
    /// The number of the request for the view.
    pub request: u64,
    /// The tables in the directory of the batch, the newest first.
    pub tables: Vec<TableRef>,
}

impl View {
    /// Encodes the view.
    pub fn encode(&self) -> Vec<u8> {
        let body = encode(self);
        [&MAGIC[..], &xxh3_64(&body).to_le_bytes(), &body].concat()
    }

    /// Decodes a view.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not an encoded view.
    pub fn decode(bytes: &[u8]) -> Result<View> {
        let broken = || damaged("a view of a batch");
        let rest = bytes.strip_prefix(&MAGIC).ok_or_else(broken)?;
        let (checksum, body) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
        match xxh3_64(body) == u64::from_le_bytes(*checksum) {
            true => decode(body),
            false => Err(broken()),
        }
    }
}

/// The state of a private name space. A part of the changes is not in a table yet.
#[derive(Debug)]
pub struct CopiedChanges {
    pub(crate) tables: Vec<TableRef>,
    pub(crate) memory: MemCopy,
}

impl CopiedChanges {
    /// Writes the changes that are not in a table yet as a new table. Returns all tables, the
    /// newest first, and the number of the new one, which no reader needs after the next view was
    /// published.
    ///
    /// # Errors
    /// The errors of files.
    pub fn write(self, files: &dyn TableFiles, view: u64) -> Result<(Vec<TableRef>, Option<u64>)> {
        let CopiedChanges { mut tables, memory } = self;
        if memory.is_empty() {
            return Ok((tables, None));
        }
        let number = FIRST_TABLE + view;
        let mut writer = TableWriter::new(files.create(number)?);
        memory.visit_sorted(|key, value| writer.add(key, value))?;
        tables.insert(0, TableRef::new(number, &writer.finish()?));
        Ok((tables, Some(number)))
    }
}

/// Returns the record of an open batch, or of an open part of one, from the copy of the image's
/// description in the directory of its tables. The store need not be open.
///
/// # Errors
/// `NotFound` if there is no open batch of this number; `InvalidInput` if the batch has parts;
/// `Damaged`; the errors of files.
pub fn open_batch_of_copy(tables: &dyn TableFiles, number: u64) -> Result<BatchRecord> {
    let batches = match tables.copy()? {
        Some(bytes) => ImageCopy::decode(&bytes)?.batches,
        None => Vec::new(),
    };
    watchable(batches.into_iter().find(|batch| batch.number == number), number)
}

/// Returns the record of a batch that can be watched.
///
/// # Errors
/// As for [`open_batch_of_copy`].
pub(crate) fn watchable(found: Option<BatchRecord>, number: u64) -> Result<BatchRecord> {
    let found = found.filter(|batch| batch.state == BatchState::Open || batch.is_open_part());
    if found.as_ref().is_some_and(BatchRecord::has_parts) {
        let source = "it has parts; `quell batch status` lists them, and each can be watched by its number";
        return Err(Error {
            source: Some(source.into()),
            ..Error::new(ErrorKind::InvalidInput, "watch batch", number.to_string())
        });
    }
    found.ok_or_else(|| Error {
        source: Some("it is not open".into()),
        ..Error::new(ErrorKind::NotFound, "watch batch", number.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_view_is_refused() {
        let table = TableRef { number: 3, bytes: 900, entries: 7, checksum: 1 << 60 };
        let view = View { batch: 7, number: 2, request: u64::MAX, tables: vec![table; 2] };
        let bytes = view.encode();
        assert_eq!(View::decode(&bytes).unwrap(), view);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(View::decode(&changed).unwrap_err().kind, ErrorKind::Damaged, "{at}");
            assert_eq!(View::decode(&bytes[..at]).unwrap_err().kind, ErrorKind::Damaged, "{at}");
        }
    }
}
