//! The commit of a batch: the verification of its changes, or of those of its parts one after the
//! other, and then one change of the image.

use std::ops::Range;
use std::sync::{Arc, RwLock};

use quell_threads::{read_lock, write_lock};
use quell_vfs::{Error, ErrorKind, Result};

use crate::auxiliary::Auxiliary;
use crate::batch::{BatchRecord, BatchState, Conflicts, PartState};
use crate::certificate::Certificate;
use crate::files::TableFiles;
use crate::image::{Addition, Image};
use crate::names::Names;
use crate::pinned_tables::TablePins;
use crate::submitted::open_submitted;
use crate::table::BlockCache;
use crate::table_ref::TableRef;
use crate::table_set::{TableSet, open_table};
use crate::task::VerificationTask;
use crate::verdict::Verdict;
use crate::verify::{Submission, verify};

/// A verification is repeated this many times if its directories change meanwhile; then it holds
/// the lock.
const REPETITIONS: usize = 3;

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
    refs: Vec<TableRef>,
    tables: TableSet,
    /// The last change that it has.
    change: u64,
    /// The random number of the store.
    store: u128,
    files: Arc<dyn TableFiles>,
    cache: Arc<BlockCache>,
    /// Keeps the tables, which an auxiliary server opens by their names.
    _pins: TablePins,
}

impl Base {
    fn of(image: &mut Image) -> Result<Base> {
        let (refs, tables) = image.snapshot()?;
        let (change, store) = (image.last_change(), image.store_number());
        let pins = image.pin_tables(&refs);
        let (files, cache) = (image.files().clone(), image.cache().clone());
        Ok(Base { refs, tables, change, store, files, cache, _pins: pins })
    }
}

/// The image with the changes of the parts that were verified already. Their tables are opened when
/// this process needs them.
struct Current<'a> {
    base: &'a Base,
    refs: Vec<TableRef>,
    opened: TableSet,
    /// The newest last.
    unopened: Vec<TableRef>,
}

impl<'a> Current<'a> {
    fn new(base: &'a Base) -> Current<'a> {
        Current { base, refs: base.refs.clone(), opened: base.tables.clone(), unopened: Vec::new() }
    }

    /// Adds the tables of the next part, the newest first.
    fn add(&mut self, tables: &[TableRef]) {
        self.refs.splice(0..0, tables.iter().cloned());
        self.unopened.extend(tables.iter().rev().cloned());
    }

    fn tables(&mut self) -> Result<TableSet> {
        for table in std::mem::take(&mut self.unopened) {
            self.opened.add(open_table(&*self.base.files, &self.base.cache, &table)?);
        }
        Ok(self.opened.clone())
    }
}

/// The processes that can verify a batch.
#[derive(Clone, Copy)]
struct Verifiers<'a> {
    auxiliary: Option<&'a dyn Auxiliary>,
    /// The certificates and tables, for a verification by this process.
    changes: &'a SubmittedChanges<'a>,
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
    auxiliary: Option<&dyn Auxiliary>,
) -> Result<BatchRecord> {
    let records = Records::read(&read_lock(image).0, number)?;
    for _ in 0..REPETITIONS {
        // The verification needs no lock: the tables of the image never change.
        let base = Base::of(&mut write_lock(image).0)?;
        let verdicts = verify_all(&records, base, Verifiers { auxiliary, changes })?;
        let mut names = write_lock(image);
        if !names.0.is_changed_since(verdicts.change, verdicts.dirs.iter().copied()) {
            return add(&mut names.0, &records, verdicts);
        }
    }
    let mut names = write_lock(image);
    let base = Base::of(&mut names.0)?;
    let verdicts = verify_all(&records, base, Verifiers { auxiliary: None, changes })?;
    add(&mut names.0, &records, verdicts)
}

/// Verifies the batch, or each of its parts against the image with the changes of those before it.
fn verify_all(records: &Records, base: Base, verifiers: Verifiers<'_>) -> Result<Verdicts> {
    let mut verdicts = Verdicts { change: base.change, ..Verdicts::default() };
    let verified = verify_each(records, &base, verifiers, &mut verdicts);
    if verified.is_err() {
        verdicts.discard(&*base.files)?;
    }
    verified.map(|()| verdicts)
}

fn verify_each(
    records: &Records,
    base: &Base,
    verifiers: Verifiers<'_>,
    verdicts: &mut Verdicts,
) -> Result<()> {
    let mut current = Current::new(base);
    let mut snapshot = None;
    let mut earlier: Vec<Range<u64>> = Vec::new();
    for record in records.changed() {
        let task = VerificationTask {
            store: base.store,
            batch: records.batch.number,
            record: record.clone(),
            earlier: earlier.clone(),
            conflicts: verdicts.conflicts.count,
            current: current.refs.clone(),
        };
        let by_auxiliary = verifiers.auxiliary.map(|auxiliary| auxiliary.verify(&task));
        let verified = match by_auxiliary.transpose().map(Option::flatten) {
            Ok(None) => verify_here(&task, &mut current, &mut snapshot, verifiers.changes),
            Ok(Some(verdict)) => Ok(verdict),
            Err(error) => Err(error),
        };
        let verdict = verified.map_err(|error| match record.part_of() {
            Some(_) => of_part(record.number, error),
            None => error,
        })?;
        current.add(&verdict.addition.tables);
        verdicts.add(verdict);
        earlier.push(record.inodes.clone());
    }
    Ok(())
}

/// Verifies a batch, or a part of one, in this process. `snapshot` has its tables if they were
/// opened already.
fn verify_here(
    task: &VerificationTask,
    current: &mut Current<'_>,
    snapshot: &mut Option<TableSet>,
    changes: &SubmittedChanges<'_>,
) -> Result<Verdict> {
    let Base { files, cache, .. } = current.base;
    let snapshot = match snapshot {
        Some(snapshot) => snapshot,
        // A part has the snapshot of its batch.
        None => snapshot.insert(TableSet::open(&**files, cache, &task.record.snapshot)?),
    };
    let current = current.tables()?;
    let mut verdict = None;
    changes(task.record.number, &mut |certificate, submitted| {
        verdict = Some(verify(Submission {
            record: &task.record,
            batch: task.batch,
            earlier: &task.earlier,
            conflicts: task.conflicts,
            certificate,
            tables: open_submitted(certificate, submitted, cache)?,
            snapshot,
            current: current.clone(),
            store: task.store,
            files: files.clone(),
        })?);
        Ok(())
    })?;
    verdict.ok_or_else(|| ended("its certificate was not read"))
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
