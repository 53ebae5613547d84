//! Operations that are applied atomically.

use fjall::Slice;
use quell_vfs::{Error, ErrorKind, Result};

/// Largest length of a key, in bytes. The smallest is 1.
pub const KEY_BYTES_MAX: usize = 65_535;
/// Largest length of a value, in bytes. The smallest is 0.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
/// Largest size of a batch, in bytes: the lengths of all keys and values, and [`OPERATION_BYTES`]
/// for each operation.
pub const BATCH_BYTES_MAX: u64 = 32 << 20;
/// Size of an operation without its key and value, in bytes, in the size of a batch. It is about
/// the memory of an entry in a write buffer.
pub const OPERATION_BYTES: u64 = 128;

/// A batch of at most this many operations is searched for repeated keys without sorting.
const LINEAR_SEARCH_MAX: usize = 8;

/// Puts and deletes that [`KeyValue::commit`](crate::KeyValue::commit) applies atomically, in their
/// order: of several operations on one key, the last one counts.
///
/// The limits are checked by the commit: `InvalidInput` for a key that is empty or longer than
/// [`KEY_BYTES_MAX`], a value longer than [`VALUE_BYTES_MAX`], and a batch larger than
/// [`BATCH_BYTES_MAX`].
#[derive(Debug, Clone, Default)]
pub struct Batch {
    operations: Vec<Operation>,
    size_bytes: u64,
    is_reserve_allowed: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) key: Slice,
    /// The new value, or `None` to delete the entry.
    pub(crate) value: Option<Slice>,
}

impl Batch {
    /// Returns a batch without operations.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Returns a batch without operations that has memory for `count` of them.
    pub fn with_capacity(count: usize) -> Batch {
        Batch { operations: Vec::with_capacity(count), ..Batch::default() }
    }

    /// Adds an operation that stores a value for a key, and replaces an existing one.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.push(key, Some(value));
    }

    /// Adds an operation that removes the entry of a key, if there is one.
    pub fn delete(&mut self, key: &[u8]) {
        self.push(key, None);
    }

    fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.size_bytes += key.len() as u64 + value.map_or(0, |v| v.len() as u64) + OPERATION_BYTES;
        self.operations.push(Operation { key: key.into(), value: value.map(Slice::from) });
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Returns whether the batch has no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Returns the size that is compared with [`BATCH_BYTES_MAX`], in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the keys and their new values, in the order of the operations. A key without a value
    /// is deleted.
    pub fn operations(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.operations.iter().map(|operation| (&*operation.key, operation.value.as_deref()))
    }

    /// Lets the commit use the space that is kept free for deletes, although the batch may contain
    /// no delete: for small commits that are needed before anything can be deleted.
    pub fn allow_reserve(&mut self) {
        self.is_reserve_allowed = true;
    }

    /// Returns whether the commit may use the space that is kept free for deletes.
    pub(crate) fn may_use_reserve(&self) -> bool {
        self.is_reserve_allowed || self.operations.iter().any(|operation| operation.value.is_none())
    }

    /// Checks the limits of a batch, as each commit does. `store` is the subject of the error.
    ///
    /// # Errors
    /// `InvalidInput` if a limit is exceeded.
    pub fn check(&self, store: &[u8]) -> Result<()> {
        let refuse = |reason: String| {
            let source = Some(reason.into());
            Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "commit", store) })
        };
        if self.size_bytes > BATCH_BYTES_MAX {
            return refuse(format!("a batch of {} bytes; the limit is {BATCH_BYTES_MAX}", self.size_bytes));
        }
        for Operation { key, value } in &self.operations {
            let value_bytes = value.as_ref().map_or(0, |value| value.len());
            if key.is_empty() || key.len() > KEY_BYTES_MAX {
                return refuse(format!("a key of {} bytes; the limits are 1 and {KEY_BYTES_MAX}", key.len()));
            }
            if value_bytes > VALUE_BYTES_MAX {
                return refuse(format!("a value of {value_bytes} bytes; the limit is {VALUE_BYTES_MAX}"));
            }
        }
        Ok(())
    }

    /// Returns the last operation on each key, with each key once, in no particular order.
    pub(crate) fn into_last_of_each_key(self) -> Vec<Operation> {
        let mut operations = self.operations;
        if operations.len() <= LINEAR_SEARCH_MAX {
            let mut index = 0;
            while index < operations.len() {
                let (first, rest) = operations[index..].split_first().expect("index is below the length");
                match rest.iter().any(|later| later.key == first.key) {
                    true => drop(operations.remove(index)),
                    false => index += 1,
                }
            }
            return operations;
        }
        // A stable sort of the reversed operations has the last one on each key first.
        operations.reverse();
        operations.sort_by(|a, b| a.key.cmp(&b.key));
        operations.dedup_by(|later, first| later.key == first.key);
        operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_operation_on_each_key_remains() {
        for count in [3_u32, 8, 9, 100] {
            let mut batch = Batch::new();
            for number in 0..count {
                batch.put(&[number as u8 % 3], &number.to_be_bytes());
            }
            batch.delete(&[1]);
            let mut last = batch.into_last_of_each_key();
            last.sort_by(|a, b| a.key.cmp(&b.key));
            let value = |key| (0..count).rev().find(|number| number % 3 == key).expect("at least three");
            let found: Vec<_> =
                last.iter().map(|o| (o.key[0], o.value.as_deref().map(<[u8]>::to_vec))).collect();
            let put = |key: u32| Some(value(key).to_be_bytes().to_vec());
            assert_eq!(found, [(0, put(0)), (1, None), (2, put(2))], "{count} operations");
        }
    }
}
