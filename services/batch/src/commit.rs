//! The commit of a batch: the verification of its changes, or of those of its parts one after the
//! other, and then one change of the image.

use std::ops::Range;
use std::sync::{Arc, RwLock};

use quell_threads::{read_lock, write_lock};
use quell_vfs::{Error, ErrorKind, Result};

use crate::batch::{BatchRecord, BatchState, Conflicts, PartState};
use crate::certificate::{Certificate, ProofForm};
use crate::files::TableFiles;
use crate::image::{Addition, Image};
use crate::names::Names;
use crate::operations;
use crate::table::{BlockCache, Table};
use crate::table_set::{TableSet, open_table};
use crate::verify::{Submission, Verdict, verify};

/// A verification is repeated this many times if its directories change meanwhile; then it holds
/// the lock.
const REPETITIONS: usize = 3;
/// The largest number of tables of a batch, or of a part of one.
const TABLES_MAX: usize = 4096;
/// The largest total length of the footers of these tables, in bytes.
const FOOTERS_BYTES_MAX: u64 = 256 << 20;

/// Receives the certificate of a batch, or of a part of one, and its tables.
pub type SubmittedVisitor<'a> = dyn FnMut(&Certificate, &dyn TableFiles) -> Result<()> + 'a;

/// Finds the certificate and the tables of a batch, or of a part of one, by its number, and passes
/// them to the visitor.
pub type SubmittedChanges<'a> = dyn Fn(u64, &mut SubmittedVisitor<'_>) -> Result<()> + 'a;

/// A batch that has not ended, and its parts that have not.
struct Records {
    batch: BatchRecord,
    parts: Vec<BatchRecord>,
}

impl Records {
    fn read(image: &Image, number: u64) -> Result<Records> {
        let batch = open_batch(image, number)?;
        let parts = if batch.has_parts() { open_parts(image, number)? } else { Vec::new() };
        Ok(Records { batch, parts })
    }

    /// Returns the records whose changes are verified, in this order.
    fn changed(&self) -> &[BatchRecord] {
        if self.batch.has_parts() { &self.parts } else { std::slice::from_ref(&self.batch) }
    }
}

/// The image on which a batch is verified.
struct Base {
    tables: TableSet,
    /// The last change that it has.
    change: u64,
    /// The random number of the store.
    store: u128,
    files: Arc<dyn TableFiles>,
    cache: Arc<BlockCache>,
}

impl Base {
    fn of(image: &mut Image) -> Result<Base> {
        let (_, tables) = image.snapshot()?;
        let (change, store) = (image.last_change(), image.store_number());
        Ok(Base { tables, change, store, files: image.files().clone(), cache: image.cache().clone() })
    }
}

/// The results of the verification of all parts.
#[derive(Default)]
struct Verdicts {
    addition: Addition,
    /// The number of new entries of each part.
    entries: Vec<u64>,
    conflicts: Conflicts,
    dirs: Vec<u64>,
    change: u64,
}

impl Verdicts {
    /// Adds the result for the next part.
    fn add(&mut self, verdict: Verdict) {
        let Verdict { addition, entries, conflicts, dirs, .. } = verdict;
        self.addition.tables.splice(0..0, addition.tables);
        self.addition.changed_dirs.extend(addition.changed_dirs);
        self.entries.push(entries);
        // The number has the conflicts of earlier parts.
        self.conflicts.count = conflicts.count;
        self.conflicts.tables.extend(conflicts.tables);
        self.dirs.extend(dirs);
    }

    /// Removes the tables that were written.
    fn discard(&self, files: &dyn TableFiles) -> Result<()> {
        let mut tables = self.addition.tables.iter().chain(&self.conflicts.tables);
        tables.try_for_each(|table| files.remove(table.number))
    }
}

/// Verifies a batch and adds its changes to the image.
///
/// # Errors
/// As for [`Primary::commit`](crate::Primary::commit).
pub(crate) fn commit(
    image: &RwLock<Names<Image>>,
    number: u64,
    changes: &SubmittedChanges<'_>,
) -> Result<BatchRecord> {
    let (records, snapshot) = {
        let names = read_lock(image);
        let records = Records::read(&names.0, number)?;
        let snapshot = names.0.open_tables(&records.batch.snapshot)?;
        (records, snapshot)
    };
    for _ in 0..REPETITIONS {
        // The verification needs no lock: the tables of the image never change.
        let base = Base::of(&mut write_lock(image).0)?;
        let verdicts = verify_all(&records, &snapshot, base, changes)?;
        let mut names = write_lock(image);
        if !names.0.is_changed_since(verdicts.change, verdicts.dirs.iter().copied()) {
            return add(&mut names.0, &records, verdicts);
        }
    }
    let mut names = write_lock(image);
    let base = Base::of(&mut names.0)?;
    let verdicts = verify_all(&records, &snapshot, base, changes)?;
    add(&mut names.0, &records, verdicts)
}

/// Verifies the batch, or each of its parts against the image with the changes of those before it.
fn verify_all(
    records: &Records,
    snapshot: &TableSet,
    base: Base,
    changes: &SubmittedChanges<'_>,
) -> Result<Verdicts> {
    let mut verdicts = Verdicts { change: base.change, ..Verdicts::default() };
    let verified = verify_each(records, snapshot, &base, changes, &mut verdicts);
    if verified.is_err() {
        verdicts.discard(&*base.files)?;
    }
    verified.map(|()| verdicts)
}

fn verify_each(
    records: &Records,
    snapshot: &TableSet,
    base: &Base,
    changes: &SubmittedChanges<'_>,
    verdicts: &mut Verdicts,
) -> Result<()> {
    let mut current = base.tables.clone();
    let mut earlier: Vec<Range<u64>> = Vec::new();
    for record in records.changed() {
        let mut verdict = None;
        let verified = changes(record.number, &mut |certificate, files| {
            verdict = Some(verify(Submission {
                record,
                batch: records.batch.number,
                earlier: &earlier,
                conflicts: verdicts.conflicts.count,
                certificate,
                tables: open_submitted(record, certificate, snapshot, files, &base.cache)?,
                snapshot,
                current: current.clone(),
                store: base.store,
                files: base.files.clone(),
            })?);
            Ok(())
        });
        verified.map_err(|error| match record.part_of() {
            Some(_) => of_part(record.number, error),
            None => error,
        })?;
        let verdict = verdict.ok_or_else(|| ended("its certificate was not read"))?;
        for table in verdict.addition.tables.iter().rev() {
            current.add(open_table(&*base.files, &base.cache, table)?);
        }
        verdicts.add(verdict);
        earlier.push(record.inodes.clone());
    }
    Ok(())
}

/// Adds the number of a part to an error.
fn of_part(number: u64, error: Error) -> Error {
    Error {
        source: Some(format!("part {number}: {error}").into()),
        ..Error::new(error.kind, "commit a batch", "")
    }
}

/// Returns the record of a batch that has not ended. A part is none.
pub(crate) fn open_batch(image: &Image, number: u64) -> Result<BatchRecord> {
    let Some(record) = image.batch(number)? else {
        return Err(Error::new(ErrorKind::NotFound, "find batch", number.to_string()));
    };
    match record.state {
        BatchState::Open | BatchState::Submitted { .. } | BatchState::Refused { .. } => Ok(record),
        BatchState::Committed { .. } => Err(ended("it is committed already")),
        BatchState::Aborted => Err(ended("it was aborted")),
        BatchState::Part { of, .. } => Err(ended(&format!("it is a part of batch {of}, which commits it"))),
    }
}

/// Returns the parts of a batch that have not ended, in the order in which they have joined.
pub(crate) fn open_parts(image: &Image, number: u64) -> Result<Vec<BatchRecord>> {
    let mut records = image.batches()?;
    records.retain(|record| record.part_of() == Some(number) && record.is_open_part());
    Ok(records)
}

/// Opens the tables of a batch, or the files of its log, whose number and whose descriptions are
/// bounded.
pub(crate) fn open_submitted(
    record: &BatchRecord,
    certificate: &Certificate,
    snapshot: &TableSet,
    files: &dyn TableFiles,
    cache: &Arc<BlockCache>,
) -> Result<Vec<Arc<Table>>> {
    let ascends = certificate.tables.windows(2).all(|pair| pair[0].number < pair[1].number);
    if certificate.tables.len() > TABLES_MAX || !ascends {
        return Err(ended("it has too many tables, or one of them twice"));
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
            return Err(ended("the descriptions of its tables are too long"));
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
    /// `Damaged`; those of files.
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

fn add(image: &mut Image, records: &Records, verdicts: Verdicts) -> Result<BatchRecord> {
    // It may have been aborted meanwhile.
    let now = Records::read(image, records.batch.number)?;
    if !now.parts.iter().map(|part| part.number).eq(records.parts.iter().map(|part| part.number)) {
        return Err(busy("a part has joined the batch, or was discarded, during the commit; repeat it"));
    }
    let Verdicts { addition, entries, conflicts, .. } = verdicts;
    let batch = now.batch;
    if batch.is_atomic && conflicts.count > 0 {
        return Err(busy(&format!(
            "the batch has {} conflicts, and is to be committed as a whole",
            conflicts.count
        )));
    }
    let state = BatchState::Committed { entries: entries.iter().sum(), conflicts };
    // The snapshot is not needed any more.
    let mut ended = vec![BatchRecord { state, snapshot: Vec::new(), ..batch }];
    for (part, entries) in now.parts.into_iter().zip(entries) {
        ended.push(end_part(part, PartState::Committed { entries }));
    }
    image.add(addition, &ended)?;
    Ok(ended.swap_remove(0))
}

/// Returns the record of a part that has ended.
pub(crate) fn end_part(part: BatchRecord, state: PartState) -> BatchRecord {
    let of = part.part_of().unwrap_or_default();
    BatchRecord { state: BatchState::Part { of, state }, snapshot: Vec::new(), ..part }
}

fn busy(reason: &str) -> Error {
    Error { source: Some(reason.to_owned().into()), ..Error::new(ErrorKind::Busy, "commit a batch", "") }
}

pub(crate) fn ended(reason: &str) -> Error {
    let source = Some(reason.to_owned().into());
    Error { source, ..Error::new(ErrorKind::InvalidInput, "commit a batch", "") }
}
