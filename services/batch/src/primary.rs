//! The primary server of a store: the master image, and the batches over it.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_kv::KeyValue;
use quell_vfs::{Error, ErrorKind, Kind, Result, Time};

use crate::auxiliary::Auxiliary;
use crate::batch::{BatchCaller, BatchRecord, BatchState, Conflict, Conflicts, Marker};
use crate::certificate::Certificate;
use crate::check::{Checked, Problem, check};
use crate::commit::{Rules, SubmittedChanges, commit, ended, open_batch, open_parts, publish, roll_back};
use crate::commit_locks::{CommitGuard, CommitLocks};
use crate::conflict_list;
use crate::entries::Entries;
use crate::entry::{AdoptedFile, Content, DEPTH_MAX, DataFile, Entry, Inode, ROOT, damaged};
use crate::files::TableFiles;
use crate::image::Image;
use crate::key::{Key, split};
use crate::limits::{LimitChange, Quota, QuotaSubject};
use crate::master_image::{MasterImage, PartitionCounters, PartitionServers};
use crate::merge::Merge;
use crate::name_space::NameSpace;
use crate::names::{Names, Place};
use crate::open_snapshots::OpenSnapshots;
use crate::partition::PartitionMap;
use crate::parts::{NewPart, abort, abort_part, join};
use crate::private::PrivateEntries;
use crate::readable::{EntriesOf, ListedEntries, readable_entries};
use crate::snapshots::{SnapshotSummary, summaries};
use crate::submitted::open_submitted;
use crate::table::{Table, TableWriter};
use crate::table_ref::TableRef;
use crate::user_names::{UserNames, check_changes_names};
use crate::view::watchable;

/// The number of inode numbers of a batch.
const INODES_OF_BATCH: u64 = 1 << 32;
/// The largest number of open batches of each user other than the owner of the store.
const BATCHES_OF_USER_MAX: usize = 64;
/// The largest length of the reason for which a batch was refused, in bytes.
const REASON_BYTES_MAX: usize = 1000;

/// The primary server of a store.
#[derive(Debug)]
pub struct Primary {
    image: MasterImage,
    commits: CommitLocks,
    /// The snapshots that clients read by requests.
    snapshots: Box<OpenSnapshots>,
    rules: Rules,
}

/// Receives a data file, and the directory and the name of its inode.
pub type DataFileVisitor<'a> = dyn FnMut(DataFile, (u64, &[u8])) + 'a;

/// The present state of a file of the adopted tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedFile {
    /// The path, the inode number, the size and the times of the file.
    pub file: AdoptedFile,
    /// `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// A batch to begin.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// The name that the user gives it.
    pub name: String,
    /// The user.
    pub caller: BatchCaller,
    /// The directory that it may change, with everything below it.
    pub subtree: u64,
    /// Whether all of its operations are to be committed, or none.
    pub is_atomic: bool,
}

fn system_time() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

impl Primary {
    /// Opens the image of a store.
    ///
    /// # Errors
    /// As for [`Image::open`].
    pub fn open(store: Arc<dyn KeyValue>, files: Arc<dyn TableFiles>) -> Result<Primary> {
        let image = MasterImage::new(Image::open(store, files)?);
        let (commits, snapshots) = (CommitLocks::default(), Box::default());
        Ok(Primary { image, commits, snapshots, rules: Rules { clock: system_time, private_to: None } })
    }

    /// Sets the clock with which the times that batches state are compared. By default it is the
    /// clock of the system.
    pub fn with_clock(self, clock: fn() -> Time) -> Primary {
        Primary { rules: Rules { clock, ..self.rules }, ..self }
    }

    /// Makes the store a private one: users other than `owner` can read and change only the entries
    /// that their permissions allow them to read.
    pub fn private_to(self, owner: u32) -> Primary {
        Primary { rules: Rules { private_to: Some(owner), ..self.rules }, ..self }
    }

    /// Sets the partition servers of the store. A directory is divided into partitions after
    /// `creations` creations in it; 0: never. The times of a divided directory can be outdated by
    /// `times_kept`.
    pub fn with_partition_servers(
        self,
        servers: Box<dyn PartitionServers>,
        creations: u64,
        times_kept: Duration,
    ) -> Primary {
        Primary { image: self.image.with_servers(servers, creations, times_kept), ..self }
    }

    /// Makes operations leave merges of tables to a thread that calls
    /// [`merge_tables`](Self::merge_tables) when [`needs_merge`](Self::needs_merge) returns true.
    pub fn merge_separately(&self) {
        self.image.merge_separately();
    }

    /// Returns whether an operation has added a table, and tables can be merged.
    pub fn needs_merge(&self) -> bool {
        self.image.needs_merge()
    }

    /// Merges tables, while other operations continue.
    ///
    /// # Errors
    /// The errors of files and commits. Then the image is as before, and a later operation, which
    /// adds another table, repeats the merge.
    pub fn merge_tables(&self) -> Result<()> {
        self.image.merge()
    }

    /// Returns the directories that have partitions.
    pub fn divided_dirs(&self) -> Vec<u64> {
        self.image.divided_dirs()
    }

    /// Takes back the partitions of a directory, without the changes of the servers that cannot
    /// return them.
    ///
    /// # Errors
    /// The errors of files.
    pub fn give_up_partitions(&self, dir: u64) -> Result<()> {
        self.image.give_up(dir)
    }

    /// Takes back the partitions of a directory.
    ///
    /// # Errors
    /// The errors of partition servers and of files.
    pub fn take_back(&self, dir: u64) -> Result<()> {
        self.image.take_back(dir)
    }

    /// Takes back all partitions.
    ///
    /// # Errors
    /// As for [`take_back`](Self::take_back).
    pub fn take_back_all(&self) -> Result<()> {
        self.image.take_back_all()
    }

    /// Waits until a directory is not being divided, and its partitions are not being taken back.
    ///
    /// # Errors
    /// `Unavailable` if the store has no partition servers.
    pub fn await_division(&self, dir: u64) -> Result<()> {
        self.image.await_division(dir)
    }

    /// Returns the servers of a directory if a partition server executes the operations on this
    /// name.
    ///
    /// # Errors
    /// The errors of reads.
    pub fn servers_of(&self, dir: u64, name: &[u8]) -> Result<Option<PartitionMap>> {
        self.image.servers_of(dir, name)
    }

    /// Returns the counters of the divisions of directories.
    pub fn partition_counters(&self) -> PartitionCounters {
        self.image.counters()
    }

    /// Returns the master image, for synchronous operations.
    pub fn name_space(&self) -> Arc<dyn NameSpace> {
        Arc::new(self.image.clone())
    }

    /// Returns the master image for a user whose client is not trusted. `stated` is the present
    /// time by the clock of the client, for a change of an inode.
    pub fn name_space_of(&self, caller: &BatchCaller, stated: Option<Time>) -> Arc<dyn NameSpace> {
        let reads = self.rules.reads_of(caller);
        Arc::new(UserNames::new(self.image.shared().clone(), caller.clone(), reads, stated))
    }

    /// Returns entries of the snapshot of an open batch that its user may read.
    ///
    /// # Errors
    /// `NotFound` if there is no batch of this number; `Stale` if it has ended; the errors of
    /// tables.
    pub fn entries_of_snapshot(&self, batch: u64, dir: u64, of: &EntriesOf) -> Result<ListedEntries> {
        let record = self.batch(batch)?;
        if record.state.has_ended() {
            self.snapshots.remove(batch);
            return Err(Error::new(ErrorKind::Stale, "read the snapshot of batch", batch.to_string()));
        }
        let snapshot = match self.snapshots.get(batch) {
            Some(snapshot) => snapshot,
            None => {
                let names = self.image.read();
                let snapshot = names.0.open_tables(&record.snapshot)?;
                self.snapshots.insert(batch, snapshot.clone(), &names.0.batches()?);
                snapshot
            }
        };
        readable_entries(&snapshot, &record.caller, dir, of)
    }

    /// Begins a batch of a user whose client is not trusted, as [`begin`](Self::begin) does. While
    /// the batch is open, others cannot begin a batch in its tree, so the user must have the
    /// permission to change the directory.
    ///
    /// # Errors
    /// `PermissionDenied` without this permission; `Busy` also for the 65th open batch of the user;
    /// as for [`begin`](Self::begin).
    pub fn begin_of_user(&self, new: NewBatch) -> Result<BatchRecord> {
        const OPERATION: &str = "begin a batch";
        let mut names = self.image.write_complete()?;
        check_changes_names(&names, &new.caller, new.subtree, OPERATION)?;
        let batches = names.0.batches()?;
        let of_user =
            |record: &&BatchRecord| record.caller.uid == new.caller.uid && !record.state.has_ended();
        if batches.iter().filter(of_user).count() >= BATCHES_OF_USER_MAX {
            let source = Some("the user has 64 open batches; commit or abort one of them".into());
            return Err(Error { source, ..Error::new(ErrorKind::Busy, OPERATION, "") });
        }
        begin(&mut names, new, INODES_OF_BATCH)
    }

    /// Begins a batch on a snapshot of the image.
    ///
    /// # Errors
    /// `Busy` if another open batch changes the subtree, a part of it, or a tree that contains it;
    /// `Stale` if the subtree does not exist; the errors of files and commits.
    pub fn begin(&self, new: NewBatch) -> Result<BatchRecord> {
        begin(&mut *self.image.write_complete()?, new, INODES_OF_BATCH)
    }

    /// Begins a batch that consists of parts, as [`begin`](Self::begin) does.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    pub fn begin_for_parts(&self, new: NewBatch) -> Result<BatchRecord> {
        begin(&mut *self.image.write_complete()?, new, 0)
    }

    /// Adds a part to an open batch that was begun for parts.
    ///
    /// # Errors
    /// `NotFound` if there is no such batch; `InvalidInput` if it is not open, or was not begun for
    /// parts; `PermissionDenied` if it belongs to another user; `NoSpace` if it has too many parts;
    /// the errors of files and commits.
    pub fn join(&self, new: NewPart) -> Result<BatchRecord> {
        join(&mut self.image.write().0, new, INODES_OF_BATCH)
    }

    /// Returns the parts of a batch that were not discarded or committed, in the order in which
    /// they have joined.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub fn open_parts(&self, number: u64) -> Result<Vec<BatchRecord>> {
        open_parts(&self.image.read().0, number)
    }

    /// Returns the private name space of a batch, whose tables are in `files`. Only one process at
    /// a time may have it open. It keeps changes of about `memory_bytes` in memory, normally
    /// [`MEMORY_BYTES`](crate::MEMORY_BYTES).
    ///
    /// # Errors
    /// The errors of the tables of the snapshot.
    pub fn private(
        &self,
        record: &BatchRecord,
        files: Arc<dyn TableFiles>,
        memory_bytes: usize,
    ) -> Result<Names<PrivateEntries>> {
        let names = self.image.read();
        let snapshot = names.0.open_tables(&record.snapshot)?;
        let cache = names.0.cache().clone();
        Ok(Names(PrivateEntries::new(snapshot, record.inodes.clone(), files, cache, memory_bytes)))
    }

    /// Opens the tables that a batch has submitted, or its log as the tables of the entries that
    /// its operations make. They are not verified.
    ///
    /// # Errors
    /// `InvalidInput` or `Damaged` if the files do not match the certificate; the errors of files.
    pub fn submitted_tables(
        &self,
        record: &BatchRecord,
        certificate: &Certificate,
        files: &dyn TableFiles,
    ) -> Result<Vec<Arc<Table>>> {
        let names = self.image.read();
        let snapshot = names.0.open_tables(&record.snapshot)?;
        let reads = self.rules.reads_of(&record.caller);
        open_submitted(record, reads, certificate, &snapshot, files, names.0.cache())
    }

    /// Waits until no other thread commits or aborts the batch, and makes other threads wait until
    /// the guard is dropped.
    pub fn lock_commit(&self, batch: u64) -> CommitGuard<'_> {
        self.commits.lock(batch)
    }

    /// Takes the lock of a batch as [`lock_commit`](Self::lock_commit) does, or returns `None` if
    /// another thread has it.
    pub fn try_lock_commit(&self, batch: u64) -> Option<CommitGuard<'_>> {
        self.commits.try_lock(batch)
    }

    /// Verifies a batch and adds its changes to the image.
    ///
    /// # Errors
    /// `NotFound` if there is no such batch; `InvalidInput` if it is refused, or not open any more;
    /// `Busy` for an atomic batch with conflicts, and `Quota` if a limit of the use would be
    /// exceeded: the batch stays open; the errors of files and commits.
    pub fn commit(
        &self,
        number: u64,
        certificate: &Certificate,
        files: &dyn TableFiles,
    ) -> Result<BatchRecord> {
        self.commit_with(&self.lock_commit(number), &|_, visit| visit(certificate, files))
    }

    /// As [`commit`](Self::commit), for a thread that has the lock of the batch. `changes` finds
    /// the certificate and the tables of the batch, or of each of its parts.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit), and the errors of `changes`.
    pub fn commit_with(
        &self,
        guard: &CommitGuard<'_>,
        changes: &SubmittedChanges<'_>,
    ) -> Result<BatchRecord> {
        commit(&self.image, guard.batch(), changes, None, self.rules, None)
    }

    /// As [`commit_with`](Self::commit_with), but an auxiliary server verifies the batch if there
    /// is one. `changes` is used only if this process verifies the batch itself.
    ///
    /// # Errors
    /// As for [`commit_with`](Self::commit_with).
    pub fn commit_by(
        &self,
        auxiliary: &dyn Auxiliary,
        guard: &CommitGuard<'_>,
        changes: &SubmittedChanges<'_>,
    ) -> Result<BatchRecord> {
        commit(&self.image, guard.batch(), changes, Some(auxiliary), self.rules, None)
    }

    /// Verifies a batch as [`commit_by`](Self::commit_by) does, and prepares it: its tables and its
    /// record become durable. Then [`publish`](Self::publish) adds its changes to the image, or
    /// [`roll_back`](Self::roll_back) makes it an open batch again, also after a crash. Until then,
    /// changes of the directories on which the verification depends fail with `Busy`. A batch that
    /// is prepared with this marker already is returned.
    ///
    /// # Errors
    /// As for [`commit_with`](Self::commit_with); `InvalidInput` also for a submitted batch; `Busy`
    /// also for a batch with conflicts that is not atomic, if the batch or another prepared batch
    /// depends on a directory that the other one changes, and if the prepared batches of the user
    /// would reserve too many directories; `NoSpace` if the batch alone depends on too many. Then
    /// the batch is as before; after an error of the last commit of the key-value store, it can be
    /// prepared.
    pub fn prepare_by(
        &self,
        auxiliary: &dyn Auxiliary,
        guard: &CommitGuard<'_>,
        changes: &SubmittedChanges<'_>,
        marker: &Marker,
    ) -> Result<BatchRecord> {
        commit(&self.image, guard.batch(), changes, Some(auxiliary), self.rules, Some(marker))
    }

    /// Adds the changes of a prepared batch to the image. The transaction of its marker, whose name
    /// is `marker`, must be committed. A batch that is committed already is returned.
    ///
    /// # Errors
    /// `NotFound` if there is no such batch; `Busy` if it is prepared with another marker;
    /// `InvalidInput` if it is neither prepared nor committed; the errors of files and commits.
    /// Then the batch is still prepared.
    pub fn publish(&self, guard: &CommitGuard<'_>, marker: &str) -> Result<BatchRecord> {
        publish(&mut self.image.write_complete()?.0, guard.batch(), marker)
    }

    /// Makes a prepared batch an open one again. It must be impossible that the transaction of its
    /// marker, whose name is `marker`, is committed. A batch that is open already is returned.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish); `InvalidInput` if the batch is neither prepared nor open.
    pub fn roll_back(&self, guard: &CommitGuard<'_>, marker: &str) -> Result<BatchRecord> {
        roll_back(&mut self.image.write().0, guard.batch(), marker)
    }

    /// Marks a batch as submitted: it is to be committed before the image is used the next time.
    /// Its tables and its certificate must survive a power failure.
    ///
    /// # Errors
    /// As for [`abort`](Self::abort).
    pub fn submit(&self, number: u64) -> Result<BatchRecord> {
        // From now on, operations wait for the commit, also those of partition servers.
        let mut names = self.image.write_complete()?;
        let open = open_batch(&names.0, number)?;
        if let BatchState::Submitted { .. } = open.state {
            return Ok(open);
        }
        let submitted = submitted_in_order(&names.0)?;
        let order = submitted.last().map_or(1, |(last, _)| last + 1);
        let record = BatchRecord { state: BatchState::Submitted { order }, ..open };
        names.0.put_batch(&record)?;
        Ok(record)
    }

    /// Returns the numbers of the batches that were submitted and are not committed yet, in their
    /// order.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub fn submitted(&self) -> Result<Vec<u64>> {
        let submitted = submitted_in_order(&self.image.read().0)?;
        Ok(submitted.into_iter().map(|(_, number)| number).collect())
    }

    /// Records that a submitted batch could not be committed. It can be committed again, or
    /// aborted.
    ///
    /// # Errors
    /// As for [`abort`](Self::abort).
    pub fn refuse(&self, number: u64, reason: &str) -> Result<()> {
        let mut names = self.image.write();
        let open = open_batch(&names.0, number)?;
        let mut reason = reason.to_owned();
        while reason.len() > REASON_BYTES_MAX {
            reason.pop();
        }
        names.0.put_batch(&BatchRecord { state: BatchState::Refused { reason }, ..open })
    }

    /// Passes the conflicts of a batch that were not resolved to `visit`.
    ///
    /// # Errors
    /// `NotFound` if there is no such batch; `InvalidInput` if it is not committed; `Damaged`; the
    /// errors of files and of `visit`.
    pub fn conflicts(&self, number: u64, visit: &mut dyn FnMut(Conflict) -> Result<()>) -> Result<()> {
        self.conflicts_from(number, 0, &mut |conflict| visit(conflict).map(|()| true))
    }

    /// Passes the conflicts from the position `from` in the list of a batch to `visit`, until it
    /// returns false.
    ///
    /// # Errors
    /// As for [`conflicts`](Self::conflicts).
    pub fn conflicts_from(
        &self,
        number: u64,
        from: u64,
        visit: &mut dyn FnMut(Conflict) -> Result<bool>,
    ) -> Result<()> {
        let (list, files, _pins) = {
            let names = self.image.read();
            let list = conflicts_of(&names.0, number)?.1;
            let pins = names.0.pin_tables(list.tables.iter().map(|table| table.number));
            (list, names.0.files().clone(), pins)
        };
        conflict_list::visit(&list, from, &*files, visit)
    }

    /// Removes the conflicts for which `is_resolved` returns true from the list of a batch. The
    /// lock of the batch prevents other changes of the list.
    ///
    /// # Errors
    /// As for [`conflicts`](Self::conflicts). Then the list is as before.
    pub fn remove_conflicts(
        &self,
        guard: &CommitGuard<'_>,
        is_resolved: &mut dyn FnMut(&Conflict) -> bool,
    ) -> Result<()> {
        let (record, list, files) = {
            let names = self.image.read();
            let (record, list) = conflicts_of(&names.0, guard.batch())?;
            (record, list, names.0.files().clone())
        };
        let BatchState::Committed { entries, .. } = record.state else {
            return Err(ended("it is not committed"));
        };
        // The new list is written without the lock of the image, for which all operations wait.
        let mut left = Conflicts::default();
        let mut writer = None;
        conflict_list::visit(&list, 0, &*files, &mut |conflict| {
            if is_resolved(&conflict) {
                return Ok(true);
            }
            if writer.is_none() {
                let mut names = self.image.write();
                let number = names.0.reserve_tables(1)?;
                let pin = names.0.pin_tables([number]);
                drop(names);
                writer = Some((number, pin, TableWriter::new(files.create(number)?)));
            }
            let (_, _, writer) = writer.as_mut().expect("it was set above");
            writer.add(&conflict_list::key(left.count), &conflict_list::encode(&conflict))?;
            left.count += 1;
            Ok(true)
        })?;
        let mut pin = None;
        if let Some((number, pinned, writer)) = writer {
            left.tables.push(TableRef::new(number, &writer.finish_synced(&*files, number)?));
            files.sync()?;
            pin = Some(pinned);
        }
        let state = BatchState::Committed { entries, conflicts: left };
        let mut names = self.image.write();
        names.0.put_batch(&BatchRecord { state, ..record })?;
        drop(pin); // the record refers to the table
        let unused = list.tables.iter().filter(|table| !names.0.is_pinned(table.number));
        for table in unused {
            // The list is changed. A table that remains is removed as garbage.
            let _ = files.remove(table.number);
        }
        Ok(())
    }

    /// Discards the changes of a batch and its parts, or of one part.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit); `InvalidInput` also for a part of a submitted batch.
    pub fn abort(&self, number: u64) -> Result<BatchRecord> {
        let mut names = self.image.write();
        match names.0.batch(number)? {
            Some(part) if part.part_of().is_some() => abort_part(&mut names.0, part),
            _ => abort(&mut names.0, number),
        }
    }

    /// Returns the use and the limit of the whole store, the limit for each user, and then the use
    /// and the limit of each user with inodes or an individual limit, in the order of the users.
    /// The use includes that of partitions.
    ///
    /// # Errors
    /// The errors of partition servers and of files.
    pub fn quotas(&self) -> Result<Vec<Quota>> {
        Ok(self.image.write_complete()?.0.quotas())
    }

    /// Changes a limit of the use. A limit below the present use refuses increases only.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of root, and if too many users have limits of their own; the
    /// errors of files and commits. Then the limits are as before.
    pub fn set_limit(&self, subject: QuotaSubject, change: LimitChange) -> Result<()> {
        self.image.write_complete()?.0.set_limit(subject, change)
    }

    /// Returns the record of a batch.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`; the errors of reads.
    pub fn batch(&self, number: u64) -> Result<BatchRecord> {
        let found = self.image.read().0.batch(number)?;
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, "find batch", number.to_string()))
    }

    /// Returns the record of an open batch, or of an open part of one, to watch it.
    ///
    /// # Errors
    /// `NotFound` if there is no open batch of this number; `InvalidInput` if the batch has parts;
    /// `Damaged`; the errors of reads.
    pub fn watchable_batch(&self, number: u64) -> Result<BatchRecord> {
        watchable(self.image.read().0.batch(number)?, number)
    }

    /// Returns the records of all batches, in the order in which they began.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub fn batches(&self) -> Result<Vec<BatchRecord>> {
        self.image.read().0.batches()
    }

    /// Returns the snapshots of the open batches, in the order in which they began.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub fn snapshots(&self) -> Result<Vec<SnapshotSummary>> {
        let (image, batches, files) = {
            let names = self.image.read();
            (names.0.tables().to_vec(), names.0.batches()?, names.0.files().clone())
        };
        summaries(&image, &batches, &*files)
    }

    /// Checks the entries of the image, and passes each problem to `report`. If `repairs` is set,
    /// the problems that can be corrected are corrected. Other operations wait meanwhile.
    ///
    /// # Errors
    /// `Damaged` if a table cannot be read; the errors of files and commits.
    pub fn check(&self, repairs: bool, report: &mut dyn FnMut(&Problem)) -> Result<Checked> {
        check(&mut self.image.write_complete()?.0, repairs, report)
    }

    /// Passes each data file to which the image or the snapshot of an open batch refers to `visit`,
    /// with the directory and the name of the inode.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub fn data_files(&self, visit: &mut DataFileVisitor<'_>) -> Result<()> {
        let names = self.image.write_complete()?;
        visit_data_files(names.0.entries()?, visit)?;
        for batch in names.0.batches()? {
            // A part has the snapshot of its batch.
            if !batch.state.has_ended() && batch.part_of().is_none() {
                let snapshot = names.0.open_tables(&batch.snapshot)?;
                visit_data_files(Merge::new(snapshot.sources().collect())?, visit)?;
            }
        }
        Ok(())
    }

    /// Returns the first files of the adopted tree, at most `max`, to which the image refers after
    /// the entry `after`, with the keys of their entries.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub fn adopted_files(&self, after: &[u8], max: usize) -> Result<Vec<(Key, AdoptedFile)>> {
        let names = self.image.write_complete()?;
        let mut entries = names.0.entries_after(after)?;
        let mut found = Vec::new();
        while found.len() < max
            && let Some((key, value)) = entries.next()?
        {
            if let (false, Some((dir, name))) = (value.is_empty(), split(key))
                && let Entry::Inode(Inode { content: Content::Adopted(file), .. }) = Entry::decode(value)?
            {
                found.push((Key::of_name(dir, name), *file));
            }
        }
        Ok(found)
    }

    /// Accepts the present state of a file of the adopted tree: its size, times, owner, group and
    /// permissions are copied to the inode at `key`, unless the content of the inode is not
    /// `before` any more. The set-id bits are removed, because another user may have written the
    /// bytes.
    ///
    /// # Errors
    /// The errors of reads and commits.
    pub fn accept_adopted(&self, key: &Key, before: &AdoptedFile, accepted: AcceptedFile) -> Result<()> {
        const SET_ID: u32 = 0o6000;
        let AcceptedFile { file: present, mode, uid, gid } = accepted;
        let mut names = self.image.write_complete()?;
        let Some(Entry::Inode(mut inode)) = names.0.get(key)? else { return Ok(()) };
        if !matches!(&inode.content, Content::Adopted(file) if **file == *before) {
            return Ok(());
        }
        if before.modified != present.modified {
            inode.modified = present.modified;
        }
        (inode.size_bytes, inode.changed) = (present.size_bytes, present.changed);
        (inode.uid, inode.gid) = (uid, gid);
        inode.mode = Kind::File.mode_bits() | (mode & 0o7777 & !SET_ID);
        inode.content = Content::Adopted(Box::new(present));
        // The file has this size already, also if it is beyond a limit.
        names.0.apply_without_limits(vec![(key.clone(), Some(Entry::Inode(inode)))])
    }

    /// Returns the numbers of the tables that neither the image nor an open batch uses.
    ///
    /// # Errors
    /// The errors of files.
    pub fn unused_tables(&self) -> Result<Vec<u64>> {
        self.image.read().0.unused_tables()
    }

    /// Returns the random number of the store.
    pub fn store_number(&self) -> u128 {
        self.image.read().0.store_number()
    }
}

fn begin(names: &mut Names<Image>, new: NewBatch, inodes: u64) -> Result<BatchRecord> {
    names.inode(&Place::Dir(new.subtree))?;
    for other in names.0.batches()? {
        let overlaps = || -> Result<bool> {
            Ok(is_within(names, new.subtree, other.subtree)? || is_within(names, other.subtree, new.subtree)?)
        };
        if !other.state.has_ended() && overlaps()? {
            let state = match other.state {
                BatchState::Refused { .. } => {
                    "was submitted and refused, and changes a part of this tree; commit or abort it"
                }
                BatchState::Prepared(_) => "is prepared, and changes a part of this tree; commit or abort it",
                _ => "is open and changes a part of this tree",
            };
            let reason = format!("batch {} ({}) {state}", other.number, other.name);
            return Err(Error {
                source: Some(reason.into()),
                ..Error::new(ErrorKind::Busy, "begin a batch", "")
            });
        }
    }
    let (snapshot, _) = names.0.snapshot()?;
    let NewBatch { name, caller, subtree, is_atomic } = new;
    let record = |number, inodes: Range<u64>| BatchRecord {
        number,
        name,
        caller,
        inodes,
        snapshot,
        subtree,
        is_atomic,
        state: BatchState::Open,
    };
    names.0.add_batch(inodes, record)
}

/// Returns the submitted batches: their positions in the order, and their numbers.
fn submitted_in_order(image: &Image) -> Result<Vec<(u64, u64)>> {
    let of = |record: &BatchRecord| match record.state {
        BatchState::Submitted { order } => Some((order, record.number)),
        _ => None,
    };
    let mut submitted: Vec<(u64, u64)> = image.batches()?.iter().filter_map(of).collect();
    submitted.sort_unstable();
    Ok(submitted)
}

/// Returns the record of a committed batch, and the list of its conflicts.
fn conflicts_of(image: &Image, number: u64) -> Result<(BatchRecord, Conflicts)> {
    let Some(record) = image.batch(number)? else {
        return Err(Error::new(ErrorKind::NotFound, "find batch", number.to_string()));
    };
    match &record.state {
        BatchState::Committed { conflicts, .. } => {
            let conflicts = conflicts.clone();
            Ok((record, conflicts))
        }
        _ => {
            let source = Some("it is not committed".into());
            Err(Error {
                source,
                ..Error::new(ErrorKind::InvalidInput, "list the conflicts of batch", number.to_string())
            })
        }
    }
}

fn visit_data_files(mut entries: Merge<'_>, visit: &mut DataFileVisitor<'_>) -> Result<()> {
    while let Some((key, value)) = entries.next()? {
        if let (false, Some(place)) = (value.is_empty(), split(key))
            && let Entry::Inode(Inode { content: Content::File(file), .. }) = Entry::decode(value)?
        {
            visit(file, place);
        }
    }
    Ok(())
}

/// Returns whether a directory is `above`, or below it.
fn is_within(names: &Names<Image>, mut dir: u64, above: u64) -> Result<bool> {
    for _ in 0..=DEPTH_MAX {
        if dir == above {
            return Ok(true);
        }
        if dir == ROOT {
            return Ok(false);
        }
        match names.parent(dir) {
            Ok((parent, _)) => dir = parent,
            Err(error) if error.kind == ErrorKind::Stale => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Err(damaged("the path of a directory"))
}
