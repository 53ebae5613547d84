//! The commit of a batch: its changes, or the changes of each of its parts in turn, are verified,
//! and then added to the image at once.

use std::ops::Range;
use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, Result, Time};

use crate::auxiliary::Auxiliary;
use crate::batch::{BatchCaller, BatchRecord, BatchState, Conflicts, Marker, PartState, Prepared};
use crate::certificate::Certificate;
use crate::entry::Timestamp;
use crate::files::TableFiles;
use crate::image::{Addition, Image};
use crate::limits::of_file_system;
use crate::master_image::MasterImage;
use crate::pinned_tables::TablePins;
use crate::readable::ReadAccess;
use crate::submitted::open_submitted;
use crate::table::BlockCache;
use crate::table_ref::TableRef;
use crate::table_set::{TableSet, open_table};
use crate::task::VerificationTask;
use crate::verdict::Verdict;
use crate::verify::{Submission, verify};

/// A verification without the lock of the image is tried this many times. If each time a directory
/// that it has read changes meanwhile, the next verification holds the lock.
const REPETITIONS: usize = 3;

/// The largest number of directories in the two lists of all prepared batches of a user. They take
/// at most 10 bytes each in the records of the batches, which are read together.
const RESERVED_DIRS_MAX: usize = 1 << 16;

/// Receives the certificate of a batch, or of a part of one, and its tables.
pub type SubmittedVisitor<'a> = dyn FnMut(&Certificate, &dyn TableFiles) -> Result<()> + 'a;

/// Finds the certificate and the tables of a batch, or of a part of one, by its number, and passes
/// them to the visitor.
pub type SubmittedChanges<'a> = dyn Fn(u64, &mut SubmittedVisitor<'_>) -> Result<()> + 'a;

/// A batch that has not ended, and those of its parts that have not ended.
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
    /// The number of the last change that is part of this image.
    change: u64,
    /// The random number of the store.
    store: u128,
    files: Arc<dyn TableFiles>,
    cache: Arc<BlockCache>,
    /// Prevents the removal of the tables, which an auxiliary server opens by their names.
    _pins: TablePins,
}

impl Base {
    fn of(image: &mut Image) -> Result<Base> {
        let (refs, tables) = image.snapshot()?;
        let (change, store) = (image.last_change(), image.store_number());
        let pins = image.pin_tables(refs.iter().map(|table| table.number));
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
    /// The tables that are not opened yet, the newest last.
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
    /// The present time.
    now: Timestamp,
    /// The entries that the user of the batch may read.
    reads: ReadAccess,
}

/// The rules of a store for commits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Returns the present time.
    pub(crate) clock: fn() -> Time,
    /// The owner of a private store, which alone may read all entries.
    pub(crate) private_to: Option<u32>,
}

impl Rules {
    /// Returns the entries that a user may read.
    pub(crate) fn reads_of(&self, caller: &BatchCaller) -> ReadAccess {
        match self.private_to {
            Some(owner) if owner != caller.uid => ReadAccess::Permitted,
            _ => ReadAccess::All,
        }
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
    accesses: Vec<u64>,
    change: u64,
}

impl Verdicts {
    /// Adds the result for the next part.
    fn add(&mut self, verdict: Verdict) {
        let Verdict { addition, entries, conflicts, dirs, accesses } = verdict;
        self.addition.tables.splice(0..0, addition.tables);
        self.addition.changed_dirs.extend(addition.changed_dirs);
        let usage = self.addition.usage.get_or_insert_default();
        addition.usage.iter().for_each(|changes| usage.append(changes));
        self.entries.push(entries);
        // The number includes the conflicts of earlier parts.
        self.conflicts.count = conflicts.count;
        self.conflicts.tables.extend(conflicts.tables);
        self.dirs.extend(dirs);
        self.accesses.extend(accesses);
    }

    /// Removes the tables that were written.
    fn discard(&self, files: &dyn TableFiles) -> Result<()> {
        let mut tables = self.addition.tables.iter().chain(&self.conflicts.tables);
        tables.try_for_each(|table| files.remove(table.number))
    }
}

/// Verifies a batch and adds its changes to the image. With a marker, the batch is only prepared,
/// and [`publish`] adds its changes later.
///
/// # Errors
/// As for [`Primary::commit`](crate::Primary::commit) and
/// [`Primary::prepare_by`](crate::Primary::prepare_by).
pub(crate) fn commit(
    image: &MasterImage,
    number: u64,
    changes: &SubmittedChanges<'_>,
    auxiliary: Option<&dyn Auxiliary>,
    rules: Rules,
    marker: Option<&Marker>,
) -> Result<BatchRecord> {
    if let Some(marker) = marker
        && let Some(record) = image.read().0.batch(number)?
        && matches!(&record.state, BatchState::Prepared(prepared) if prepared.marker == *marker)
    {
        // The client has repeated the request, because it did not receive the first reply.
        return Ok(record);
    }
    let records = Records::read(&image.read().0, number)?;
    if let (Some(_), BatchState::Submitted { .. }) = (marker, &records.batch.state) {
        return Err(ended("it is submitted, so it is committed without a transaction of blobs"));
    }
    image.merge_after_operation();
    let (reads, now) = (rules.reads_of(&records.batch.caller), || (rules.clock)().into());
    for _ in 0..REPETITIONS {
        // The verification needs no lock: the tables of the image never change.
        let base = Base::of(&mut image.write_complete()?.0)?;
        let verifiers = Verifiers { auxiliary, changes, now: now(), reads };
        let verdicts = verify_all(&records, base, verifiers).map_err(of_file_system)?;
        let mut names = image.write_complete()?;
        if !names.0.is_changed_since(verdicts.change, &verdicts.dirs, &verdicts.accesses) {
            return end(&mut names.0, &records, verdicts, marker);
        }
    }
    let mut names = image.write_complete()?;
    let base = Base::of(&mut names.0)?;
    let verifiers = Verifiers { auxiliary: None, changes, now: now(), reads };
    let verdicts = verify_all(&records, base, verifiers).map_err(of_file_system)?;
    end(&mut names.0, &records, verdicts, marker)
}

/// Verifies the batch, or each of its parts against the image with the changes of the parts before.
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
            now: verifiers.now,
            reads: verifiers.reads,
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

/// Verifies a batch, or a part of one, in this process. `snapshot` is the snapshot if its tables
/// were opened already.
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
            tables: open_submitted(&task.record, task.reads, certificate, snapshot, submitted, cache)?,
            snapshot,
            current: current.clone(),
            store: task.store,
            now: task.now,
            reads: task.reads,
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

/// Returns the record of a batch that has not ended. Fails for a part of a batch.
pub(crate) fn open_batch(image: &Image, number: u64) -> Result<BatchRecord> {
    let Some(record) = image.batch(number)? else {
        return Err(Error::new(ErrorKind::NotFound, "find batch", number.to_string()));
    };
    match record.summary().state.obstacle() {
        None => Ok(record),
        Some((kind, reason)) => Err(failed(kind, &reason)),
    }
}

/// Returns the parts of a batch that have not ended, in the order in which they have joined.
pub(crate) fn open_parts(image: &Image, number: u64) -> Result<Vec<BatchRecord>> {
    let mut records = image.batches()?;
    records.retain(|record| record.part_of() == Some(number) && record.is_open_part());
    Ok(records)
}

/// Adds the changes of a verified batch to the image, or prepares the batch if there is a marker.
fn end(
    image: &mut Image,
    records: &Records,
    verdicts: Verdicts,
    marker: Option<&Marker>,
) -> Result<BatchRecord> {
    // The batch may have been aborted meanwhile.
    let now = Records::read(image, records.batch.number)?;
    if !now.parts.iter().map(|part| part.number).eq(records.parts.iter().map(|part| part.number)) {
        return Err(busy("a part has joined the batch, or was discarded, during the commit; repeat it"));
    }
    let conflicts = verdicts.conflicts.count;
    if (now.batch.is_atomic || marker.is_some()) && conflicts > 0 {
        return Err(busy(&format!("the batch has {conflicts} conflicts, and is to be committed as a whole")));
    }
    match marker {
        Some(marker) => prepare(image, now.batch, verdicts, marker),
        None => {
            let Verdicts { mut addition, entries, conflicts, .. } = verdicts;
            // A batch whose parts were all discarded has no verdict.
            let usage = addition.usage.get_or_insert_default();
            image.check_limits(Some(records.batch.number), usage)?;
            add(image, now, addition, &entries, conflicts).map_err(of_file_system)
        }
    }
}

fn prepare(
    image: &mut Image,
    batch: BatchRecord,
    verdicts: Verdicts,
    marker: &Marker,
) -> Result<BatchRecord> {
    let Verdicts { addition, entries, mut dirs, accesses, .. } = verdicts;
    dirs.extend(accesses);
    let Addition { tables, mut changed_dirs, usage } = addition;
    for list in [&mut dirs, &mut changed_dirs] {
        list.sort_unstable();
        list.dedup();
    }
    check_reserved_dirs(image, &batch, dirs.len() + changed_dirs.len())?;
    let prepared = Prepared { marker: marker.clone(), entries, tables, changed_dirs, dirs };
    let record = BatchRecord { state: BatchState::Prepared(Box::new(prepared)), ..batch };
    let usage = usage.unwrap_or_default();
    image.check_limits(Some(record.number), &usage)?;
    image.prepare(&record, &usage).map_err(of_file_system)?;
    Ok(record)
}

/// Checks the number of directories that all prepared batches of the user reserve, with those of
/// this batch.
fn check_reserved_dirs(image: &Image, batch: &BatchRecord, dirs: usize) -> Result<()> {
    let failed = |kind, reason: String| {
        let error = Error::new(kind, "prepare batch", batch.number.to_string());
        Err(Error { source: Some(reason.into()), ..error })
    };
    if dirs > RESERVED_DIRS_MAX {
        let reason = format!(
            "the batch depends on more than {RESERVED_DIRS_MAX} existing directories, so it cannot be committed \
             with a transaction of blobs"
        );
        return failed(ErrorKind::NoSpace, reason);
    }
    let records = image.batches()?;
    let of_user = records.iter().filter(|other| other.caller.uid == batch.caller.uid);
    if dirs + of_user.map(BatchRecord::reserved_dirs).sum::<usize>() > RESERVED_DIRS_MAX {
        let reason = format!(
            "this batch and the prepared batches of the user would reserve more than {RESERVED_DIRS_MAX} \
             directories; end the prepared batches with \"quell batch commit\" or \"quell batch abort\""
        );
        return failed(ErrorKind::Busy, reason);
    }
    Ok(())
}

/// Adds the changes of a batch that is prepared with this marker to the image. A batch that is
/// committed already is returned.
///
/// # Errors
/// As for [`Primary::publish`](crate::Primary::publish).
pub(crate) fn publish(image: &mut Image, number: u64, marker: &str) -> Result<BatchRecord> {
    let (batch, prepared) = match prepared_batch(image, number, marker)? {
        (batch, Some(prepared)) => (batch, prepared),
        (batch, None) => match batch.state {
            BatchState::Committed { .. } => return Ok(batch),
            _ => return Err(ended("it is not prepared")),
        },
    };
    let parts = if batch.has_parts() { open_parts(image, number)? } else { Vec::new() };
    let Prepared { entries, tables, changed_dirs, .. } = prepared;
    let addition = Addition { tables, changed_dirs, usage: image.prepared_usage(number)? };
    add(image, Records { batch, parts }, addition, &entries, Conflicts::default())
}

/// Makes a batch that is prepared with this marker an open one again. A batch that is open already
/// is returned.
///
/// # Errors
/// As for [`Primary::roll_back`](crate::Primary::roll_back).
pub(crate) fn roll_back(image: &mut Image, number: u64, marker: &str) -> Result<BatchRecord> {
    let (batch, prepared) = match prepared_batch(image, number, marker)? {
        (batch, Some(prepared)) => (batch, prepared),
        (batch, None) => match batch.state {
            BatchState::Open => return Ok(batch),
            _ => return Err(ended("it is not prepared")),
        },
    };
    let open = BatchRecord { state: BatchState::Open, ..batch };
    image.roll_back(&open, &prepared.tables)?;
    Ok(open)
}

/// Returns the record of a batch, and the prepared changes if it is prepared.
///
/// # Errors
/// `NotFound` if there is no such batch; `Busy` if it is prepared with another marker than that
/// whose name is `marker`.
fn prepared_batch(image: &Image, number: u64, marker: &str) -> Result<(BatchRecord, Option<Prepared>)> {
    let Some(record) = image.batch(number)? else {
        return Err(Error::new(ErrorKind::NotFound, "find batch", number.to_string()));
    };
    match &record.state {
        BatchState::Prepared(prepared) if prepared.marker.blob == marker => {
            let prepared = (**prepared).clone();
            Ok((record, Some(prepared)))
        }
        BatchState::Prepared(_) => {
            Err(busy("it is prepared by another commit, whose transaction of blobs decides about it"))
        }
        _ => Ok((record, None)),
    }
}

/// Adds the changes of a batch to the image. `entries` has the number of new entries of the batch,
/// or of each part.
fn add(
    image: &mut Image,
    records: Records,
    addition: Addition,
    entries: &[u64],
    conflicts: Conflicts,
) -> Result<BatchRecord> {
    let state = BatchState::Committed { entries: entries.iter().sum(), conflicts };
    // The snapshot is not needed any more.
    let mut ended = vec![BatchRecord { state, snapshot: Vec::new(), ..records.batch }];
    for (part, entries) in records.parts.into_iter().zip(entries) {
        ended.push(end_part(part, PartState::Committed { entries: *entries }));
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
    failed(ErrorKind::Busy, reason)
}

pub(crate) fn ended(reason: &str) -> Error {
    failed(ErrorKind::InvalidInput, reason)
}

fn failed(kind: ErrorKind, reason: &str) -> Error {
    Error { source: Some(reason.to_owned().into()), ..Error::new(kind, "commit a batch", "") }
}
