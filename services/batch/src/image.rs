//! The master image of a store: immutable tables, and the changes since the last of them in the
//! key-value store (decision 38).

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_kv::{Batch as Commit, KeyRange, KeyValue};
use quell_vfs::{Error, ErrorKind, NewEntry, Result, Time};

use crate::batch::{BatchRecord, BatchState};
use crate::compaction::{Compaction, MergedTables, TableRange, are_too_many, tables_to_merge};
use crate::entries::{Entries, KeyChange};
use crate::entry::{Entry, Inode, LINKED, damaged};
use crate::files::TableFiles;
use crate::image_copy::{ImageCopy, check_length_at_begin};
use crate::initial::InitialTables;
use crate::key::{Key, split};
use crate::limits::{LimitChange, Limits, Quota, QuotaSubject, of_file_system};
use crate::merge::{Merge, Source, list_merged};
use crate::names::Names;
use crate::partition::{
    Assignment, Assignments, NewAssignment, Obstacle, PartitionMap, ReturnedChanges, SlotPartitions,
};
use crate::pinned_tables::{PinnedTables, TablePins};
use crate::reservations::Reservations;
use crate::stored::{
    Description, ENTRY, IMAGE_KEY, Stored, VERSION, VERSION_WITH_ASSIGNMENTS, batch_key, decode,
    delete_assignment, delete_prepared_usage, encode, entry_key, prepared_usage, put_all_usage,
    put_assignment, put_entry, put_limits, put_prepared_usage, put_usage, read_assignments, read_batches,
    read_limits, read_usage, set_uncounted, sizes,
};
use crate::table::{BlockCache, TableWriter};
use crate::table_ref::{TableRef, batch_of_table};
use crate::table_set::{TableSet, open_table};
use crate::usage::{UsageChanges, UsageOfUsers};

/// The number of entries in the key-value store above which they become a table.
const ENTRIES_MAX: usize = 32 << 10;
/// The size of the entries in the key-value store above which they become a table, in bytes.
const ENTRIES_BYTES_MAX: usize = 12 << 20;
/// The number of inode numbers that are reserved at a time for synchronous operations.
const INODES_RESERVED: u64 = 1 << 20;

/// The number of directories whose last changes are kept in memory.
const CHANGED_DIRS_MAX: usize = 1 << 20;

/// The largest size of the descriptions of all assignments, in bytes. Each of them has the list of
/// tables.
const ASSIGNMENTS_BYTES_MAX: usize = 16 << 20;

/// The master image of a store. One process at a time has it open.
pub struct Image {
    store: Arc<dyn KeyValue>,
    files: Arc<dyn TableFiles>,
    cache: Arc<BlockCache>,
    description: Description,
    tables: TableSet,
    /// The inode numbers that are reserved for synchronous operations.
    inodes: Range<u64>,
    /// The number and the size of the entries in the key-value store.
    entries: usize,
    entries_bytes: usize,
    /// The number of the last change.
    change: u64,
    /// The last change of each directory after the change with the number `forgotten`: of its
    /// entries or attributes, and of the attributes that decide about the access to it.
    changed_dirs: HashMap<u64, u64>,
    changed_accesses: HashMap<u64, u64>,
    forgotten: u64,
    /// The directories and the use that prepared batches reserve.
    reservations: Reservations,
    pinned: PinnedTables,
    /// The use of each owner of inodes.
    usage: UsageOfUsers,
    /// The limits of the use.
    limits: Limits,
    /// The partitions of directories that partition servers have.
    assignments: Assignments,
    /// Set when there are tables to merge.
    is_compaction_due: Arc<AtomicBool>,
    /// Whether a thread is merging tables.
    is_being_merged: bool,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Image");
        shown.field("description", &self.description).field("entries", &self.entries).finish_non_exhaustive()
    }
}

/// The changes that a commit adds to the image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Addition {
    /// New tables in the directory of the image, the newest first.
    pub(crate) tables: Vec<TableRef>,
    /// The directories of the existing entries that the tables and the changes replace.
    pub(crate) changed_dirs: Vec<u64>,
    /// The changes of the use of users. `None` for a batch that an earlier version has prepared.
    pub(crate) usage: Option<UsageChanges>,
}

/// The effects of changes of entries.
#[derive(Debug, Default)]
struct Effects {
    /// The changes of the use of users.
    usage: UsageChanges,
    /// The directories with a change of an attribute that decides about the access to them.
    changed_accesses: Vec<u64>,
}

impl Image {
    /// Creates the image of a new store, with an empty root directory.
    ///
    /// # Errors
    /// `Exists` if the key-value store already has an image; the errors of commits.
    pub fn create(store: &dyn KeyValue, number: u128, root: NewEntry, now: Time) -> Result<()> {
        if store.get(IMAGE_KEY)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, "create a name space", ""));
        }
        let description = Description::new(number);
        let mut commit = Commit::new();
        commit.put(IMAGE_KEY, &encode(&description));
        let (key, root) = Names::<Image>::new_root(root, now);
        let mut usage = UsageChanges::default();
        root.iter().for_each(|root| usage.add(root));
        let counted = usage.applied_to(&UsageOfUsers::default()).into_iter().collect();
        put_all_usage(&mut commit, &UsageOfUsers::default(), &counted);
        put_entry(&mut commit, (key, root));
        store.commit(commit)?;
        store.sync()
    }

    /// Creates the image of a new store from initial entries, which include the root directory.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn create_with(store: &dyn KeyValue, number: u128, initial: InitialTables) -> Result<()> {
        if store.get(IMAGE_KEY)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, "create a name space", ""));
        }
        let InitialTables { tables, next_inode, next_table } = initial;
        let description = Description { tables, next_inode, next_table, ..Description::new(number) };
        let mut commit = Commit::new();
        commit.put(IMAGE_KEY, &encode(&description));
        store.commit(commit)?;
        store.sync()
    }

    /// Returns whether `store` has an image.
    ///
    /// # Errors
    /// The errors of reads.
    pub fn is_present(store: &dyn KeyValue) -> Result<bool> {
        Ok(store.get(IMAGE_KEY)?.is_some())
    }

    /// Returns whether the image can be rebuilt from the copy of its description. It cannot if it
    /// had no tables yet.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub fn can_be_rebuilt(files: &dyn TableFiles) -> Result<bool> {
        match files.copy()? {
            Some(copy) => Ok(!ImageCopy::decode(&copy)?.description.tables.is_empty()),
            None => Ok(false),
        }
    }

    /// Creates the image of a store whose key-value store was lost, from the copy of its
    /// description: all its tables, and its open batches. The changes since the last table are
    /// lost.
    ///
    /// # Errors
    /// `Exists` if `store` has an image; `NotFound` if there is no copy; `Damaged`; the errors of
    /// commits.
    pub fn rebuild(store: &dyn KeyValue, files: &dyn TableFiles) -> Result<()> {
        if store.get(IMAGE_KEY)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, "rebuild a name space", ""));
        }
        let copy =
            files.copy()?.ok_or_else(|| Error::new(ErrorKind::NotFound, "rebuild a name space", ""))?;
        let ImageCopy { description, batches, limits, assignments } = ImageCopy::decode(&copy)?;
        let mut commit = Commit::new();
        put_limits(&mut commit, &limits);
        assignments.iter().for_each(|assignment| put_assignment(&mut commit, assignment));
        commit.put(IMAGE_KEY, &encode(&description.after_loss()));
        for batch in batches {
            commit.put(&batch_key(batch.number), &encode(&batch));
        }
        store.commit(commit)?;
        store.sync()
    }

    /// Opens the image.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Damaged`; the errors of the tables.
    pub fn open(store: Arc<dyn KeyValue>, files: Arc<dyn TableFiles>) -> Result<Image> {
        let description = Description::read(&*store)?;
        let cache = Arc::new(BlockCache::default());
        let tables = TableSet::open(&*files, &cache, &description.tables)?;
        let (mut entries, mut entries_bytes) = (0, 0);
        store.scan(&KeyRange::prefix(&[ENTRY]), &mut |key, value| {
            entries += 1;
            entries_bytes += key.len() + value.len();
            true
        })?;
        let mut reservations = Reservations::default();
        for batch in read_batches(&*store)? {
            if let BatchState::Prepared(prepared) = &batch.state {
                let usage = prepared_usage(&*store, batch.number)?.unwrap_or_default();
                reservations.insert(batch.number, prepared, usage);
            }
        }
        let limits = read_limits(&*store)?;
        let assignments = Assignments::new(read_assignments(&*store)?);
        let usage = read_usage(&*store)?;
        let is_counted = usage.is_some();
        let mut image = Image {
            store,
            files,
            cache,
            tables,
            inodes: 0..0,
            entries,
            entries_bytes,
            change: 1,
            changed_dirs: HashMap::new(),
            changed_accesses: HashMap::new(),
            forgotten: 0,
            reservations,
            pinned: PinnedTables::default(),
            usage: usage.unwrap_or_default(),
            limits,
            assignments,
            description,
            is_compaction_due: Arc::default(),
            is_being_merged: false,
        };
        image.note_new_tables();
        image.refresh_copy()?;
        if !is_counted {
            image.recount_usage()?;
        }
        Ok(image)
    }

    /// Returns the random number of the store.
    pub fn store_number(&self) -> u128 {
        self.description.store
    }

    /// Returns the tables, the newest first.
    pub fn tables(&self) -> &[TableRef] {
        &self.description.tables
    }

    /// Returns the directory of the tables.
    pub(crate) fn files(&self) -> &Arc<dyn TableFiles> {
        &self.files
    }

    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// Waits until all changes survive a power failure.
    ///
    /// # Errors
    /// The errors of fsync(2); then each later change fails.
    pub(crate) fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    /// Returns the number of the last change.
    pub(crate) fn last_change(&self) -> u64 {
        self.change
    }

    /// Returns whether any of `dirs`, or the access to any of `accesses`, may have been changed
    /// after the change with this number.
    pub(crate) fn is_changed_since(&self, change: u64, dirs: &[u64], accesses: &[u64]) -> bool {
        let is_in = |changes: &HashMap<u64, u64>, dirs: &[u64]| {
            dirs.iter().any(|dir| changes.get(dir).is_some_and(|last| *last > change))
        };
        change < self.forgotten || is_in(&self.changed_dirs, dirs) || is_in(&self.changed_accesses, accesses)
    }

    /// Writes the entries of the key-value store as a table, and returns the whole image as tables.
    ///
    /// # Errors
    /// The errors of files and commits. Then the image is as before.
    pub(crate) fn snapshot(&mut self) -> Result<(Vec<TableRef>, TableSet)> {
        self.flush()?;
        Ok((self.description.tables.clone(), self.tables.clone()))
    }

    /// Prevents the removal of the files of tables until the returned value is dropped.
    pub(crate) fn pin_tables(&self, numbers: impl IntoIterator<Item = u64>) -> TablePins {
        self.pinned.pin(numbers)
    }

    /// Returns whether the file of a table must not be removed now.
    pub(crate) fn is_pinned(&self, number: u64) -> bool {
        self.pinned.contains(number)
    }

    /// Opens tables that a batch refers to. Those that the image still has are open already.
    ///
    /// # Errors
    /// The errors of the tables.
    pub(crate) fn open_tables(&self, tables: &[TableRef]) -> Result<TableSet> {
        let open = |table: &TableRef| match self.description.tables.iter().position(|known| known == table) {
            Some(at) => Ok(self.tables.table(at)),
            None => open_table(&*self.files, &self.cache, table),
        };
        tables.iter().map(open).collect::<Result<_>>().map(TableSet::new)
    }

    /// Returns the tables of the image in `store`, and all batches, without opening the image.
    ///
    /// # Errors
    /// `NotFound` if there is no image; `Damaged`.
    pub(crate) fn stored(store: &dyn KeyValue) -> Result<(Vec<TableRef>, Vec<BatchRecord>)> {
        let description = Description::read(store)?;
        Ok((description.tables, read_batches(store)?))
    }

    /// Returns the use of each owner of inodes.
    pub(crate) fn usage(&self) -> &UsageOfUsers {
        &self.usage
    }

    /// Returns the use and the limits, as [`Limits::quotas`] does.
    pub(crate) fn quotas(&self) -> Vec<Quota> {
        self.limits.quotas(&self.usage)
    }

    /// Changes a limit.
    ///
    /// # Errors
    /// As for [`Limits::changed`]; the errors of files and commits. Then the limits are as before.
    pub(crate) fn set_limit(&mut self, subject: QuotaSubject, change: LimitChange) -> Result<()> {
        let limits = self.limits.changed(subject, change)?;
        let copy = ImageCopy { limits: limits.clone(), ..self.copy_with(&self.description, &[])? };
        self.files.put_copy(&copy.encode())?;
        let mut commit = Commit::new();
        put_limits(&mut commit, &limits);
        if let Err(error) = self.store.commit(commit).and_then(|()| self.store.sync()) {
            // The next open replaces a copy with other limits, if this fails as well.
            let _ = self.write_copy(&self.description, &[]);
            return Err(error);
        }
        self.limits = limits;
        Ok(())
    }

    /// Checks that changes of the use remain within the limits. `by` is the batch whose changes
    /// they are; `None` for an operation that belongs to no batch.
    ///
    /// # Errors
    /// `Quota` if a limit would be exceeded.
    pub(crate) fn check_limits(&self, by: Option<u64>, changes: &UsageChanges) -> Result<()> {
        self.limits.check(changes, &self.usage, &|uid| self.reservations.usage(by, uid))
    }

    /// Computes the use of users from all entries, and stores it. Values that are not entries are
    /// not counted.
    ///
    /// # Errors
    /// The errors of reads and commits. Then the use is as before.
    pub(crate) fn recount_usage(&mut self) -> Result<()> {
        let mut changes = UsageChanges::default();
        let mut entries = self.entries()?;
        while let Some((key, value)) = entries.next()? {
            if let (false, Some(_), Ok(entry)) = (value.is_empty(), split(key), Entry::decode(value)) {
                changes.add(&entry);
            }
        }
        drop(entries);
        let counted: UsageOfUsers = changes.applied_to(&UsageOfUsers::default()).into_iter().collect();
        let mut commit = Commit::new();
        put_all_usage(&mut commit, &self.usage, &counted);
        self.store.commit(commit)?;
        self.store.sync()?;
        self.usage = counted;
        Ok(())
    }

    /// Returns the effects of changes of entries.
    fn effects_of(&self, changes: &[KeyChange]) -> Result<Effects> {
        // Of several changes of one key, the last one counts.
        let newest: HashMap<&Key, &Option<Entry>> = changes.iter().map(|(key, entry)| (key, entry)).collect();
        let mut effects = Effects::default();
        for (key, entry) in newest {
            // A value that is not an entry is not counted, and can be replaced.
            let before = self.value(key)?.and_then(|value| Entry::decode(&value).ok());
            before.iter().for_each(|before| effects.usage.remove(before));
            entry.iter().for_each(|entry| effects.usage.add(entry));
            if let Some((dir, b"")) = split(key.as_bytes())
                && is_access_changed(before.as_ref(), entry.as_ref())
            {
                effects.changed_accesses.push(dir);
            }
        }
        Ok(effects)
    }

    /// Returns the encoded entry of a key.
    fn value(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let found = match self.store.get(&entry_key(key.as_bytes()))? {
            Some(value) => Some(value.to_vec()),
            None => self.tables.get(key.as_bytes())?,
        };
        Ok(found.filter(|value| !value.is_empty()))
    }

    /// Returns all entries, in the order of their keys. An empty value is a removal.
    pub(crate) fn entries(&self) -> Result<Merge<'_>> {
        let mut sources: Vec<Box<dyn Source + '_>> = vec![Box::new(Stored::all(&*self.store))];
        sources.extend(self.tables.sources());
        Merge::new(sources)
    }

    /// Returns all entries after a key, as [`entries`](Self::entries) does.
    pub(crate) fn entries_after(&self, key: &[u8]) -> Result<Merge<'_>> {
        let mut sources: Vec<Box<dyn Source + '_>> = vec![Box::new(Stored::after(&*self.store, key))];
        sources.extend(self.tables.sources_after(key));
        Merge::new(sources)
    }

    /// Returns the number of the next new inode. No inode has this number or a greater one.
    pub(crate) fn next_inode(&self) -> u64 {
        self.description.next_inode
    }

    /// Makes all later inode numbers at least `next_inode`.
    pub(crate) fn raise_next_inode(&mut self, next_inode: u64) -> Result<()> {
        if next_inode <= self.description.next_inode {
            return Ok(());
        }
        let description = Description { next_inode, ..self.description.clone() };
        self.store_description(description, Commit::new())
    }

    /// Returns the assignments of all partitions.
    pub(crate) fn assignments(&self) -> &Assignments {
        &self.assignments
    }

    /// Checks that no other server changes names of the directory.
    ///
    /// # Errors
    /// [`Obstacle::AtOtherServer`].
    pub(crate) fn check_undivided(&self, dir: u64) -> Result<()> {
        match self.assignments.of_dir(dir) {
            [] => Ok(()),
            _ => Err(Obstacle::AtOtherServer { dir }.error()),
        }
    }

    /// Returns the servers of a directory if another server executes the operations on this name.
    /// The names of directories, and of files whose inodes are in directory 1, are not among them:
    /// only this server changes them.
    ///
    /// # Errors
    /// The errors of reads.
    pub(crate) fn servers_of(&self, dir: u64, name: &[u8]) -> Result<Option<PartitionMap>> {
        if self.assignments.of_name(dir, name).is_none()
            || self.own_entry(&Key::of_name(dir, name))?.is_some()
        {
            return Ok(None);
        }
        Ok(self.assignments.map_of(dir))
    }

    /// Returns the entry of a name in a partition of another server if only this server changes it.
    fn own_entry(&self, key: &Key) -> Result<Option<Entry>> {
        let entry = self.value(key)?.map(|value| Entry::decode(&value)).transpose()?;
        Ok(entry.filter(|entry| !matches!(entry, Entry::Inode(_))))
    }

    /// Assigns partitions of a directory to a server. `None` if the directory cannot be divided
    /// now: it was removed, a prepared batch depends on it, a submitted batch is not committed yet,
    /// a limit of the use is set, or the descriptions of assignments would become too long.
    ///
    /// # Errors
    /// The errors of files and commits.
    pub(crate) fn assign(
        &mut self,
        partitions: SlotPartitions,
        server: u32,
    ) -> Result<Option<NewAssignment>> {
        const INODES: u64 = 1 << 32;
        let dir = match self.get(&Key::of_dir(partitions.dir))? {
            Some(Entry::Inode(dir)) if partitions.dir != LINKED => dir,
            _ => return Ok(None),
        };
        if self.reservations.check(None, &[partitions.dir]).is_err() || !self.limits.is_empty() {
            return Ok(None);
        }
        if self.batches()?.iter().any(|batch| matches!(batch.state, BatchState::Submitted { .. })) {
            return Ok(None);
        }
        self.compact_if_too_many()?;
        let (tables, _) = self.snapshot()?;
        let mut description = self.description.clone();
        let start = description.next_inode;
        let end = start.checked_add(INODES).filter(|end| *end < 1 << 62);
        let Some(end) = end else {
            return Err(Error::new(ErrorKind::NoSpace, "reserve inode numbers", ""));
        };
        description.next_inode = end;
        description.version = VERSION_WITH_ASSIGNMENTS;
        let number = description.next_table;
        description.next_table += 1;
        let assignment = Assignment { number, server, partitions, tables, inodes: start..end };
        let mut commit = Commit::new();
        put_assignment(&mut commit, &assignment);
        let mut copy = self.copy_with(&description, &[])?;
        copy.assignments.push(assignment.clone());
        if encode(&copy.assignments).len() > ASSIGNMENTS_BYTES_MAX {
            return Ok(None);
        }
        self.files.put_copy(&copy.encode())?;
        self.store_description(description, commit)?;
        // After an error of the write-back, the next operation on these names takes them back.
        self.assignments.insert(assignment.clone());
        self.store.sync()?;
        Ok(Some(NewAssignment { assignment, dir }))
    }

    /// Ends an assignment, and adds the changes of its partitions to the image.
    ///
    /// # Errors
    /// `Damaged`; the errors of files and commits. Then the assignment has not ended.
    pub(crate) fn take_back(&mut self, assignment: &Assignment, returned: &ReturnedChanges) -> Result<()> {
        let dir = assignment.partitions.dir;
        if !self.assignments.of_dir(dir).contains(assignment) {
            return Ok(());
        }
        let mut tables = self.tables.clone();
        let mut description = self.description.clone();
        if let Some(table) = &returned.table {
            if table.number != assignment.number {
                return Err(damaged("the changes of a partition"));
            }
            tables.add(open_table(&*self.files, &self.cache, table)?);
            description.tables.insert(0, table.clone());
        }
        let mut copy = self.copy_with(&description, &[])?;
        copy.assignments.retain(|other| other.number != assignment.number);
        if copy.assignments.is_empty() {
            description.version = VERSION;
            copy.description.version = VERSION;
        }
        self.files.put_copy(&copy.encode())?;
        let mut commit = Commit::new();
        delete_assignment(&mut commit, assignment.number);
        let usage = returned.usage.as_ref().map(|usage| usage.applied_to(&self.usage));
        match &usage {
            Some(usage) => put_usage(&mut commit, usage),
            // If this process ends before it has counted, the next one counts.
            None => set_uncounted(&mut commit),
        }
        if let (Some(touched), Some(Entry::Inode(mut inode))) =
            (returned.touched, self.get(&Key::of_dir(dir))?)
        {
            inode.touch(touched);
            let change = (Key::of_dir(dir), Some(Entry::Inode(inode)));
            self.entries_bytes += sizes(std::slice::from_ref(&change));
            self.entries += 1;
            put_entry(&mut commit, change);
        }
        self.store_description(description, commit)?;
        self.tables = tables;
        self.note_new_tables();
        self.store.sync()?;
        self.assignments.remove(assignment);
        self.note_changes(&[dir], &[]);
        match usage {
            Some(usage) => self.usage.set(&usage),
            None => self.recount_usage()?,
        }
        Ok(())
    }

    /// Checks that changes concern no name of another server, and of the inode of a directory with
    /// partitions only its times. So partition servers know its other attributes, and its name.
    fn check_partitions(&self, changes: &[KeyChange]) -> Result<()> {
        if self.assignments.is_empty() {
            return Ok(());
        }
        for (key, entry) in changes {
            let Some((dir, name)) = split(key.as_bytes()) else { continue };
            let is_permitted = match (self.assignments.of_dir(dir), name) {
                ([], _) => true,
                (_, []) => self.is_same_directory(key, entry.as_ref())?,
                (_, name) => self.assignments.of_name(dir, name).is_none(),
            };
            if !is_permitted {
                return Err(Obstacle::AtOtherServer { dir }.error());
            }
        }
        Ok(())
    }

    fn is_same_directory(&self, key: &Key, new: Option<&Entry>) -> Result<bool> {
        let (Some(Entry::Inode(before)), Some(Entry::Inode(new))) = (self.get(key)?, new) else {
            return Ok(false);
        };
        let Inode { modified, changed, .. } = before;
        Ok(Inode { modified, changed, ..new.clone() } == before)
    }

    /// Reserves numbers of tables that a commit will write, and returns the first one.
    pub(crate) fn reserve_tables(&mut self, count: u64) -> Result<u64> {
        let mut description = self.description.clone();
        description.next_table += count;
        self.store_description(description, Commit::new())?;
        Ok(self.description.next_table - count)
    }

    /// Reserves `inodes` inode numbers and the number of a batch, and stores its record.
    pub(crate) fn add_batch(
        &mut self,
        inodes: u64,
        record: impl FnOnce(u64, Range<u64>) -> BatchRecord,
    ) -> Result<BatchRecord> {
        let mut description = self.description.clone();
        let end = description.next_inode.checked_add(inodes).filter(|end| *end < 1 << 62);
        let Some(end) = end else {
            return Err(Error::new(ErrorKind::NoSpace, "reserve inode numbers", ""));
        };
        let range = description.next_inode..end;
        description.next_inode = end;
        let number = description.next_batch;
        description.next_batch += 1;
        let record = record(number, range);
        let copy = self.copy_with(&description, std::slice::from_ref(&record))?.encode();
        check_length_at_begin(copy.len())?;
        self.files.put_copy(&copy)?;
        self.store_description(description, with_records(std::slice::from_ref(&record)))?;
        self.store.sync()?;
        Ok(record)
    }

    /// Returns the record of a batch.
    pub(crate) fn batch(&self, number: u64) -> Result<Option<BatchRecord>> {
        self.store.get(&batch_key(number))?.map(|value| decode(&value)).transpose()
    }

    /// Returns the records of all batches, in the order of their numbers.
    pub(crate) fn batches(&self) -> Result<Vec<BatchRecord>> {
        read_batches(&*self.store)
    }

    /// Replaces the record of a batch.
    pub(crate) fn put_batch(&mut self, record: &BatchRecord) -> Result<()> {
        self.put_batches(std::slice::from_ref(record))
    }

    /// Replaces the records of batches, atomically.
    pub(crate) fn put_batches(&mut self, records: &[BatchRecord]) -> Result<()> {
        self.write_copy(&self.description, records)?;
        self.store_batches(records, with_records(records))
    }

    /// Commits changes with the records of batches, and ends the reservations of those that are not
    /// prepared.
    fn store_batches(&mut self, records: &[BatchRecord], commit: Commit) -> Result<()> {
        self.store.commit(commit)?;
        self.store.sync()?;
        for record in records {
            if !matches!(record.state, BatchState::Prepared(_)) {
                self.reservations.remove(record.number);
            }
        }
        Ok(())
    }

    /// Makes the tables of a verified batch durable, stores its record, whose state is prepared,
    /// and reserves its directories and the use that it adds.
    ///
    /// # Errors
    /// `Busy` if another prepared batch depends on a directory that this one changes, or this one
    /// on a directory that the other one changes; the errors of files and commits.
    pub(crate) fn prepare(&mut self, record: &BatchRecord, usage: &UsageChanges) -> Result<()> {
        let BatchState::Prepared(prepared) = &record.state else { return self.put_batch(record) };
        self.reservations.check_new(record.number, prepared)?;
        for table in &prepared.tables {
            open_table(&*self.files, &self.cache, table)?;
        }
        self.files.sync()?;
        let records = std::slice::from_ref(record);
        self.write_copy(&self.description, records)?;
        // After an error of the commit, the record may be stored nevertheless, so the reservation
        // stays.
        self.reservations.insert(record.number, prepared, usage.clone());
        let mut commit = with_records(records);
        put_prepared_usage(&mut commit, record.number, usage);
        self.store_batches(records, commit)
    }

    /// Returns the changes of the use of users by a prepared batch.
    pub(crate) fn prepared_usage(&self, batch: u64) -> Result<Option<UsageChanges>> {
        prepared_usage(&*self.store, batch)
    }

    /// Replaces the record of a prepared batch by that of an open one, and ends the reservation of
    /// its directories. `tables` are its tables, which are not needed any more.
    ///
    /// # Errors
    /// The errors of files and commits. Then the batch is still prepared.
    pub(crate) fn roll_back(&mut self, record: &BatchRecord, tables: &[TableRef]) -> Result<()> {
        let records = std::slice::from_ref(record);
        self.write_copy(&self.description, records)?;
        let mut commit = with_records(records);
        delete_prepared_usage(&mut commit, record.number);
        self.store_batches(records, commit)?;
        for table in tables {
            // The next verification replaces a table that remains, or it is removed as garbage.
            let _ = self.files.remove(table.number);
        }
        Ok(())
    }

    /// Adds the changes of a batch, and replaces the records of the batch and of its parts,
    /// atomically. The first record is that of the batch. The work depends on the number of tables
    /// and of changes, not on the entries of the tables.
    ///
    /// # Errors
    /// `Busy` if another batch reserves one of the changed directories; the errors of files and
    /// commits. Then the image is as before.
    pub(crate) fn add(&mut self, addition: Addition, records: &[BatchRecord]) -> Result<()> {
        let number = records.first().map(|record| record.number);
        self.reservations.check(number, &addition.changed_dirs)?;
        self.compact_if_too_many()?;
        // Entries of the key-value store are newer than all tables, so they become a table first.
        self.flush()?;
        let mut tables = self.tables.clone();
        for table in addition.tables.iter().rev() {
            tables.add(open_table(&*self.files, &self.cache, table)?);
        }
        self.files.sync()?;
        let mut description = self.description.clone();
        description.tables.splice(0..0, addition.tables);
        self.write_copy(&description, records)?;
        let dirs = addition.changed_dirs;
        let usage = addition.usage.as_ref().map(|changes| changes.applied_to(&self.usage));
        let mut commit = with_records(records);
        match &usage {
            Some(usage) => put_usage(&mut commit, usage),
            // If this process ends before it has counted, the next one counts.
            None => set_uncounted(&mut commit),
        }
        if let Some(number) = number {
            delete_prepared_usage(&mut commit, number);
        }
        self.store_description(description, commit)?;
        self.tables = tables;
        self.note_new_tables();
        self.note_changes(&dirs, &dirs);
        self.store.sync()?;
        if let Some(number) = number {
            self.reservations.remove(number);
        }
        match usage {
            Some(usage) => self.usage.set(&usage),
            None => self.recount_usage()?,
        }
        Ok(())
    }

    /// Writes the entries of the key-value store as a table.
    fn flush(&mut self) -> Result<()> {
        if self.entries == 0 {
            return Ok(());
        }
        let number = self.reserve_tables(1)?;
        let file = self.files.create(number)?;
        let mut writer = TableWriter::new(file);
        let mut commit = Commit::new();
        let mut failure = None;
        self.store.scan(&KeyRange::prefix(&[ENTRY]), &mut |key, value| {
            commit.delete(key);
            failure = writer.add(&key[1..], value).err();
            failure.is_none()
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        let summary = writer.finish_synced(&*self.files, number)?;
        self.files.sync()?;
        let table = TableRef::new(number, &summary);
        let opened = open_table(&*self.files, &self.cache, &table)?;
        let mut description = self.description.clone();
        description.tables.insert(0, table);
        self.write_copy(&description, &[])?;
        self.store_description(description, commit)?;
        self.tables.add(opened);
        (self.entries, self.entries_bytes) = (0, 0);
        self.note_new_tables();
        Ok(())
    }

    /// Returns a flag that is set when tables can be merged.
    pub(crate) fn compaction_due(&self) -> &Arc<AtomicBool> {
        &self.is_compaction_due
    }

    fn note_new_tables(&self) {
        if tables_to_merge(self.table_ranges()) > 0 {
            self.is_compaction_due.store(true, Ordering::Relaxed);
        }
    }

    fn table_ranges(&self) -> impl Iterator<Item = TableRange<'_>> {
        let tables = self.description.tables.iter().zip(self.tables.key_ranges());
        tables.map(|(table, (first, last))| TableRange { bytes: table.bytes, first, last })
    }

    /// Begins to merge tables; `None` if there are few. The merge needs no lock of the image:
    /// tables do not change.
    pub(crate) fn begin_compaction(&mut self) -> Option<Compaction> {
        let count = tables_to_merge(self.table_ranges());
        self.is_being_merged = count > 0;
        let tables = self.description.tables[..count].to_vec();
        let (is_oldest, sources) = (count == self.description.tables.len(), self.tables.newest(count));
        (count > 0).then(|| Compaction { tables, sources, is_oldest, files: self.files.clone() })
    }

    /// Ends a merge: replaces the tables that were merged. Newer tables may have been added
    /// meanwhile.
    ///
    /// # Errors
    /// The error of the merge; the errors of files and commits. Then the image is as before.
    pub(crate) fn end_compaction(
        &mut self,
        compaction: &Compaction,
        merged: Result<MergedTables>,
    ) -> Result<()> {
        self.is_being_merged = false;
        let MergedTables { tables: written, _pins } = merged?;
        let sources = &compaction.tables;
        let at = self.description.tables.windows(sources.len()).position(|tables| tables == sources);
        let at = at.ok_or_else(|| damaged("the list of tables"))?;
        let mut tables = self.tables.without_newest(at + sources.len());
        for table in written.iter().rev() {
            tables.add(open_table(&*self.files, &self.cache, table)?);
        }
        (0..at).rev().for_each(|newer| tables.add(self.tables.table(newer)));
        let mut description = self.description.clone();
        description.tables.splice(at..at + sources.len(), written);
        self.write_copy(&description, &[])?;
        self.store_description(description, Commit::new())?;
        self.tables = tables;
        // The new list must survive a power failure before the old tables are removed.
        self.store.sync()
    }

    /// Merges tables with the lock of the image if look-ups have become slow and no thread is
    /// merging without the lock, for example because such merges have failed.
    ///
    /// # Errors
    /// The errors of files and commits. Then the image is as before.
    fn compact_if_too_many(&mut self) -> Result<()> {
        if self.is_being_merged || !are_too_many(self.table_ranges()) {
            return Ok(());
        }
        let Some(compaction) = self.begin_compaction() else { return Ok(()) };
        let merged = compaction.merge(&mut || {
            let number = self.reserve_tables(1)?;
            Ok((number, self.pin_tables([number])))
        });
        self.end_compaction(&compaction, merged)?;
        drop(compaction);
        self.unused_tables()?.into_iter().try_for_each(|number| self.files.remove(number))
    }

    /// Returns the numbers of the tables that are used neither by the image, nor by the snapshot or
    /// the verification of an open batch.
    pub(crate) fn unused_tables(&self) -> Result<Vec<u64>> {
        let batches: Vec<BatchRecord> = self.batches()?;
        let open = || batches.iter().filter(|batch| !batch.state.has_ended());
        let snapshots = open().flat_map(|batch| &batch.snapshot);
        let conflicts = batches.iter().flat_map(BatchRecord::conflict_tables);
        let prepared = batches.iter().flat_map(BatchRecord::prepared_tables);
        let used = self.description.tables.iter().chain(snapshots).chain(conflicts).chain(prepared);
        let used: HashSet<u64> = used.map(|table| table.number).collect();
        let assignments = self.assignments.all();
        let used_by_partitions: HashSet<u64> =
            assignments.iter().flat_map(Assignment::table_numbers).collect();
        // The verification of an open batch may be writing tables.
        let being_written: HashSet<u64> = open().map(|batch| batch.number).collect();
        let is_written = |number| batch_of_table(number).is_some_and(|batch| being_written.contains(&batch));
        let mut numbers = self.files.list()?;
        numbers.retain(|number| {
            let is_used = used.contains(number) || used_by_partitions.contains(number);
            !is_used && !is_written(*number) && !self.pinned.contains(*number)
        });
        Ok(numbers)
    }

    /// Writes the copy of the description if the two differ. The copy can be newer than the
    /// description: after a power failure, the last commits to the key-value store are lost. The
    /// tables that only this copy names would then be removed, and their numbers used again.
    fn refresh_copy(&self) -> Result<()> {
        let copy = match self.files.copy()?.map(|bytes| ImageCopy::decode(&bytes)) {
            None if self.description.tables.is_empty() => return Ok(()),
            Some(Ok(copy)) => Some(copy),
            // A damaged copy is replaced.
            _ => None,
        };
        let current = self.copy_with(&self.description, &[])?;
        match copy.is_some_and(|copy| current.is_equal_to(&copy)) {
            true => Ok(()),
            false => self.write_copy(&self.description, &[]),
        }
    }

    /// Writes the copy of the description and of the records of the open batches, from which the
    /// image can be rebuilt. It is written before a change of the tables or of a batch is
    /// committed, and before a table is removed, so that all tables of the copy exist.
    fn write_copy(&self, description: &Description, changed: &[BatchRecord]) -> Result<()> {
        self.files.put_copy(&self.copy_with(description, changed)?.encode())
    }

    fn copy_with(&self, description: &Description, changed: &[BatchRecord]) -> Result<ImageCopy> {
        let mut batches = self.batches()?;
        let numbers: HashSet<u64> = changed.iter().map(|changed| changed.number).collect();
        batches.retain(|batch| !numbers.contains(&batch.number));
        batches.extend(changed.iter().cloned());
        batches.retain(|batch| !batch.state.has_ended());
        batches.sort_by_key(|batch| batch.number);
        let (description, limits) = (description.clone(), self.limits.clone());
        Ok(ImageCopy { description, batches, limits, assignments: self.assignments.all() })
    }

    /// Commits a new description together with other changes.
    fn store_description(&mut self, description: Description, mut commit: Commit) -> Result<()> {
        commit.put(IMAGE_KEY, &encode(&description));
        self.store.commit(commit)?;
        self.description = description;
        Ok(())
    }

    /// Applies changes as [`apply`](Entries::apply) does, also beyond the limits of the use.
    pub(crate) fn apply_without_limits(&mut self, changes: Vec<KeyChange>) -> Result<()> {
        let effects = self.effects_of(&changes)?;
        self.apply_counted(changes, &effects)
    }

    /// Applies changes that have these effects.
    fn apply_counted(&mut self, changes: Vec<KeyChange>, effects: &Effects) -> Result<()> {
        let dirs: Vec<u64> = changes.iter().filter_map(|(key, _)| dir_of(key)).collect();
        self.reservations.check(None, &dirs)?;
        if self.entries >= ENTRIES_MAX || self.entries_bytes >= ENTRIES_BYTES_MAX {
            self.compact_if_too_many()?;
            self.flush()?;
        }
        let (entries, bytes) = (changes.len(), sizes(&changes));
        let mut commit = Commit::with_capacity(changes.len());
        let usage = effects.usage.applied_to(&self.usage);
        for change in changes {
            put_entry(&mut commit, change);
        }
        put_usage(&mut commit, &usage);
        self.store.commit(commit)?;
        self.usage.set(&usage);
        // A key that is changed again counts twice: the numbers are upper bounds.
        (self.entries, self.entries_bytes) = (self.entries + entries, self.entries_bytes + bytes);
        self.note_changes(&dirs, &effects.changed_accesses);
        Ok(())
    }

    fn note_changes(&mut self, dirs: &[u64], accesses: &[u64]) {
        if self.changed_dirs.len() + self.changed_accesses.len() >= CHANGED_DIRS_MAX {
            // A verification that began earlier is repeated.
            self.changed_dirs.clear();
            self.changed_accesses.clear();
            self.forgotten = self.change;
        }
        self.change += 1;
        self.changed_dirs.extend(dirs.iter().map(|dir| (*dir, self.change)));
        self.changed_accesses.extend(accesses.iter().map(|dir| (*dir, self.change)));
    }
}

impl Entries for Image {
    const IS_SHARED: bool = true;

    fn get(&self, key: &Key) -> Result<Option<Entry>> {
        if let Some(assignment) = self.assignments.of_key(key) {
            let dir = assignment.partitions.dir;
            return match self.own_entry(key)? {
                None => Err(Obstacle::AtOtherServer { dir }.error()),
                entry => Ok(entry),
            };
        }
        self.value(key)?.map(|value| Entry::decode(&value)).transpose()
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], Entry) -> bool) -> Result<()> {
        self.check_undivided(dir)?;
        let start = Key::of_name(dir, after);
        let start = start.as_bytes();
        let stored = Stored::of_dir(&*self.store, dir, start);
        let mut sources: Vec<Box<dyn Source + '_>> = vec![Box::new(stored)];
        sources.extend(self.tables.sources_after(start));
        list_merged(Merge::new(sources)?, dir, visit)
    }

    fn apply(&mut self, changes: Vec<KeyChange>) -> Result<()> {
        self.check_partitions(&changes)?;
        let effects = self.effects_of(&changes)?;
        self.check_limits(None, &effects.usage)?;
        self.apply_counted(changes, &effects).map_err(of_file_system)
    }

    fn new_inode(&mut self) -> Result<u64> {
        if self.inodes.is_empty() {
            let mut description = self.description.clone();
            let start = description.next_inode;
            description.next_inode += INODES_RESERVED;
            self.store_description(description, Commit::new())?;
            self.inodes = start..start + INODES_RESERVED;
        }
        self.inodes.next().ok_or_else(|| Error::new(ErrorKind::NoSpace, "reserve inode numbers", ""))
    }

    fn key_values(&self) -> Option<Arc<dyn KeyValue>> {
        Some(self.store.clone())
    }

    fn quota(&self) -> Option<Quota> {
        Some(self.limits.quota_of_store(&self.usage))
    }
}

/// Returns whether a change of the inode of a directory can change the access of a user to the
/// directory or to directories below it.
fn is_access_changed(before: Option<&Entry>, after: Option<&Entry>) -> bool {
    let attributes = |inode: &Inode| (inode.number, inode.mode, inode.uid, inode.gid);
    match (before, after) {
        (Some(Entry::Inode(before)), Some(Entry::Inode(after))) => {
            attributes(before) != attributes(after) || before.content != after.content
        }
        (before, after) => before.is_some() || after.is_some(),
    }
}

/// Returns a commit that replaces the records of batches.
fn with_records(records: &[BatchRecord]) -> Commit {
    let mut commit = Commit::with_capacity(records.len());
    for record in records {
        commit.put(&batch_key(record.number), &encode(record));
    }
    commit
}

fn dir_of(key: &Key) -> Option<u64> {
    split(key.as_bytes()).map(|(dir, _)| dir)
}
