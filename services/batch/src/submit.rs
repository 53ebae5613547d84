//! The end of a private name space: its sorted changes, in one of two forms, and its certificate.

use quell_vfs::Result;

use crate::batch::BatchRecord;
use crate::batch_size::FILE_BYTES;
use crate::certificate::{Certificate, CertifiedTable, PreImage, ProofForm, snapshot_hash};
use crate::entry::Entry;
use crate::files::TableFiles;
use crate::key::split;
use crate::operations::OperationsWriter;
use crate::private::PrivateEntries;
use crate::table::TableWriter;

/// The numbers of the files that are submitted begin here, above those that were written while the
/// batch was open. Each attempt has numbers of its own, so that the files of the last certificate
/// stay until the next one is complete.
const FIRST_FILE: u64 = 1 << 32;
const FILES_OF_ATTEMPT: u64 = 1 << 20;

impl PrivateEntries {
    /// Writes all changes in one of the forms, in the order of their keys, and returns their
    /// certificate. `attempt` is the number of earlier attempts.
    ///
    /// The log has no history of single operations. The operations on one entry are combined while
    /// the batch runs: each replaces the state that the previous one has left, and only the last
    /// state is compared with the snapshot here.
    ///
    /// # Errors
    /// The errors of files. The private name space is unchanged, so this can be repeated.
    pub fn submit(
        &self,
        store: u128,
        record: &BatchRecord,
        files: &dyn TableFiles,
        form: ProofForm,
        attempt: u64,
    ) -> Result<Certificate> {
        let mut changes = Changes {
            files,
            form,
            batch: record.number,
            next: FIRST_FILE + attempt * FILES_OF_ATTEMPT,
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
                // An entry that the batch has created and removed again is not submitted.
                return if value.is_empty() { Ok(()) } else { changes.add(key, value, None) };
            }
            let before = self.in_snapshot(key)?;
            if value == before.as_deref().unwrap_or_default() {
                return Ok(()); // no change
            }
            if form == ProofForm::Log {
                return changes.add(key, value, before.as_deref());
            }
            if current.as_ref().is_none_or(|(last, _)| *last != dir) {
                dirs.extend(current.take().map(|(last, pre_image)| pre_image.finish(last)));
                current = Some((dir, PreImage::default()));
            }
            let (_, pre_image) = current.as_mut().expect("it was set above");
            pre_image.add(name, before.as_deref());
            changes.add(key, value, None)
        })?;
        dirs.extend(current.take().map(|(last, pre_image)| pre_image.finish(last)));
        changes.end_file()?;
        files.sync()?;
        Ok(Certificate {
            store,
            batch: record.number,
            snapshot: snapshot_hash(record),
            inodes_used,
            form,
            tables: changes.written,
            dirs,
        })
    }
}

/// The files of changes that are being written.
struct Changes<'a> {
    files: &'a dyn TableFiles,
    form: ProofForm,
    /// The number of the batch.
    batch: u64,
    next: u64,
    writer: Option<Writer>,
    written: Vec<CertifiedTable>,
}

/// A file of changes that is being written.
enum Writer {
    Table(TableWriter),
    Log(Box<OperationsWriter>),
}

impl Writer {
    fn bytes(&self) -> u64 {
        match self {
            Writer::Table(table) => table.bytes(),
            Writer::Log(log) => log.bytes(),
        }
    }
}

impl Changes<'_> {
    /// Adds the change of an entry. A log also needs the entry of the snapshot.
    fn add(&mut self, key: &[u8], value: &[u8], before: Option<&[u8]>) -> Result<()> {
        if self.writer.as_ref().is_some_and(|writer| writer.bytes() >= FILE_BYTES) {
            self.end_file()?;
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let file = self.files.create(self.next)?;
                self.writer.insert(match self.form {
                    ProofForm::Certificate => Writer::Table(TableWriter::new(file)),
                    ProofForm::Log => Writer::Log(Box::new(OperationsWriter::new(file, self.batch))),
                })
            }
        };
        match writer {
            Writer::Table(table) => table.add(key, value),
            Writer::Log(log) => log.add(key, value, before),
        }
    }

    fn end_file(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            let summary = match writer {
                Writer::Table(table) => table.finish_synced(self.files, self.next)?,
                Writer::Log(log) => log.finish_synced(self.files, self.next)?,
            };
            let (entries, checksum) = (summary.entries, summary.checksum);
            self.written.push(CertifiedTable { number: self.next, entries, checksum });
            self.next += 1;
        }
        Ok(())
    }
}
