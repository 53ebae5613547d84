//! Entries in the memory of the process, for tests of code that uses a name space.

use std::collections::BTreeMap;
use std::ops::Bound;

use quell_vfs::{NewEntry, Result, Time};

use crate::entries::{Entries, KeyChange};
use crate::entry::{Entry, FIRST_INODE};
use crate::key::{Key, split};
use crate::names::Names;

/// Entries in memory.
#[derive(Debug, Clone)]
pub struct MemoryEntries {
    entries: BTreeMap<Key, Entry>,
    next_inode: u64,
}

impl MemoryEntries {
    /// Returns a name space that has only its root directory.
    pub fn new(root: NewEntry, now: Time) -> Names<MemoryEntries> {
        let (key, inode) = Names::<MemoryEntries>::new_root(root, now);
        let entries = inode.map(|inode| (key, inode)).into_iter().collect();
        Names(MemoryEntries { entries, next_inode: FIRST_INODE })
    }
}

impl Entries for MemoryEntries {
    const IS_SHARED: bool = true;

    fn get(&self, key: &Key) -> Result<Option<Entry>> {
        Ok(self.entries.get(key).cloned())
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], Entry) -> bool) -> Result<()> {
        let range = (Bound::Excluded(Key::of_name(dir, after)), Bound::Unbounded);
        for (key, entry) in self.entries.range(range) {
            match split(key.as_bytes()) {
                Some((found, name)) if found == dir => {
                    if !visit(name, entry.clone()) {
                        break;
                    }
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn apply(&mut self, changes: Vec<KeyChange>) -> Result<()> {
        for (key, entry) in changes {
            match entry {
                Some(entry) => self.entries.insert(key, entry),
                None => self.entries.remove(&key),
            };
        }
        Ok(())
    }

    fn new_inode(&mut self) -> Result<u64> {
        self.next_inode += 1;
        Ok(self.next_inode - 1)
    }
}
