//! The entries that were committed or read most recently, so that a look-up of one of them does not
//! search the write buffers and tables of the engine.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use fjall::Slice;
use lru::LruCache;
use quell_vfs::Result;

use crate::batch::Operation;

/// The largest number of entries.
const ENTRIES_MAX: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();
/// The largest entry, in bytes of its key and value. With these bounds, the entries of a server of
/// files, of about 100 bytes, use at most about 20 MiB.
const ENTRY_BYTES_MAX: usize = 512;

/// A cache of entries that exist. Commits keep it up to date.
#[derive(Debug)]
pub(super) struct Recent(Mutex<State>);

#[derive(Debug)]
struct State {
    entries: LruCache<Slice, Slice>,
    /// Increases with each commit.
    version: u64,
}

impl Recent {
    pub(super) fn new() -> Recent {
        // The memory of the table grows with the entries.
        let mut entries = LruCache::unbounded();
        entries.resize(ENTRIES_MAX);
        Recent(Mutex::new(State { entries, version: 0 }))
    }

    /// Returns the value of a key from the cache, or from `read`, whose result is added.
    pub(super) fn get(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<Slice>>,
    ) -> Result<Option<Slice>> {
        let version = {
            let mut state = self.state();
            if let Some(value) = state.entries.get(key) {
                return Ok(Some(value.clone()));
            }
            state.version
        };
        let value = read()?;
        if let Some(value) = &value {
            let mut state = self.state();
            // A commit since then may have replaced the value.
            if state.version == version {
                state.put(&key.into(), value);
            }
        }
        Ok(value)
    }

    /// Removes the entries that a commit changes, before the commit begins: the commit can fail.
    pub(super) fn begin(&self, operations: &[Operation]) {
        let mut state = self.state();
        state.version += 1;
        for operation in operations {
            state.entries.pop(&*operation.key);
        }
    }

    /// Adds the entries of a commit that has succeeded, and removes those that it deleted: a read
    /// since `begin` may have added their values before the commit. No other commit may have begun
    /// since then.
    pub(super) fn end(&self, changed: Vec<(Slice, Option<Slice>)>) {
        let mut state = self.state();
        state.version += 1;
        for (key, value) in &changed {
            match value {
                Some(value) => state.put(key, value),
                None => _ = state.entries.pop(key),
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl State {
    /// Replaces an entry. A large one is not kept.
    fn put(&mut self, key: &Slice, value: &Slice) {
        if key.len() + value.len() <= ENTRY_BYTES_MAX {
            self.entries.put(key.clone(), value.clone());
        } else {
            self.entries.pop(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &[u8], value: &[u8]) -> Operation {
        Operation { key: key.into(), value: Some(value.into()) }
    }

    fn cached(recent: &Recent, key: &[u8]) -> Option<Vec<u8>> {
        recent.get(key, || Ok(None)).unwrap().map(|value| value.to_vec())
    }

    #[test]
    fn an_entry_is_the_last_committed_one() {
        let recent = Recent::new();
        recent.begin(&[put(b"k", b"1")]);
        recent.end(vec![(b"k".into(), Some(b"1".into()))]);
        assert_eq!(cached(&recent, b"k"), Some(b"1".to_vec()));
        // A commit that fails has no end.
        recent.begin(&[put(b"k", b"2")]);
        assert_eq!(cached(&recent, b"k"), None);
        recent.begin(&[Operation { key: b"k".into(), value: None }]);
        recent.end(vec![(b"k".into(), None)]);
        assert_eq!(cached(&recent, b"k"), None);
    }

    #[test]
    fn a_value_that_was_read_during_a_commit_is_not_kept_after_it() {
        for new in [Some(b"2".to_vec()), Some(vec![2; ENTRY_BYTES_MAX]), None] {
            let recent = Recent::new();
            recent.begin(&[put(b"k", b"2")]);
            let read_meanwhile = recent.get(b"k", || Ok(Some(b"1".into())));
            assert_eq!(read_meanwhile.unwrap().as_deref(), Some(&b"1"[..]));
            recent.end(vec![(b"k".into(), new.clone().map(Into::into))]);
            assert_eq!(cached(&recent, b"k"), new.filter(|value| value.len() == 1));
        }
    }

    #[test]
    fn a_value_that_was_read_before_a_commit_is_not_added_after_it() {
        let recent = Recent::new();
        let read_meanwhile = recent.get(b"k", || {
            recent.begin(&[put(b"k", b"2")]);
            recent.end(vec![(b"k".into(), Some(b"2".into()))]);
            Ok(Some(b"1".into()))
        });
        assert_eq!(read_meanwhile.unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(cached(&recent, b"k"), Some(b"2".to_vec()));
        let read = recent.get(b"other", || Ok(Some(b"3".into())));
        assert_eq!(read.unwrap().as_deref(), Some(&b"3"[..]));
        assert_eq!(cached(&recent, b"other"), Some(b"3".to_vec()));
    }

    #[test]
    fn the_memory_is_bounded() {
        let recent = Recent::new();
        let large = vec![0; ENTRY_BYTES_MAX];
        recent.end(vec![(b"large".into(), Some(large.into()))]);
        assert_eq!(cached(&recent, b"large"), None);
        for number in 0..=ENTRIES_MAX.get() as u32 {
            recent.end(vec![(number.to_be_bytes().into(), Some(b"".into()))]);
        }
        assert_eq!(cached(&recent, &0_u32.to_be_bytes()), None);
        assert_eq!(recent.state().entries.len(), ENTRIES_MAX.get());
    }
}
