//! The keys of a member's key-value store. docs/formats/pool.md has a table of the keys.

use std::ops::Bound;

use quell_kv::KeyRange;
use quell_wire::pool::{FileId, MemberId, TransactionId};

use crate::map::NameHash;

const ENTRY: u8 = 1;
const INODE: u8 = 2;
const REMOVED_DIR: u8 = 3;
const DIR_GROUP: u8 = 4;
const PREPARED: u8 = 5;
const COMMITTED: u8 = 6;
const COUNTER: u8 = 8;
const MARKS: u8 = 9;
const UNFINISHED: u8 = 10;
const XATTRS: u8 = 11;
const RESULT: u8 = 12;
const INLINE_DATA: u8 = 13;

/// The number of bytes before the name in the key of an entry.
pub const ENTRY_PREFIX_BYTES: usize = 17;

/// The first key of the entries of `dir` with a hash of at least `hash`.
pub fn entries_from(dir: FileId, hash: NameHash) -> Vec<u8> {
    let mut key = Vec::with_capacity(ENTRY_PREFIX_BYTES + 32);
    key.push(ENTRY);
    key.extend(dir.0.to_be_bytes());
    key.extend(hash.0.to_be_bytes());
    key
}

pub fn entry(dir: FileId, hash: NameHash, name: &[u8]) -> Vec<u8> {
    let mut key = entries_from(dir, hash);
    key.extend(name);
    key
}

/// Returns the hash and the name in the key of an entry.
pub fn parse_entry(key: &[u8]) -> Option<(NameHash, &[u8])> {
    let (prefix, name) = key.split_at_checked(ENTRY_PREFIX_BYTES)?;
    let hash = prefix.last_chunk().map(|hash| NameHash(u64::from_be_bytes(*hash)))?;
    (prefix[0] == ENTRY).then_some((hash, name))
}

pub fn inode(id: FileId) -> Vec<u8> {
    numbered(INODE, id.0)
}

pub fn removed_dir(dir: FileId) -> Vec<u8> {
    numbered(REMOVED_DIR, dir.0)
}

pub fn dir_group(dir: FileId) -> Vec<u8> {
    numbered(DIR_GROUP, dir.0)
}

pub fn prepared(transaction: TransactionId) -> Vec<u8> {
    of_transaction(PREPARED, transaction)
}

/// The first key of all prepared changes.
pub fn all_prepared() -> Vec<u8> {
    vec![PREPARED]
}

/// The first key of all decisions.
pub fn all_committed() -> Vec<u8> {
    vec![COMMITTED]
}

/// Returns the transaction in the key of a prepared change or of a decision.
pub fn parse_transaction(key: &[u8]) -> Option<TransactionId> {
    let (coordinator, number) = key.get(1..)?.split_first_chunk()?;
    let coordinator = MemberId(u16::from_be_bytes(*coordinator));
    Some(TransactionId { coordinator, number: u64::from_be_bytes(number.try_into().ok()?) })
}

pub fn committed(transaction: TransactionId) -> Vec<u8> {
    of_transaction(COMMITTED, transaction)
}

/// The key of a node whose chunks are to be truncated or removed.
pub fn unfinished(id: FileId) -> Vec<u8> {
    numbered(UNFINISHED, id.0)
}

/// The key of the extended attributes of a node.
pub fn xattrs(id: FileId) -> Vec<u8> {
    numbered(XATTRS, id.0)
}

/// The key of the inline data of a file.
pub fn inline_data(id: FileId) -> Vec<u8> {
    numbered(INLINE_DATA, id.0)
}

/// The key of the result of a request.
pub fn result(slot: u32) -> Vec<u8> {
    let mut key = vec![RESULT];
    key.extend(slot.to_be_bytes());
    key
}

/// The first key of all results.
pub fn all_results() -> Vec<u8> {
    vec![RESULT]
}

/// Returns the slot in the key of a result.
pub fn parse_result(key: &[u8]) -> Option<u32> {
    key.get(1..)?.try_into().ok().map(u32::from_be_bytes)
}

/// The key of the first number for a new node that this member has not reserved yet.
pub fn counter() -> Vec<u8> {
    vec![COUNTER]
}

/// The key of the marks.
pub fn marks() -> Vec<u8> {
    vec![MARKS]
}

/// Returns the range of the keys from `first` on, up to `end`, exclusive.
pub fn range<'a>(first: &'a [u8], end: &'a [u8]) -> KeyRange<'a> {
    KeyRange::between(Bound::Included(first), Bound::Excluded(end))
}

/// Returns the first key after all keys that begin with `prefix`.
pub fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while end.last() == Some(&u8::MAX) {
        end.pop();
    }
    *end.last_mut().expect("the first byte of a key is a small number") += 1;
    end
}

fn numbered(table: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.push(table);
    key.extend(number.to_be_bytes());
    key
}

fn of_transaction(table: u8, transaction: TransactionId) -> Vec<u8> {
    let mut key = vec![table];
    key.extend(transaction.coordinator.0.to_be_bytes());
    key.extend(transaction.number.to_be_bytes());
    key
}
