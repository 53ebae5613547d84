//! The end of a private name space: its sorted tables and its certificate.

use quell_vfs::Result;

use crate::batch::BatchRecord;
use crate::certificate::{Certificate, CertifiedTable, PreImage, snapshot_hash};
use crate::entry::Entry;
use crate::files::TableFiles;
use crate::key::split;
use crate::private::PrivateEntries;
use crate::table::TableWriter;

/// A table is ended when it has this many bytes.
const TABLE_BYTES: u64 = 64 << 20;
/// The numbers of the tables that are submitted begin here, above those that were written while the
/// batch was open. Each attempt has numbers of its own, so that the tables of the last certificate
/// stay until the next one is complete.
const FIRST_TABLE: u64 = 1 << 32;
const TABLES_OF_ATTEMPT: u64 = 1 << 20;

impl PrivateEntries {
    /// Writes all changes as sorted tables, and returns their certificate. `attempt` is the number
    /// of earlier attempts.
    ///
    /// # Errors
    /// Those of files. The private name space is unchanged, so this can be repeated.
    pub fn submit(
        &self,
        store: u128,
        record: &BatchRecord,
        files: &dyn TableFiles,
        attempt: u64,
    ) -> Result<Certificate> {
        let mut tables = Tables {
            files,
            next: FIRST_TABLE + attempt * TABLES_OF_ATTEMPT,
            writer: None,
            written: Vec::new(),
        };
        let mut dirs = Vec::new();
        let mut current: Option<(u64, PreImage)> = None;
        let mut inodes_used = 0;
        self.changes(|key, value| {
            let (dir, name) = split(key).expect("a key has the number of a directory");
            if !value.is_empty() {
                let number = Entry::encoded_inode_number(value)?;
                if record.inodes.contains(&number) {
                    inodes_used = inodes_used.max(number + 1 - record.inodes.start);
                }
            }
            if self.is_own_dir(key) {
                // What the batch has created and removed again is not submitted.
                return if value.is_empty() { Ok(()) } else { tables.add(key, value) };
            }
            let before = self.in_snapshot(key)?;
            if value == before.as_deref().unwrap_or_default() {
                return Ok(()); // no change
            }
            if current.as_ref().is_none_or(|(last, _)| *last != dir) {
                dirs.extend(current.take().map(|(last, pre_image)| pre_image.finish(last)));
                current = Some((dir, PreImage::default()));
            }
            let (_, pre_image) = current.as_mut().expect("it was set above");
            pre_image.add(name, before.as_deref());
            tables.add(key, value)
        })?;
        dirs.extend(current.take().map(|(last, pre_image)| pre_image.finish(last)));
        tables.end_table()?;
        files.sync()?;
        Ok(Certificate {
            store,
            batch: record.number,
            snapshot: snapshot_hash(record),
            inodes_used,
            tables: tables.written,
            dirs,
        })
    }
}

/// The tables that are being written.
struct Tables<'a> {
    files: &'a dyn TableFiles,
    next: u64,
    writer: Option<TableWriter>,
    written: Vec<CertifiedTable>,
}

impl Tables<'_> {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.writer.as_ref().is_some_and(|writer| writer.bytes() >= TABLE_BYTES) {
            self.end_table()?;
        }
        if self.writer.is_none() {
            self.writer = Some(TableWriter::new(self.files.create(self.next)?));
        }
        self.writer.as_mut().expect("it was set above").add(key, value)
    }

    fn end_table(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            let summary = writer.finish_synced(self.files, self.next)?;
            let (entries, checksum) = (summary.entries, summary.checksum);
            self.written.push(CertifiedTable { number: self.next, entries, checksum });
            self.next += 1;
        }
        Ok(())
    }
}
