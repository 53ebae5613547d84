//! All paths of a trace, each stored once: a tree of names, with 20 bytes and a name for each, in
//! which a path is a number. The size is limited: when the tree is full, a new name counts as its
//! directory, and the number of such names is counted.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// A path. Numbers are assigned in order of appearance, and a directory's number is less than those
/// of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(u32);

impl PathId {
    pub const ROOT: PathId = PathId(0);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Limits the memory to about 200 MB, even for a trace that always names new files.
const PATHS_MAX: usize = 3_000_000;
const NAMES_BYTES_MAX: usize = 128 << 20;
/// The maximum length of a file name in Linux.
const NAME_MAX: usize = 255;
/// The maximum depth of directories, which limits the time to walk a path.
const DEPTH_MAX: u16 = 256;

#[derive(Debug)]
struct PathTreeNode {
    parent: PathId,
    name_begin: u32,
    name_length: u8,
    depth: u16,
}

#[derive(Debug)]
pub struct Paths {
    nodes: Vec<PathTreeNode>,
    names: Vec<u8>,
    table: HashTable<PathId>,
    hasher: DefaultHashBuilder,
    /// Number of names that were not stored because the tree was full.
    pub dropped: u64,
    max: usize,
}

impl Default for Paths {
    fn default() -> Paths {
        Paths::with_max(PATHS_MAX)
    }
}

impl Paths {
    pub fn with_max(max: usize) -> Paths {
        let root = PathTreeNode { parent: PathId::ROOT, name_begin: 0, name_length: 0, depth: 0 };
        Paths {
            nodes: vec![root],
            names: Vec::new(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            dropped: 0,
            max,
        }
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn parent(&self, path: PathId) -> PathId {
        self.nodes[path.index()].parent
    }

    pub fn depth(&self, path: PathId) -> usize {
        usize::from(self.nodes[path.index()].depth)
    }

    /// Returns the last component; empty for the root.
    pub fn name(&self, path: PathId) -> &[u8] {
        let node = &self.nodes[path.index()];
        let begin = node.name_begin as usize;
        &self.names[begin..begin + usize::from(node.name_length)]
    }

    /// Returns the entry of the directory with this name, and adds it if it is new.
    pub fn child(&mut self, parent: PathId, name: &[u8]) -> PathId {
        let name = &name[..name.len().min(NAME_MAX)];
        let hash = self.hasher.hash_one((parent, name));
        let is_it = |id: &PathId| self.parent(*id) == parent && self.name(*id) == name;
        if let Some(id) = self.table.find(hash, is_it) {
            return *id;
        }
        let depth = self.nodes[parent.index()].depth + 1;
        if depth > DEPTH_MAX || self.nodes.len() >= self.max || self.names.len() >= NAMES_BYTES_MAX {
            self.dropped += 1;
            return parent;
        }
        let id = PathId(self.nodes.len() as u32);
        let name_begin = self.names.len() as u32;
        self.names.extend_from_slice(name);
        self.nodes.push(PathTreeNode { parent, name_begin, name_length: name.len() as u8, depth });
        let (nodes, names, hasher) = (&self.nodes, &self.names, &self.hasher);
        self.table.insert_unique(hash, id, |id| {
            let node = &nodes[id.index()];
            let begin = node.name_begin as usize;
            hasher.hash_one((node.parent, &names[begin..begin + usize::from(node.name_length)]))
        });
        id
    }

    /// Returns the ancestors of a path from the top, without the root, then the path itself.
    pub fn line(&self, path: PathId) -> Vec<PathId> {
        let mut line = Vec::with_capacity(self.depth(path));
        let mut at = path;
        while at != PathId::ROOT {
            line.push(at);
            at = self.parent(at);
        }
        line.reverse();
        line
    }

    pub fn bytes(&self, path: PathId) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in self.line(path) {
            bytes.push(b'/');
            bytes.extend_from_slice(self.name(part));
        }
        if bytes.is_empty() { b"/".to_vec() } else { bytes }
    }

    /// Returns the path as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self, path: PathId) -> String {
        String::from_utf8_lossy(&self.bytes(path)).into_owned()
    }

    pub fn all(&self) -> impl DoubleEndedIterator<Item = PathId> + use<> {
        (0..self.nodes.len() as u32).map(PathId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(paths: &mut Paths, text: &str) -> PathId {
        text.split('/')
            .filter(|n| !n.is_empty())
            .fold(PathId::ROOT, |at, name| paths.child(at, name.as_bytes()))
    }

    #[test]
    fn a_path_has_one_number() {
        let mut paths = Paths::default();
        let lib = add(&mut paths, "/usr/lib");
        let file = add(&mut paths, "/usr/lib/x");
        assert_eq!(add(&mut paths, "/usr/lib/x"), file);
        assert_ne!(add(&mut paths, "/lib/x"), file);
        assert_eq!((paths.parent(file), paths.depth(file), paths.text(file)), (lib, 3, "/usr/lib/x".into()));
        assert_eq!(paths.text(PathId::ROOT), "/");
    }

    #[test]
    fn when_full_a_name_stands_for_its_directory() {
        let mut paths = Paths::with_max(3);
        let directory = add(&mut paths, "/a/b");
        assert_eq!(paths.child(directory, b"c"), directory);
        assert_eq!((paths.dropped, paths.len()), (1, 3));
        assert_eq!(add(&mut paths, "/a/b"), directory);
    }

    #[test]
    fn ten_thousand_names_are_found_again() {
        let mut paths = Paths::default();
        let ids: Vec<_> = (0..10_000).map(|i| add(&mut paths, &format!("/d{}/f{i}", i % 10))).collect();
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(add(&mut paths, &format!("/d{}/f{i}", i % 10)), *id);
        }
    }
}
