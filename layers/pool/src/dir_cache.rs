//! A cache of the directories on the paths that a client uses (section "Cached directories" of
//! docs/techniques/pool.md).

use std::collections::HashMap;

use quell_wire::pool::{FileId, Node};

/// The largest number of cached directories. The cache has a reference to the node of each.
const DIRS_MAX: usize = 1024;

/// Directories by their parent directory and their name.
#[derive(Default)]
pub struct DirCache {
    /// The version of the daemon's directories when the oldest entry was looked up.
    version: u64,
    count: usize,
    dirs: HashMap<FileId, HashMap<Vec<u8>, Node>>,
}

impl DirCache {
    /// Returns a directory that was looked up when the daemon's directories had `version`.
    pub fn get(&self, version: u64, dir: FileId, name: &[u8]) -> Option<Node> {
        if version != self.version {
            return None;
        }
        self.dirs.get(&dir)?.get(name).copied()
    }

    /// Removes all directories, and returns their nodes.
    pub fn clear(&mut self) -> Vec<FileId> {
        self.count = 0;
        let dirs = std::mem::take(&mut self.dirs);
        dirs.into_values().flat_map(HashMap::into_values).map(|node| node.id).collect()
    }

    /// Adds a directory that was looked up after the version was read as `version`. Returns the
    /// nodes that are no longer cached.
    pub fn insert(&mut self, version: u64, dir: FileId, name: &[u8], found: Node) -> Vec<FileId> {
        let mut dropped = Vec::new();
        if version != self.version || self.count == DIRS_MAX {
            dropped = self.clear();
            self.version = version;
        }
        match self.dirs.entry(dir).or_default().insert(name.to_vec(), found) {
            Some(replaced) => dropped.push(replaced.id),
            None => self.count += 1,
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use quell_wire::pool::{NodeKind, Stamp};

    use super::*;

    fn node(id: u64) -> Node {
        Node {
            id: FileId(id),
            kind: NodeKind::Dir,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            is_named: true,
            is_inline: false,
            size_bytes: 0,
            modified: Stamp::default(),
            changed: Stamp::default(),
        }
    }

    #[test]
    fn directories_are_found_until_the_number_changes() {
        let mut cache = DirCache::default();
        assert_eq!(cache.insert(1, FileId(0), b"a", node(5)), []);
        assert_eq!(cache.insert(1, FileId(5), b"a", node(6)), []);
        assert_eq!(cache.get(1, FileId(5), b"a"), Some(node(6)));
        assert_eq!(cache.get(1, FileId(5), b"b"), None);
        assert_eq!(cache.get(2, FileId(5), b"a"), None);
        // Two threads looked the directory up.
        assert_eq!(cache.insert(1, FileId(5), b"a", node(6)), [FileId(6)]);
        let mut dropped = cache.insert(2, FileId(0), b"b", node(7));
        dropped.sort_unstable();
        assert_eq!(dropped, [FileId(5), FileId(6)]);
        assert_eq!(cache.get(2, FileId(0), b"a"), None);
    }

    #[test]
    fn the_number_of_directories_is_bounded() {
        let mut cache = DirCache::default();
        for number in 0..DIRS_MAX as u64 {
            assert_eq!(cache.insert(1, FileId(0), number.to_string().as_bytes(), node(number + 1)), []);
        }
        assert_eq!(cache.insert(1, FileId(0), b"next", node(9999)).len(), DIRS_MAX);
        assert_eq!(cache.get(1, FileId(0), b"next"), Some(node(9999)));
    }
}
