//! The entries of the partitions of a partition server: the tables of the image at the time of each
//! assignment, and the changes since in the key-value store of the server.

use std::collections::BTreeMap;
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
use crate::partition::{Assignment, NewAssignment, Obstacle, Partition, Returned};
use crate::stored::{Stored, decode, encode, entry_key, put_entry};
use crate::table::{BlockCache, TableWriter};
use crate::table_ref::TableRef;
use crate::table_set::TableSet;
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

/// The stored state of an assignment.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum State {
    /// This server executes the operations on the names.
    Assigned(NewAssignment),
    /// The changes were written to a table. The primary server may not have received the reply yet.
    Returned(Assignment, Returned),
}

/// An assignment that this server has.
#[derive(Debug)]
struct Held {
    new: NewAssignment,
    snapshot: TableSet,
    touched: Option<Timestamp>,
    /// The inode numbers that are reserved in the key-value store.
    inodes: Range<u64>,
}

impl Held {
    fn partition(&self) -> Partition {
        self.new.assignment.partition
    }
}

/// An assignment that ends.
pub(crate) enum Ended {
    /// Its changes are in a table.
    Returned(Returned),
    /// Its changes must be written.
    Unwritten(Unwritten),
}

/// The changes of an assignment that has ended, in the key-value store.
pub(crate) struct Unwritten {
    held: Held,
    store: Arc<dyn KeyValue>,
    files: Arc<dyn TableFiles>,
}

/// The entries of all partitions of a server.
pub struct PartitionEntries {
    store: Arc<dyn KeyValue>,
    files: Arc<dyn TableFiles>,
    cache: Arc<BlockCache>,
    held: BTreeMap<u64, Held>,
}

impl std::fmt::Debug for PartitionEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionEntries").field("held", &self.held.keys()).finish_non_exhaustive()
    }
}

impl PartitionEntries {
    /// Opens the entries in a key-value store. `files` are the tables of the image.
    ///
    /// # Errors
    /// `Damaged`; the errors of the tables.
    pub(crate) fn open(store: Arc<dyn KeyValue>, files: Arc<dyn TableFiles>) -> Result<PartitionEntries> {
        let cache = Arc::new(BlockCache::default());
        let mut entries = PartitionEntries { store, files, cache, held: BTreeMap::new() };
        let mut states = Vec::new();
        entries.store.scan(&KeyRange::prefix(&[ASSIGNMENT]), &mut |_, value| {
            states.push(decode::<State>(value));
            true
        })?;
        for state in states {
            if let State::Assigned(new) = state? {
                entries.hold(new)?;
            }
        }
        Ok(entries)
    }

    /// Adds an assignment that is stored.
    fn hold(&mut self, new: NewAssignment) -> Result<()> {
        let Assignment { number, tables, inodes, .. } = &new.assignment;
        let number = *number;
        let snapshot = TableSet::open(&*self.files, &self.cache, tables)?;
        let stored = |kind| self.store.get(&numbered(kind, number));
        let touched = stored(TOUCHED)?.map(|value| decode(&value)).transpose()?;
        // Numbers that were reserved before a restart may have been used.
        let next: Option<u64> = stored(NEXT_INODE)?.map(|value| decode(&value)).transpose()?;
        let next = next.unwrap_or(inodes.start);
        self.held.insert(number, Held { new, snapshot, touched, inodes: next..next });
        Ok(())
    }

    /// Receives an assignment. An assignment that was received before is left as it is.
    ///
    /// # Errors
    /// `Stale` if it was taken back before; the errors of tables and commits.
    pub(crate) fn assign(&mut self, new: NewAssignment) -> Result<()> {
        let Assignment { number, partition, .. } = new.assignment;
        if self.held.contains_key(&number) {
            return Ok(());
        }
        if number <= self.last_number()? {
            return Err(Error::new(ErrorKind::Stale, "receive the assignment", number.to_string()));
        }
        // Entries of an earlier assignment that the primary server has received.
        self.remove_entries(partition)?;
        let mut commit = Commit::new();
        commit.put(&numbered(ASSIGNMENT, number), &encode(&State::Assigned(new.clone())));
        commit.put(LAST_NUMBER, &encode(&number));
        self.store.commit(commit)?;
        self.store.sync()?;
        self.hold(new)
    }

    /// Ends the operations on the names of an assignment. Without such an assignment, nothing is
    /// returned, and the assignment is not accepted any more.
    ///
    /// # Errors
    /// `Busy` if another call has ended them already; the errors of reads and commits.
    pub(crate) fn end(&mut self, number: u64) -> Result<Ended> {
        match self.store.get(&numbered(ASSIGNMENT, number))?.map(|value| decode(&value)).transpose()? {
            Some(State::Returned(_, returned)) => Ok(Ended::Returned(returned)),
            Some(State::Assigned(_)) => match self.held.remove(&number) {
                Some(held) => {
                    let (store, files) = (self.store.clone(), self.files.clone());
                    Ok(Ended::Unwritten(Unwritten { held, store, files }))
                }
                None => Err(Error::new(ErrorKind::Busy, "return the assignment", number.to_string())),
            },
            None => {
                if number > self.last_number()? {
                    let mut commit = Commit::new();
                    commit.put(LAST_NUMBER, &encode(&number));
                    self.store.commit(commit)?;
                    self.store.sync()?;
                }
                Ok(Ended::Returned(Returned::default()))
            }
        }
    }

    /// Records that the changes of an assignment were written to a table.
    ///
    /// # Errors
    /// The errors of commits.
    pub(crate) fn record_return(&mut self, ended: &Unwritten, returned: &Returned) -> Result<()> {
        let assignment = &ended.held.new.assignment;
        let state = State::Returned(assignment.clone(), returned.clone());
        let mut commit = Commit::new();
        commit.put(&numbered(ASSIGNMENT, assignment.number), &encode(&state));
        self.store.commit(commit)?;
        self.store.sync()
    }

    /// Executes operations on the names of an assignment again, whose changes could not be written.
    pub(crate) fn resume(&mut self, ended: Unwritten) {
        self.held.insert(ended.held.new.assignment.number, ended.held);
    }

    /// Removes an assignment whose changes the primary server has received.
    ///
    /// # Errors
    /// The errors of commits.
    pub(crate) fn forget(&mut self, number: u64) -> Result<()> {
        let Some(value) = self.store.get(&numbered(ASSIGNMENT, number))? else { return Ok(()) };
        let State::Returned(assignment, _) = decode(&value)? else {
            return Err(Error::new(ErrorKind::InvalidInput, "forget the assignment", number.to_string()));
        };
        self.remove_entries(assignment.partition)?;
        let mut commit = Commit::new();
        for kind in [ASSIGNMENT, TOUCHED, NEXT_INODE] {
            commit.delete(&numbered(kind, number));
        }
        self.store.commit(commit)
    }

    /// Returns the numbers of the assignments in the key-value store.
    ///
    /// # Errors
    /// `Damaged`; the errors of reads.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        self.store.scan(&KeyRange::prefix(&[ASSIGNMENT]), &mut |key, _| {
            numbers.extend(key[1..].try_into().ok().map(u64::from_be_bytes));
            true
        })?;
        Ok(numbers)
    }

    /// Returns the time of the last change of the names of a directory by this server; `None` if it
    /// has changed none.
    ///
    /// # Errors
    /// `NotAssigned` if the server has no partition of the directory.
    pub(crate) fn touched(&self, dir: u64) -> Result<Option<Timestamp>> {
        Ok(self.of_dir(dir)?.touched)
    }

    fn last_number(&self) -> Result<u64> {
        let last = self.store.get(LAST_NUMBER)?;
        Ok(last.map(|value| decode(&value)).transpose()?.unwrap_or(0))
    }

    fn of_dir(&self, dir: u64) -> Result<&Held> {
        let found = self.held.values().find(|held| held.partition().dir == dir);
        found.ok_or_else(|| Obstacle::NotAssigned.error())
    }

    /// Returns the assignment to whose partitions a name belongs.
    fn of_name(&self, dir: u64, name: &[u8]) -> Result<&Held> {
        let is_here = |held: &&Held| held.partition().dir == dir && held.partition().contains(name);
        self.held.values().find(is_here).ok_or_else(|| Obstacle::NotAssigned.error())
    }

    /// Returns the present entry of a name of an assignment.
    fn entry(&self, held: &Held, key: &Key) -> Result<Option<Entry>> {
        let value = match self.store.get(&entry_key(key.as_bytes()))? {
            Some(value) => Some(value.to_vec()),
            None => held.snapshot.get(key.as_bytes())?,
        };
        value.filter(|value| !value.is_empty()).map(|value| Entry::decode(&value)).transpose()
    }

    fn remove_entries(&self, partition: Partition) -> Result<()> {
        let mut stored = stored_names(&*self.store, partition.dir);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let (mut commit, mut count) = (Commit::new(), 0);
        while stored.next(&mut key, &mut value)? {
            if split(&key).is_some_and(|(_, name)| partition.contains(name)) {
                commit.delete(&entry_key(&key));
                count += 1;
            }
            if count == REMOVED_AT_ONCE {
                self.store.commit(std::mem::take(&mut commit))?;
                count = 0;
            }
        }
        self.store.commit(commit)
    }
}

impl Unwritten {
    /// Writes the changed entries to the table of the assignment.
    ///
    /// # Errors
    /// `Damaged`; the errors of files.
    pub(crate) fn write(&self) -> Result<Returned> {
        let Held { new, snapshot, touched, .. } = &self.held;
        let Assignment { number, partition, .. } = new.assignment;
        let mut usage = UsageChanges::default();
        let mut writer = None;
        let mut stored = stored_names(&*self.store, partition.dir);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        while stored.next(&mut key, &mut value)? {
            if !split(&key).is_some_and(|(_, name)| partition.contains(name)) {
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
        Ok(Returned { table, touched: *touched, usage })
    }
}

/// Returns the changed names of a directory, in their order.
fn stored_names(store: &dyn KeyValue, dir: u64) -> Stored<'_> {
    Stored::of_dir(store, dir, Key::of_dir(dir).as_bytes())
}

impl Entries for PartitionEntries {
    const IS_SHARED: bool = true;

    fn get(&self, key: &Key) -> Result<Option<Entry>> {
        let Some((dir, name)) = split(key.as_bytes()) else { return Err(Obstacle::NeedsPrimary.error()) };
        if dir == LINKED {
            return Err(Obstacle::NeedsPrimary.error());
        }
        if name.is_empty() {
            let held = self.of_dir(dir)?;
            return Ok(Some(Entry::Inode(held.new.dir.clone())));
        }
        match self.entry(self.of_name(dir, name)?, key)? {
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
            let Some((dir, name)) = split(key.as_bytes()) else {
                return Err(Obstacle::NeedsPrimary.error());
            };
            if !name.is_empty() {
                self.of_name(dir, name)?;
                if matches!(entry, Some(Entry::Dir { .. } | Entry::Link { .. })) {
                    return Err(Obstacle::NeedsPrimary.error());
                }
                put_entry(&mut commit, (key, entry));
                continue;
            }
            // Only the times of the directory may differ.
            let held = self.of_dir(dir)?;
            let (number, before) = (held.new.assignment.number, &held.new.dir);
            let Some(Entry::Inode(inode)) = entry else { return Err(Obstacle::NeedsPrimary.error()) };
            let modified = inode.modified;
            if (Inode { modified: before.modified, changed: before.changed, ..inode }) != *before {
                return Err(Obstacle::NeedsPrimary.error());
            }
            let latest = held.touched.map_or(modified, |touched| touched.max(modified));
            commit.put(&numbered(TOUCHED, number), &encode(&latest));
            touched.push((number, latest));
        }
        self.store.commit(commit)?;
        for (number, latest) in touched {
            if let Some(held) = self.held.get_mut(&number) {
                held.touched = Some(latest);
            }
        }
        Ok(())
    }

    fn new_inode(&mut self) -> Result<u64> {
        let full = || Error::new(ErrorKind::NoSpace, "reserve inode numbers", "");
        for (number, held) in &mut self.held {
            let end = held.new.assignment.inodes.end;
            if held.inodes.is_empty() && held.inodes.end < end {
                let next = held.inodes.end.saturating_add(INODES_RESERVED).min(end);
                let mut commit = Commit::new();
                commit.put(&numbered(NEXT_INODE, *number), &encode(&next));
                self.store.commit(commit)?;
                held.inodes.end = next;
            }
            if let Some(inode) = held.inodes.next() {
                return Ok(inode);
            }
        }
        Err(full())
    }

    fn sync(&mut self) -> Result<()> {
        self.store.sync()
    }
}

fn numbered(kind: u8, number: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}
