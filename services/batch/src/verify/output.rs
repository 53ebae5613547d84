//! The tables of the image that a verification writes.

use std::sync::Arc;

use quell_vfs::Result;

use crate::files::TableFiles;
use crate::table::TableWriter;
use crate::table_ref::TableRef;

/// A table is ended when it has this many bytes.
const TABLE_BYTES: u64 = 64 << 20;

/// Writes entries to tables of the image.
pub(super) struct Output {
    files: Arc<dyn TableFiles>,
    first: u64,
    next: u64,
    writer: Option<(u64, TableWriter)>,
    tables: Vec<TableRef>,
}

impl Output {
    /// Returns an output to tables with numbers from `first`.
    pub(super) fn new(files: Arc<dyn TableFiles>, first: u64) -> Output {
        Output { files, first, next: first, writer: None, tables: Vec::new() }
    }

    /// Adds an entry. Its key must be greater than the last one.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.writer.as_ref().is_some_and(|(_, writer)| writer.bytes() >= TABLE_BYTES) {
            self.end_table()?;
        }
        let (_, writer) = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let file = self.files.create(self.next)?;
                self.next += 1;
                self.writer.insert((self.next - 1, TableWriter::new(file)))
            }
        };
        writer.add(key, value)
    }

    /// Ends the current table. The next entry may have any key.
    pub(super) fn end_table(&mut self) -> Result<()> {
        if let Some((number, writer)) = self.writer.take() {
            self.tables.insert(0, TableRef::new(number, &writer.finish_synced(&*self.files, number)?));
        }
        Ok(())
    }

    /// Removes the tables.
    pub(super) fn discard(self) -> Result<()> {
        (self.first..self.next).try_for_each(|number| self.files.remove(number))
    }

    /// Returns the tables, the newest first.
    pub(super) fn finish(&mut self) -> Result<Vec<TableRef>> {
        self.end_table()?;
        Ok(std::mem::take(&mut self.tables))
    }
}
