//! The store in memory, for simulations and tests, and for data that no restart needs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use fjall::Slice;
use quell_vfs::{Error, ErrorKind, Result};

use crate::{Batch, KeyRange, KeyValue, Value};

/// The memory that an entry needs besides its key and its value, in bytes: its place in the tree,
/// and the headers of the two allocations.
const ENTRY_BYTES: u64 = 96;
/// Subject of errors.
const NAME: &[u8] = b"memory";

/// A store in memory.
///
/// A clone is an independent store with the same entries: a simulation models the restart of a
/// killed process by a clone of the store at that time. A clone takes constant time; after it, and
/// after each scan that is still active, the next commit copies the references to all entries.
pub struct MemoryStore {
    content: RwLock<Arc<Content>>,
    bytes_max: u64,
}

#[derive(Clone, Default)]
struct Content {
    entries: BTreeMap<Slice, Slice>,
    /// The sum of the lengths of all keys and values.
    bytes: u64,
}

impl MemoryStore {
    /// Returns a store without entries and without a limit of its size.
    pub fn new() -> MemoryStore {
        MemoryStore::with_limit(u64::MAX)
    }

    /// Returns a store without entries. A commit that would make the memory of all entries greater
    /// than it was, and greater than `bytes_max`, returns `NoSpace`. An entry counts as 96 bytes
    /// plus the lengths of its key and its value.
    pub fn with_limit(bytes_max: u64) -> MemoryStore {
        MemoryStore { content: RwLock::default(), bytes_max }
    }

    /// Returns the content at this time. No code panics while it holds the lock.
    fn content(&self) -> Arc<Content> {
        Arc::clone(&self.content.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl Clone for MemoryStore {
    fn clone(&self) -> MemoryStore {
        MemoryStore { content: RwLock::new(self.content()), bytes_max: self.bytes_max }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = self.content();
        let mut text = f.debug_struct("MemoryStore");
        text.field("entries", &content.entries.len()).field("bytes", &content.bytes);
        text.field("bytes_max", &self.bytes_max).finish()
    }
}

impl KeyValue for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        Ok(content.entries.get(key).cloned().map(Value))
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        batch.check(NAME)?;
        let operations = batch.into_last_of_each_key();
        let mut content = self.content.write().unwrap_or_else(PoisonError::into_inner);
        let (mut bytes, mut count) = (content.bytes, content.entries.len() as u64);
        let used_bytes = |bytes: u64, count: u64| bytes + count * ENTRY_BYTES;
        let used_before = used_bytes(bytes, count);
        for operation in &operations {
            let key_bytes = operation.key.len() as u64;
            let old = content.entries.get(&operation.key);
            let old_bytes = old.map_or(0, |old| key_bytes + old.len() as u64);
            let new_bytes = operation.value.as_ref().map_or(0, |new| key_bytes + new.len() as u64);
            bytes = bytes + new_bytes - old_bytes;
            count = count + u64::from(operation.value.is_some()) - u64::from(old.is_some());
        }
        let used = used_bytes(bytes, count);
        if used > self.bytes_max && used > used_before {
            return Err(Error::new(ErrorKind::NoSpace, "commit", NAME));
        }
        let content = Arc::make_mut(&mut content);
        content.bytes = bytes;
        for operation in operations {
            match operation.value {
                Some(value) => content.entries.insert(operation.key, value),
                None => content.entries.remove(&operation.key),
            };
        }
        Ok(())
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        for (key, value) in self.content().entries.range::<[u8], _>(range.bounds()) {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64> {
        Ok(self.content().bytes)
    }
}
