//! The store in memory, for simulations and tests, and for data that no restart needs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use fjall::Slice;
use quell_vfs::{Error, ErrorKind, Result};

use crate::{Batch, KeyRange, KeyValue, Value};

/// The memory that an entry needs besides its key and its value, in bytes: its part of the tree,
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
    limit: Arc<MemoryLimit>,
}

/// A limit of the memory of all entries of the stores that share it. An entry counts as 96 bytes
/// plus the lengths of its key and its value.
#[derive(Debug)]
pub struct MemoryLimit {
    bytes_max: u64,
    used_bytes: AtomicU64,
}

impl MemoryLimit {
    /// Returns a limit of `bytes_max` bytes, of which none are used.
    pub fn new(bytes_max: u64) -> MemoryLimit {
        MemoryLimit { bytes_max, used_bytes: AtomicU64::new(0) }
    }

    /// Replaces `before` bytes of a store by `after`. Returns false, and changes nothing, if
    /// `after` is greater and the limit would be exceeded.
    fn replace(&self, before: u64, after: u64) -> bool {
        let changed = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let used = used - before + after;
            (used <= self.bytes_max || after <= before).then_some(used)
        });
        changed.is_ok()
    }
}

#[derive(Clone, Default)]
struct Content {
    entries: BTreeMap<Slice, Slice>,
    /// The sum of the lengths of all keys and values.
    bytes: u64,
}

impl Content {
    fn used_bytes(&self) -> u64 {
        self.bytes + self.entries.len() as u64 * ENTRY_BYTES
    }
}

impl MemoryStore {
    /// Returns a store without entries and without a limit of its size.
    pub fn new() -> MemoryStore {
        MemoryStore::with_limit(Arc::new(MemoryLimit::new(u64::MAX)))
    }

    /// Returns a store without entries. A commit that would make the memory of the entries of all
    /// stores with this limit greater than it was, and greater than the limit, returns `NoSpace`.
    pub fn with_limit(limit: Arc<MemoryLimit>) -> MemoryStore {
        MemoryStore { content: RwLock::default(), limit }
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
        let content = self.content();
        // The entries of the clone count, too, also beyond the limit.
        self.limit.used_bytes.fetch_add(content.used_bytes(), Ordering::Relaxed);
        MemoryStore { content: RwLock::new(content), limit: Arc::clone(&self.limit) }
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        let used_bytes = self.content().used_bytes();
        self.limit.used_bytes.fetch_sub(used_bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = self.content();
        let mut text = f.debug_struct("MemoryStore");
        text.field("entries", &content.entries.len()).field("bytes", &content.bytes);
        text.field("limit", &self.limit).finish()
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
        for operation in &operations {
            let key_bytes = operation.key.len() as u64;
            let old = content.entries.get(&operation.key);
            let old_bytes = old.map_or(0, |old| key_bytes + old.len() as u64);
            let new_bytes = operation.value.as_ref().map_or(0, |new| key_bytes + new.len() as u64);
            bytes = bytes + new_bytes - old_bytes;
            count = count + u64::from(operation.value.is_some()) - u64::from(old.is_some());
        }
        if !self.limit.replace(content.used_bytes(), bytes + count * ENTRY_BYTES) {
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
