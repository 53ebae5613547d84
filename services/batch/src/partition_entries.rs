//! The entries of the partitions of a partition server: the tables of the image at the time of each
//! assignment, and the changes since in the key-value store of the server.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use quell_kv::{Batch as Commit, KeyRange, KeyValue};
use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::entries::{Entries, KeyChange};
use crate::entry::{Entry, Inode, LINKED, Timestamp};
use crate::files::TableFiles;
use crate::key::{Key, split};
use crate::merge::Source;
use crate::partition::{Assignment, NewAssignment, Obstacle, ReturnedChanges, SlotPartitions};
use crate::stored::{Stored, decode, encode, entry_key, numbered_key, put_entry};
use crate::table::{BlockCache, Table, TableWriter};
use crate::table_ref::TableRef;
use crate::table_set::{TableSet, open_table};
use crate::usage::UsageChanges;

/// The first byte of the keys of assignments in the key-value store.
const ASSIGNMENT: u8 = b'a';
/// The first byte of the keys of the times of the last changes of names.
const TOUCHED: u8 = b't';
/// The first byte of the keys of the next inode numbers.
const NEXT_INODE: u8 = b'n';
/// The key of the largest number of an assignment that was received or refused.
const LAST_NUMBER: &[u8] = b"l";
/// The number of inode numbers that are reserved at a time.
const INODES_RESERVED: u64 = 1 << 16;
/// The number of entries that are removed with one commit.
const REMOVED_AT_ONCE: usize = 4096;
/// The largest number of users whose change of use is returned.
const USERS_MAX: usize = 4096;

/// The stored state of an assignment.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum State {
    /// This server executes the operations on the names.
    Assigned(NewAssignment),
    /// The changes were written to a table. The primary server may not have received the reply yet.
    Returned(Assignment, ReturnedChanges),
}

/// An assignment whose operations this server executes.
#[derive(Debug)]
struct ActiveAssignment {
    new: NewAssignment,
    snapshot: TableSet,
    touched: Option<Timestamp>,
    /// The inode numbers that are reserved in the key-value store.
    inodes: Range<u64>,
}

impl ActiveAssignment {
    fn number(&self) -> u64 {
        self.new.assignment.number
    }

    fn partitions(&self) -> SlotPartitions {
        self.new.assignment.partitions
    }
}

/// An assignment that ends.
pub(crate) enum EndedAssignment {
    /// Its changes are in a table.
    Returned(ReturnedChanges),
    /// Its changes must be written.
    Unwritten(UnwrittenChanges),
}

/// The changes of an assignment that has ended, in the key-value store.
pub(crate) struct UnwrittenChanges {
    assignment: ActiveAssignment,
    store: Arc<dyn KeyValue>,
    files: Arc<dyn TableFiles>,
}

/// The entries of all partitions of a server.
pub struct PartitionEntries {
    store: Arc<dyn KeyValue>,
    files: Arc<dyn TableFiles>,
    cache: Arc<BlockCache>,
    /// The assignments, by the numbers of their directories.
    active: HashMap<u64, ActiveAssignment>,
}

impl std::fmt::Debug for PartitionEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionEntries").field("dirs", &self.active.keys()).finish_non_exhaustive()
    }
}

impl PartitionEntries {
    /// Opens the entries in a key-value store. `files` are the tables of the image.
    ///
    /// # Errors
    /// `Damaged`; the errors of the tables.
    pub(crate) fn open(store: Arc<dyn KeyValue>, files: Arc<dyn TableFiles>) -> Result<PartitionEntries> {
        let cache = Arc::new(BlockCache::default());
        let mut entries = PartitionEntries { store, files, cache, active: HashMap::new() };
        for state in read_states(&*entries.store)? {
            let State::Assigned(new) = state else { continue };
            match entries.opened(new) {
                // The server does not execute operations on these names. The primary server gets
                // the error when it takes them back.
                Err(error) if matches!(error.kind, ErrorKind::Damaged | ErrorKind::NotFound) => {}
                opened => {
                    let active = opened?;
                    entries.active.insert(active.partitions().dir, active);
                }
            }
        }
        Ok(entries)
    }

    /// Returns the key-value store.
    pub(crate) fn store(&self) -> &Arc<dyn KeyValue> {
        &self.store
    }

    /// Opens the tables of an assignment. Tables that other assignments have as well are opened
    /// once.
    fn opened(&self, new: NewAssignment) -> Result<ActiveAssignment> {
        let Assignment { number, tables, inodes, .. } = &new.assignment;
        let open = |table: &TableRef| match self.opened_table(table) {
            Some(opened) => Ok(opened),
            None => open_table(&*self.files, &self.cache, table),
        };
        let snapshot = TableSet::new(tables.iter().map(open).collect::<Result<_>>()?);
        let stored = |kind| self.store.get(&numbered_key(kind, *number));
        let touched = stored(TOUCHED)?.map(|value| decode(&value)).transpose()?;
        // Numbers that were reserved before a restart may have been used.
        let next: Option<u64> = stored(NEXT_INODE)?.map(|value| decode(&value)).transpose()?;
        let next = next.unwrap_or(inodes.start);
        Ok(ActiveAssignment { new, snapshot, touched, inodes: next..next })
    }

    fn opened_table(&self, table: &TableRef) -> Option<Arc<Table>> {
        self.active.values().find_map(|active| {
            let at = active.new.assignment.tables.iter().position(|known| known == table)?;
            Some(active.snapshot.table(at))
        })
    }

    /// Returns whether an assignment must be received. It need not if it was received before.
    ///
    /// # Errors
    /// `Stale` if it was taken back before; `Busy` if the directory has another assignment.
    pub(crate) fn is_new(&self, new: &NewAssignment) -> Result<bool> {
        let number = new.assignment.number;
        let failed = |kind| Err(Error::new(kind, "receive the assignment", number.to_string()));
        match self.active.get(&new.dir.number) {
            Some(active) if active.number() == number => Ok(false),
            Some(_) => failed(ErrorKind::Busy),
            None if number <= self.last_number()? => failed(ErrorKind::Stale),
            None => Ok(true),
        }
    }

    /// Receives a [new](Self::is_new) assignment. The entries of earlier assignments of its
    /// directory must have been [removed](remove_dir).
    ///
    /// # Errors
    /// The errors of tables and commits.
    pub(crate) fn assign(&mut self, new: NewAssignment) -> Result<()> {
        let number = new.assignment.number;
        let active = self.opened(new)?;
        let mut commit = Commit::new();
        commit.put(&numbered_key(ASSIGNMENT, number), &encode(&State::Assigned(active.new.clone())));
        commit.put(LAST_NUMBER, &encode(&number));
        self.store.commit(commit)?;
        self.store.sync()?;
        self.active.insert(active.partitions().dir, active);
        Ok(())
    }

    /// Ends the operations on the names of an assignment. Without such an assignment, nothing is
    /// returned, and the assignment is not accepted any more.
    ///
    /// # Errors
    /// The errors of tables, reads and commits.
    pub(crate) fn end(&mut self, number: u64) -> Result<EndedAssignment> {
        let state = self.store.get(&numbered_key(ASSIGNMENT, number))?;
        match state.map(|value| decode(&value)).transpose()? {
            Some(State::Returned(assignment, returned)) => {
                // The record was written, and its write-back has failed.
                self.active.remove(&assignment.partitions.dir);
                self.store.sync()?;
                Ok(EndedAssignment::Returned(returned))
            }
            Some(State::Assigned(new)) => {
                let assignment = match self.active.remove(&new.dir.number) {
                    Some(active) => active,
                    // The write-back of the record has failed when the assignment was received.
                    None => self.opened(new)?,
                };
                let (store, files) = (self.store.clone(), self.files.clone());
                Ok(EndedAssignment::Unwritten(UnwrittenChanges { assignment, store, files }))
            }
            None => {
                if number > self.last_number()? {
                    let mut commit = Commit::new();
                    commit.put(LAST_NUMBER, &encode(&number));
                    self.store.commit(commit)?;
                    self.store.sync()?;
                }
                Ok(EndedAssignment::Returned(ReturnedChanges {
                    usage: Some(UsageChanges::default()),
                    ..ReturnedChanges::default()
                }))
            }
        }
    }

    /// Records that the changes of an assignment were written to a table.
    ///
    /// # Errors
    /// The errors of commits.
    pub(crate) fn record_return(
        &mut self,
        ended: &UnwrittenChanges,
        returned: &ReturnedChanges,
    ) -> Result<()> {
        let assignment = &ended.assignment.new.assignment;
        let state = State::Returned(assignment.clone(), returned.clone());
        let mut commit = Commit::new();
        commit.put(&numbered_key(ASSIGNMENT, assignment.number), &encode(&state));
        self.store.commit(commit)?;
        self.store.sync()
    }

    /// Resumes the operations on the names of an assignment whose changes could not be written.
    pub(crate) fn resume(&mut self, ended: UnwrittenChanges) {
        self.active.insert(ended.assignment.partitions().dir, ended.assignment);
    }

    /// Returns the time of the last change of names of an assignment of a directory; `None` if
    /// there was none.
    ///
    /// # Errors
    /// `NotAssigned` if the server does not have the assignment.
    pub(crate) fn touched(&self, dir: u64, number: u64) -> Result<Option<Timestamp>> {
        let active = self.of_dir(dir)?;
        match active.number() == number {
            true => Ok(active.touched),
            false => Err(Obstacle::NotAssigned.error()),
        }
    }

    fn last_number(&self) -> Result<u64> {
        let last = self.store.get(LAST_NUMBER)?;
        Ok(last.map(|value| decode(&value)).transpose()?.unwrap_or(0))
    }

    fn of_dir(&self, dir: u64) -> Result<&ActiveAssignment> {
        self.active.get(&dir).ok_or_else(|| Obstacle::NotAssigned.error())
    }

    /// Returns the assignment to whose partitions a name belongs.
    fn of_name(&self, dir: u64, name: &[u8]) -> Result<&ActiveAssignment> {
        let active = self.of_dir(dir)?;
        match active.partitions().contains(name) {
            true => Ok(active),
            false => Err(Obstacle::NotAssigned.error()),
        }
    }
}

/// Returns the number of assignments in a key-value store that have not ended, or whose changes the
/// primary server may not have received.
///
/// # Errors
/// `Damaged`; the errors of reads.
pub(crate) fn count_assignments(store: &dyn KeyValue) -> Result<usize> {
    read_states(store).map(|states| states.len())
}

/// Removes all assignments of a directory and their entries. None of them may be active, and the
/// primary server must have received or given up their changes.
///
/// # Errors
/// `Damaged`; the errors of commits.
pub(crate) fn remove_dir(store: &dyn KeyValue, dir: u64) -> Result<()> {
    for state in read_states(store)? {
        let (State::Assigned(NewAssignment { assignment, .. }) | State::Returned(assignment, _)) = &state;
        if assignment.partitions.dir == dir {
            remove_assignment(store, assignment)?;
        }
    }
    Ok(())
}

/// Removes an assignment whose changes the primary server has received, and its entries.
///
/// # Errors
/// `InvalidInput` if the assignment was not returned; `Damaged`; the errors of commits.
pub(crate) fn remove_returned(store: &dyn KeyValue, number: u64) -> Result<()> {
    match store.get(&numbered_key(ASSIGNMENT, number))?.map(|value| decode(&value)).transpose()? {
        None => Ok(()),
        Some(State::Returned(assignment, _)) => remove_assignment(store, &assignment),
        Some(State::Assigned(_)) => {
            Err(Error::new(ErrorKind::InvalidInput, "forget the assignment", number.to_string()))
        }
    }
}

fn remove_assignment(store: &dyn KeyValue, assignment: &Assignment) -> Result<()> {
    remove_entries(store, assignment.partitions)?;
    let mut commit = Commit::new();
    for kind in [ASSIGNMENT, TOUCHED, NEXT_INODE] {
        commit.delete(&numbered_key(kind, assignment.number));
    }
    store.commit(commit)
}

fn remove_entries(store: &dyn KeyValue, partitions: SlotPartitions) -> Result<()> {
    let mut stored = stored_names(store, partitions.dir);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let (mut commit, mut count) = (Commit::new(), 0);
    while stored.next(&mut key, &mut value)? {
        if split(&key).is_some_and(|(_, name)| partitions.contains(name)) {
            commit.delete(&entry_key(&key));
            count += 1;
        }
        if count == REMOVED_AT_ONCE {
            store.commit(std::mem::take(&mut commit))?;
            count = 0;
        }
    }
    store.commit(commit)
}

/// Returns the states of all assignments in a key-value store.
fn read_states(store: &dyn KeyValue) -> Result<Vec<State>> {
    let mut states = Vec::new();
    store.scan(&KeyRange::prefix(&[ASSIGNMENT]), &mut |_, value| {
        states.push(decode::<State>(value));
        true
    })?;
    states.into_iter().collect()
}

impl UnwrittenChanges {
    /// Writes the changed entries to the table of the assignment.
    ///
    /// # Errors
    /// `Damaged`; the errors of files.
    pub(crate) fn write(&self) -> Result<ReturnedChanges> {
        let ActiveAssignment { new, snapshot, touched, .. } = &self.assignment;
        let Assignment { number, partitions, .. } = new.assignment;
        let mut usage = UsageChanges::default();
        let mut writer = None;
        let mut stored = stored_names(&*self.store, partitions.dir);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        while stored.next(&mut key, &mut value)? {
            if !split(&key).is_some_and(|(_, name)| partitions.contains(name)) {
                continue;
            }
            if let Some(before) = snapshot.get(&key)?.filter(|value| !value.is_empty()) {
                usage.remove(&Entry::decode(&before)?);
            }
            if !value.is_empty() {
                usage.add(&Entry::decode(&value)?);
            }
            let writer = match &mut writer {
                Some(writer) => writer,
                None => writer.insert(TableWriter::new(self.files.create(number)?)),
            };
            writer.add(&key, &value)?;
        }
        let mut table = None;
        if let Some(writer) = writer {
            table = Some(TableRef::new(number, &writer.finish_synced(&*self.files, number)?));
            self.files.sync()?;
        }
        usage.remove_unchanged();
        let usage = (usage.of_users().count() <= USERS_MAX).then_some(usage);
        Ok(ReturnedChanges { table, touched: *touched, usage })
    }
}

/// Returns the changed names of a directory, in their order.
fn stored_names(store: &dyn KeyValue, dir: u64) -> Stored<'_> {
    Stored::of_dir(store, dir, Key::of_dir(dir).as_bytes())
}

impl Entries for PartitionEntries {
    const IS_SHARED: bool = true;

    fn get(&self, key: &Key) -> Result<Option<Entry>> {
        let (dir, name) = split(key.as_bytes()).ok_or_else(|| Obstacle::NeedsPrimary.error())?;
        if dir == LINKED {
            return Err(Obstacle::NeedsPrimary.error());
        }
        if name.is_empty() {
            let active = self.of_dir(dir)?;
            let mut inode = active.new.dir.clone();
            active.touched.into_iter().for_each(|touched| inode.touch(touched));
            return Ok(Some(Entry::Inode(inode)));
        }
        let active = self.of_name(dir, name)?;
        let value = match self.store.get(&entry_key(key.as_bytes()))? {
            Some(value) => Some(value.to_vec()),
            None => active.snapshot.get(key.as_bytes())?,
        };
        let value = value.filter(|value| !value.is_empty());
        match value.map(|value| Entry::decode(&value)).transpose()? {
            // The inode is not in the partition.
            Some(Entry::Dir { .. } | Entry::Link { .. }) => Err(Obstacle::NeedsPrimary.error()),
            entry => Ok(entry),
        }
    }

    fn list(&self, _dir: u64, _after: &[u8], _visit: &mut dyn FnMut(&[u8], Entry) -> bool) -> Result<()> {
        Err(Obstacle::NeedsPrimary.error())
    }

    fn apply(&mut self, changes: Vec<KeyChange>) -> Result<()> {
        let mut commit = Commit::with_capacity(changes.len());
        let mut touched = Vec::new();
        for (key, entry) in changes {
            let (dir, name) = split(key.as_bytes()).ok_or_else(|| Obstacle::NeedsPrimary.error())?;
            if !name.is_empty() {
                self.of_name(dir, name)?;
                if matches!(entry, Some(Entry::Dir { .. } | Entry::Link { .. })) {
                    return Err(Obstacle::NeedsPrimary.error());
                }
                put_entry(&mut commit, (key, entry));
                continue;
            }
            // Only the times of the directory may differ.
            let active = self.of_dir(dir)?;
            let before = &active.new.dir;
            let Some(Entry::Inode(inode)) = entry else { return Err(Obstacle::NeedsPrimary.error()) };
            let changed = inode.changed;
            if (Inode { modified: before.modified, changed: before.changed, ..inode }) != *before {
                return Err(Obstacle::NeedsPrimary.error());
            }
            let latest = active.touched.map_or(changed, |touched| touched.max(changed));
            commit.put(&numbered_key(TOUCHED, active.number()), &encode(&latest));
            touched.push((dir, latest));
        }
        self.store.commit(commit)?;
        for (dir, latest) in touched {
            if let Some(active) = self.active.get_mut(&dir) {
                active.touched = Some(latest);
            }
        }
        Ok(())
    }

    fn new_inode(&mut self) -> Result<u64> {
        for active in self.active.values_mut() {
            let end = active.new.assignment.inodes.end;
            if active.inodes.is_empty() && active.inodes.end < end {
                let next = active.inodes.end.saturating_add(INODES_RESERVED).min(end);
                let mut commit = Commit::new();
                commit.put(&numbered_key(NEXT_INODE, active.number()), &encode(&next));
                self.store.commit(commit)?;
                active.inodes.end = next;
            }
            if let Some(inode) = active.inodes.next() {
                return Ok(inode);
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "reserve inode numbers", ""))
    }

    fn key_values(&self) -> Option<Arc<dyn KeyValue>> {
        Some(self.store.clone())
    }
}
