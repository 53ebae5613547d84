//! The records of an image in the key-value store of the primary server (docs/formats/batch.md).

use std::ops::Bound;

use quell_kv::{Batch as Commit, KeyRange, KeyValue};
use quell_vfs::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::batch::BatchRecord;
use crate::entries::KeyChange;
use crate::entry::{Entry, FIRST_INODE, damaged};
use crate::key::split;
use crate::limits::Limits;
use crate::merge::Source;
use crate::partition::Assignment;
use crate::table_ref::TableRef;
use crate::usage::{Usage, UsageChanges, UsageOfUsers};

/// The key of the description of the image in the key-value store.
pub(crate) const IMAGE_KEY: &[u8] = b"i";
/// The first byte of the keys of entries in the key-value store.
pub(crate) const ENTRY: u8 = b'e';
/// The first byte of the keys of batches in the key-value store.
const BATCH: u8 = b'b';
/// The first byte of the keys of the use of users in the key-value store.
const USAGE: u8 = b'u';
/// A key with an empty value, if the use of all users is stored.
const USAGE_IS_COUNTED: &[u8] = b"c";
/// The first byte of the keys of the changes of use by prepared batches.
const PREPARED_USAGE: u8 = b'd';
/// The key of the limits in the key-value store.
const LIMITS: &[u8] = b"l";
/// The first byte of the keys of the assignments of partitions.
const ASSIGNMENT: u8 = b'p';
/// The version of the format of the key-value store.
pub(crate) const VERSION: u32 = 1;
/// The version as long as partition servers have assignments, which earlier versions of the program
/// do not read.
pub(crate) const VERSION_WITH_ASSIGNMENTS: u32 = 2;
/// The number of entries of a list that are read from the key-value store at a time.
const PAGE_ENTRIES: usize = 1024;

/// The number of inode and table numbers that are skipped when the image is rebuilt from a copy of
/// its description. Fewer are assigned between two copies.
const NUMBERS_AFTER_LOSS: u64 = 1 << 24;

/// The description of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) version: u32,
    /// A random number, which no other store has.
    pub(crate) store: u128,
    pub(crate) next_inode: u64,
    pub(crate) next_table: u64,
    pub(crate) next_batch: u64,
    /// The tables, the newest first.
    pub(crate) tables: Vec<TableRef>,
}

impl Description {
    /// Returns the description of a new image.
    pub(crate) fn new(store: u128) -> Description {
        Description {
            version: VERSION,
            store,
            next_inode: FIRST_INODE,
            next_table: 1,
            next_batch: 1,
            tables: Vec::new(),
        }
    }

    /// Returns the description of the image in `store`.
    ///
    /// # Errors
    /// `NotFound` if there is no image; `Damaged`.
    pub(crate) fn read(store: &dyn KeyValue) -> Result<Description> {
        let Some(value) = store.get(IMAGE_KEY)? else {
            return Err(Error::new(ErrorKind::NotFound, "open a name space", ""));
        };
        let description: Description = decode(&value)?;
        if ![VERSION, VERSION_WITH_ASSIGNMENTS].contains(&description.version) {
            let reason = format!(
                "it has version {}; this program reads {VERSION} and {VERSION_WITH_ASSIGNMENTS}",
                description.version
            );
            return Err(Error { source: Some(reason.into()), ..damaged("the name space") });
        }
        Ok(description)
    }

    /// Returns whether the next numbers are less than 2^62, a limit that no image reaches.
    pub(crate) fn has_valid_numbers(&self) -> bool {
        [self.next_inode, self.next_table, self.next_batch].iter().all(|number| *number < 1 << 62)
    }

    /// Returns whether the numbers that were assigned between this description and a later one are
    /// few enough for [`after_loss`](Self::after_loss).
    pub(crate) fn has_few_numbers_less_than(&self, later: &Description) -> bool {
        let few = |from: u64, to: u64| to.saturating_sub(from) < NUMBERS_AFTER_LOSS / 2;
        self.next_batch >= later.next_batch
            && few(self.next_inode, later.next_inode)
            && few(self.next_table, later.next_table)
    }

    /// Returns this description for a rebuilt image. It skips the numbers of inodes and tables that
    /// may have been assigned since.
    pub(crate) fn after_loss(self) -> Description {
        Description {
            next_inode: self.next_inode + NUMBERS_AFTER_LOSS,
            next_table: self.next_table + NUMBERS_AFTER_LOSS,
            ..self
        }
    }
}

/// The entries in the key-value store, a page at a time.
pub(crate) struct Stored<'a> {
    store: &'a dyn KeyValue,
    /// Only the entries of this directory.
    dir: Option<u64>,
    /// Only the entries after this key.
    after: Vec<u8>,
    page: std::vec::IntoIter<(Vec<u8>, Vec<u8>)>,
}

impl<'a> Stored<'a> {
    /// Returns all entries.
    pub(crate) fn all(store: &'a dyn KeyValue) -> Stored<'a> {
        Stored { store, dir: None, after: Vec::new(), page: Vec::new().into_iter() }
    }

    /// Returns all entries after a key.
    pub(crate) fn after(store: &'a dyn KeyValue, after: &[u8]) -> Stored<'a> {
        Stored { after: after.to_vec(), ..Stored::all(store) }
    }

    /// Returns the entries of a directory after a key.
    pub(crate) fn of_dir(store: &'a dyn KeyValue, dir: u64, after: &[u8]) -> Stored<'a> {
        Stored { dir: Some(dir), after: after.to_vec(), ..Stored::all(store) }
    }
}

impl Source for Stored<'_> {
    fn next(&mut self, into_key: &mut Vec<u8>, into_value: &mut Vec<u8>) -> Result<bool> {
        if self.page.len() == 0 {
            let mut page = Vec::new();
            let start = entry_key(&self.after);
            let range = KeyRange::between(Bound::Excluded(&start), Bound::Unbounded);
            self.store.scan(&range, &mut |key, value| {
                let is_in = |dir| split(&key[1..]).is_some_and(|(found, _)| found == dir);
                let is_here = key[0] == ENTRY && self.dir.is_none_or(is_in);
                if is_here {
                    page.push((key[1..].to_vec(), value.to_vec()));
                }
                is_here && page.len() < PAGE_ENTRIES
            })?;
            if let Some((last, _)) = page.last() {
                self.after.clone_from(last);
            }
            self.page = page.into_iter();
        }
        let Some((key, value)) = self.page.next() else { return Ok(false) };
        (*into_key, *into_value) = (key, value);
        Ok(true)
    }
}

/// Adds the change of an entry to a commit.
pub(crate) fn put_entry(commit: &mut Commit, (key, entry): KeyChange) {
    commit.put(&entry_key(key.as_bytes()), &entry.map_or(Vec::new(), |entry| entry.encode()));
}

/// Returns the approximate size of entries.
pub(crate) fn sizes(changes: &[KeyChange]) -> usize {
    let size =
        |(key, entry): &KeyChange| key.as_bytes().len() + entry.as_ref().map_or(0, Entry::content_bytes);
    changes.iter().map(size).sum()
}

/// Returns the key of an entry in the key-value store.
pub(crate) fn entry_key(key: &[u8]) -> Vec<u8> {
    [&[ENTRY], key].concat()
}

/// Returns the key of the record of a batch.
pub(crate) fn batch_key(number: u64) -> [u8; 9] {
    numbered_key(BATCH, number)
}

/// Returns a key of a kind of values that have numbers.
pub(crate) fn numbered_key(kind: u8, number: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns the records of all batches, in the order of their numbers.
pub(crate) fn read_batches(store: &dyn KeyValue) -> Result<Vec<BatchRecord>> {
    let mut records = Vec::new();
    store.scan(&KeyRange::prefix(&[BATCH]), &mut |_, value| {
        records.push(decode(value));
        true
    })?;
    records.into_iter().collect()
}

/// Adds an assignment of partitions to a commit.
pub(crate) fn put_assignment(commit: &mut Commit, assignment: &Assignment) {
    commit.put(&numbered_key(ASSIGNMENT, assignment.number), &encode(assignment));
}

/// Removes an assignment of partitions with a commit.
pub(crate) fn delete_assignment(commit: &mut Commit, number: u64) {
    commit.delete(&numbered_key(ASSIGNMENT, number));
}

/// Returns the assignments of partitions, in the order of their numbers.
pub(crate) fn read_assignments(store: &dyn KeyValue) -> Result<Vec<Assignment>> {
    let mut assignments = Vec::new();
    store.scan(&KeyRange::prefix(&[ASSIGNMENT]), &mut |_, value| {
        assignments.push(decode(value));
        true
    })?;
    assignments.into_iter().collect()
}

/// Returns the use of each user, or `None` if it is not counted yet.
pub(crate) fn read_usage(store: &dyn KeyValue) -> Result<Option<UsageOfUsers>> {
    if store.get(USAGE_IS_COUNTED)?.is_none() {
        return Ok(None);
    }
    let mut users = Vec::new();
    store.scan(&KeyRange::prefix(&[USAGE]), &mut |key, value| {
        let uid = key[1..].try_into().map(u32::from_be_bytes);
        let uid = uid.map_err(|_| damaged("the use of a user"));
        users.push(uid.and_then(|uid| Ok((uid, decode::<Usage>(value)?))));
        true
    })?;
    users.into_iter().collect::<Result<UsageOfUsers>>().map(Some)
}

/// Adds the new use of users to a commit.
pub(crate) fn put_usage(commit: &mut Commit, new: &[(u32, Usage)]) {
    for (uid, new) in new {
        match *new == Usage::default() {
            true => commit.delete(&usage_key(*uid)),
            false => commit.put(&usage_key(*uid), &encode(new)),
        }
    }
}

/// Adds the use of all users to a commit, in place of `before`.
pub(crate) fn put_all_usage(commit: &mut Commit, before: &UsageOfUsers, all: &UsageOfUsers) {
    // A user without use has the default value, for which the key is deleted.
    let users = before.iter().chain(all.iter()).map(|(uid, _)| (uid, all.of(uid)));
    put_usage(commit, &users.collect::<Vec<_>>());
    commit.put(USAGE_IS_COUNTED, b"");
}

/// Adds to a commit that the stored use of users is not right.
pub(crate) fn set_uncounted(commit: &mut Commit) {
    commit.delete(USAGE_IS_COUNTED);
}

fn usage_key(uid: u32) -> Vec<u8> {
    [&[USAGE][..], &uid.to_be_bytes()].concat()
}

/// Returns the changes of use by a prepared batch. An earlier version has not stored them.
pub(crate) fn prepared_usage(store: &dyn KeyValue, batch: u64) -> Result<Option<UsageChanges>> {
    store.get(&prepared_usage_key(batch))?.map(|value| decode(&value)).transpose()
}

/// Adds the changes of use by a prepared batch to a commit.
pub(crate) fn put_prepared_usage(commit: &mut Commit, batch: u64, changes: &UsageChanges) {
    commit.put(&prepared_usage_key(batch), &encode(changes));
}

/// Adds the removal of the changes of use by a batch that is not prepared any more to a commit.
pub(crate) fn delete_prepared_usage(commit: &mut Commit, batch: u64) {
    commit.delete(&prepared_usage_key(batch));
}

fn prepared_usage_key(batch: u64) -> Vec<u8> {
    [&[PREPARED_USAGE][..], &batch.to_be_bytes()].concat()
}

/// Returns the limits of the use.
pub(crate) fn read_limits(store: &dyn KeyValue) -> Result<Limits> {
    store.get(LIMITS)?.map_or(Ok(Limits::default()), |value| decode(&value))
}

/// Adds the limits of the use to a commit.
pub(crate) fn put_limits(commit: &mut Commit, limits: &Limits) {
    commit.put(LIMITS, &encode(limits));
}

/// Encodes a record.
pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("a record has no value that postcard refuses")
}

/// Decodes a record.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(damaged("a record of the name space")),
    }
}
