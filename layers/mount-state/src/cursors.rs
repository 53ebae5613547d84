//! Cursors of listings. A cursor is a hash of the name of its entry. The entries of the most
//! recently used cursors are kept; the entry of another cursor is found by listing the directory.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::Mutex;

use lru::LruCache;
use quell_threads::lock;
use quell_vfs::{Cursor, Error, ErrorKind, NodeId, Result};

/// The number of cursors whose entries are kept.
const CURSORS_MAX: NonZeroUsize = NonZeroUsize::new(1 << 15).expect("a positive number");

/// The cursors of the listings of a mount, with their entries.
pub struct Cursors<E> {
    hasher: RandomState,
    entries: Mutex<LruCache<(NodeId, Cursor), E>>,
}

impl<E> std::fmt::Debug for Cursors<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursors").field("kept", &lock(&self.entries).len()).finish()
    }
}

impl<E> Default for Cursors<E> {
    fn default() -> Cursors<E> {
        Cursors::new()
    }
}

impl<E> Cursors<E> {
    /// Returns no cursors.
    pub fn new() -> Cursors<E> {
        Cursors { hasher: RandomState::new(), entries: Mutex::new(LruCache::new(CURSORS_MAX)) }
    }

    fn cursor_of(&self, name: &[u8]) -> Cursor {
        Cursor((self.hasher.hash_one(name) >> 1).clamp(1, Cursor::MAX.0))
    }

    /// Returns the cursor after the entry `name` of a directory, and keeps the entry.
    pub fn after(&self, dir: NodeId, name: &[u8], entry: E) -> Cursor {
        let cursor = self.cursor_of(name);
        lock(&self.entries).put((dir, cursor), entry);
        cursor
    }
}

impl<E: Clone> Cursors<E> {
    /// Returns the entry of a cursor other than the start of the directory. If it is not kept,
    /// `search` lists the directory for an entry whose name satisfies the condition.
    ///
    /// # Errors
    /// `Stale` if the entry is not kept any more and was removed; the errors of `search`.
    pub fn entry(
        &self,
        dir: NodeId,
        cursor: Cursor,
        search: impl FnOnce(&dyn Fn(&[u8]) -> bool) -> Result<Option<E>>,
    ) -> Result<E> {
        if let Some(entry) = lock(&self.entries).get(&(dir, cursor)) {
            return Ok(entry.clone());
        }
        let found = search(&|name| self.cursor_of(name) == cursor)?;
        found.ok_or_else(|| Error::new(ErrorKind::Stale, "continue the list of", "a directory"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_that_is_not_kept_is_found_by_its_name() {
        let cursors = Cursors::new();
        let dir = NodeId(1);
        let kept = cursors.after(dir, b"kept", 1);
        assert_eq!(cursors.entry(dir, kept, |_| panic!("it is kept")).unwrap(), 1);
        let names = [&b"a"[..], b"b", b"c"];
        let search = |matches: &dyn Fn(&[u8]) -> bool| Ok(names.iter().position(|name| matches(name)));
        let cursors = Cursors::new();
        for (number, name) in names.iter().enumerate() {
            assert_eq!(cursors.entry(dir, cursors.cursor_of(name), search).unwrap(), number);
        }
        let removed = cursors.cursor_of(b"removed");
        assert_eq!(cursors.entry(dir, removed, search).unwrap_err().kind, ErrorKind::Stale);
        // The entry of a cursor that is kept may have been removed, and belongs to one directory.
        assert_eq!(cursors.after(dir, b"removed", 7), removed);
        assert_eq!(cursors.entry(dir, removed, search).unwrap(), 7);
        assert!(cursors.entry(NodeId(2), removed, search).is_err());
    }
}
