//! Merges the entries of several sorted sources. If several sources have a value for a key, the
//! value of the newest source is returned.

use quell_vfs::Result;

use crate::entry::Entry;
use crate::key::split;
use crate::table::TableEntries;

/// A sorted source of entries.
pub(crate) trait Source {
    /// Stores the next entry in `key` and `value`, and returns false at the end.
    fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool>;
}

impl Source for TableEntries {
    fn next(&mut self, into_key: &mut Vec<u8>, into_value: &mut Vec<u8>) -> Result<bool> {
        let found = TableEntries::next(self, |key, value| fill(into_key, into_value, key, value))?;
        Ok(found.is_some())
    }
}

/// Entries in memory, in the order of their keys.
pub(crate) struct InMemory<I>(pub(crate) I);

impl<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>> Source for InMemory<I> {
    fn next(&mut self, into_key: &mut Vec<u8>, into_value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.next().map(|(key, value)| fill(into_key, into_value, key, value));
        Ok(found.is_some())
    }
}

fn fill(into_key: &mut Vec<u8>, into_value: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    into_key.clear();
    into_key.extend_from_slice(key);
    into_value.clear();
    into_value.extend_from_slice(value);
}

/// Several sources, the newest first.
pub(crate) struct Merge<'a> {
    sources: Vec<Head<'a>>,
    /// The source whose entry was passed last.
    passed: Option<usize>,
}

/// A source and its next entry.
struct Head<'a> {
    source: Box<dyn Source + 'a>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'a> Merge<'a> {
    /// Returns the entries of `sources`, of which the newest is the first.
    ///
    /// # Errors
    /// The errors of the sources.
    pub(crate) fn new(sources: Vec<Box<dyn Source + 'a>>) -> Result<Merge<'a>> {
        let mut heads = Vec::with_capacity(sources.len());
        for mut source in sources {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            if source.next(&mut key, &mut value)? {
                heads.push(Head { source, key, value });
            }
        }
        Ok(Merge { sources: heads, passed: None })
    }

    /// Returns the next entry. An empty value is a removal.
    ///
    /// # Errors
    /// The errors of the sources.
    pub(crate) fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if let Some(passed) = self.passed.take() {
            // Older sources that have the same key are behind the newest one.
            let mut index = self.sources.len();
            while index > passed {
                index -= 1;
                if index == passed || self.sources[index].key == self.sources[passed].key {
                    let head = &mut self.sources[index];
                    if !head.source.next(&mut head.key, &mut head.value)? {
                        self.sources.remove(index);
                    }
                }
            }
        }
        let mut least = 0;
        for index in 1..self.sources.len() {
            if self.sources[index].key < self.sources[least].key {
                least = index;
            }
        }
        let Some(head) = self.sources.get(least) else { return Ok(None) };
        self.passed = Some(least);
        Ok(Some((&head.key, &head.value)))
    }
}

/// Passes the names of a directory to `visit`, from a merge that begins in this directory.
pub(crate) fn list_merged(
    mut merge: Merge<'_>,
    dir: u64,
    visit: &mut dyn FnMut(&[u8], Entry) -> bool,
) -> Result<()> {
    while let Some((key, value)) = merge.next()? {
        match split(key) {
            Some((found, name)) if found == dir => {
                if !value.is_empty() && !name.is_empty() && !visit(name, Entry::decode(value)?) {
                    break;
                }
            }
            _ => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quell_testkit::Random;

    use super::*;

    #[test]
    fn the_newest_value_of_each_key_is_passed_once() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let mut model = BTreeMap::new();
            let mut maps = Vec::new();
            for source in 0..random.below(6) as u8 {
                let entries = (0..random.below(40)).map(|_| (vec![random.below(60) as u8], vec![source]));
                let map: BTreeMap<_, _> = entries.collect();
                model.extend(map.clone());
                maps.insert(0, map);
            }
            let source = |map| -> Box<dyn Source> {
                let map: &BTreeMap<Vec<u8>, Vec<u8>> = map;
                Box::new(InMemory(map.iter().map(|(key, value)| (&**key, &**value))))
            };
            let mut merge = Merge::new(maps.iter().map(source).collect()).unwrap();
            let mut found = BTreeMap::new();
            while let Some((key, value)) = merge.next().unwrap() {
                assert!(found.insert(key.to_vec(), value.to_vec()).is_none());
                assert_eq!(found.last_key_value().unwrap().0, key);
            }
            assert_eq!(found, model);
        }
    }
}
