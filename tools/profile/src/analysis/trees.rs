//! Chooses the directories to cover: software trees on shared file systems in which the program
//! changed nothing.

use std::collections::HashMap;

use crate::analysis::counts::PathCounts;
use crate::locations::PathMap;
use crate::paths::PathId;

/// Usual names of directories in an installation prefix; two of them identify a prefix.
const PREFIX_NAMES: [&[u8]; 14] = [
    b"bin",
    b"sbin",
    b"lib",
    b"lib64",
    b"libexec",
    b"share",
    b"etc",
    b"include",
    b"conda-meta",
    b"pyvenv.cfg",
    b"pkgs",
    b"site-packages",
    b"jre",
    b"modules",
];
/// Minimum number of metadata calls: checking a tree has a cost, too.
const CALLS_MIN: u64 = 16;
/// Minimum part of all metadata calls to shared file systems.
const SHARE_MIN: f64 = 0.01;
/// If directories below one account for this part of its calls, they are proposed instead of it.
const NEARLY_ALL: f64 = 0.9;
const TREES_MAX: usize = 16;
/// Limit on the recursion: no tree is proposed that is deeper below the root of a file system.
const DEPTH_MAX: u32 = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    pub path: PathId,
    pub metadata: u64,
    pub missing: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub path: PathId,
    pub metadata: u64,
    /// The first path below it that was changed; one that is not Python bytecode, if there is any.
    pub changed: PathId,
    /// Whether only Python bytecode (`.pyc`, `__pycache__`) was changed, which Python writes once.
    pub only_bytecode: bool,
}

/// The sums of each directory and everything below it.
#[derive(Debug, Clone, Copy, Default)]
struct Subtree {
    metadata: u64,
    missing: u64,
    changed_bytecode: Option<PathId>,
    changed_other: Option<PathId>,
}

impl Subtree {
    fn changed(&self) -> Option<PathId> {
        self.changed_other.or(self.changed_bytecode)
    }
}

struct Choice<'a, 'l> {
    map: &'a PathMap<'l>,
    paths: &'a [PathCounts],
    subtree: Vec<Subtree>,
    children: HashMap<PathId, Vec<PathId>>,
    refused: Vec<Refused>,
    calls_min: u64,
}

/// Returns the chosen trees, and those that are refused only because of changes, both by decreasing
/// number of calls.
pub fn choose(map: &PathMap, paths: &[PathCounts]) -> (Vec<Chosen>, Vec<Refused>) {
    let counts = |path: PathId| paths.get(path.index()).copied().unwrap_or_default();
    let mut subtree = vec![Subtree::default(); map.paths.len()];
    let mut children: HashMap<PathId, Vec<PathId>> = HashMap::new();
    let mut tops = Vec::new();
    // An entry of a directory has a larger number than the directory.
    for path in map.paths.all().rev().filter(|p| map.root(*p).on_shared) {
        let own = counts(path);
        let this = &mut subtree[path.index()];
        this.metadata += u64::from(own.metadata);
        this.missing += u64::from(own.missing);
        if own.changed {
            let changed = match is_bytecode(map, path) {
                true => &mut this.changed_bytecode,
                false => &mut this.changed_other,
            };
            *changed = Some(path);
        }
        let this = *this;
        let parent = map.paths.parent(path);
        if path == PathId::ROOT || !map.root(parent).on_shared {
            tops.push(path);
            continue;
        }
        let above = &mut subtree[parent.index()];
        above.metadata += this.metadata;
        above.missing += this.missing;
        above.changed_bytecode = this.changed_bytecode.or(above.changed_bytecode);
        above.changed_other = this.changed_other.or(above.changed_other);
        if this.metadata > 0 {
            children.entry(parent).or_default().push(path);
        }
    }
    let all: u64 = tops.iter().map(|p| subtree[p.index()].metadata).sum();
    let calls_min = CALLS_MIN.max((all as f64 * SHARE_MIN) as u64);
    let mut choice = Choice { map, paths, subtree, children, refused: Vec::new(), calls_min };
    let mut chosen: Vec<PathId> = tops.into_iter().flat_map(|top| choice.best_trees(top, true, 0)).collect();
    chosen.sort_by_key(|p| (std::cmp::Reverse(choice.subtree[p.index()].metadata), *p));
    chosen.truncate(TREES_MAX);
    choice.refused.sort_by_key(|r| (std::cmp::Reverse(r.metadata), r.path));
    choice.refused.truncate(TREES_MAX);
    let chosen_tree = |path: &PathId| {
        let Subtree { metadata, missing, .. } = choice.subtree[path.index()];
        Chosen { path: *path, metadata, missing }
    };
    (chosen.iter().map(chosen_tree).collect(), choice.refused)
}

impl Choice<'_, '_> {
    fn counts(&self, path: PathId) -> PathCounts {
        self.paths.get(path.index()).copied().unwrap_or_default()
    }

    fn is_directory(&self, path: PathId) -> bool {
        self.counts(path).directory || self.children.contains_key(&path)
    }

    /// Returns the best trees at or below this directory.
    fn best_trees(&mut self, path: PathId, top: bool, depth: u32) -> Vec<PathId> {
        let subtree = self.subtree[path.index()];
        if subtree.metadata < self.calls_min || depth > DEPTH_MAX || !self.is_directory(path) {
            return Vec::new();
        }
        let children = self.children.get(&path).cloned().unwrap_or_default();
        let exists = |p: &&PathId| {
            self.counts(**p).exists || self.subtree[p.index()].metadata > self.subtree[p.index()].missing
        };
        let parts = children
            .iter()
            .filter(exists)
            .filter(|p| PREFIX_NAMES.contains(&self.map.paths.name(**p)))
            .count();
        let files = children.iter().filter(exists).filter(|p| !self.is_directory(**p)).count();
        // The root of a file system contains the files of all users; the root directory cannot be
        // covered at all.
        let is_prefix = path != PathId::ROOT && (parts >= 2 || parts == 1 && !top);
        if is_prefix && subtree.changed().is_none() {
            return vec![path];
        }
        let mut lower = Vec::new();
        for child in children {
            lower.extend(self.best_trees(child, false, depth + 1));
        }
        let covered: u64 = lower.iter().map(|p| self.subtree[p.index()].metadata).sum();
        let enough = covered as f64 >= subtree.metadata as f64 * NEARLY_ALL;
        match subtree.changed() {
            None if !top && files > 0 && !enough => vec![path],
            Some(changed) if is_prefix => {
                let only_bytecode = subtree.changed_other.is_none();
                self.refused.push(Refused { path, metadata: subtree.metadata, changed, only_bytecode });
                lower
            }
            _ => lower,
        }
    }
}

/// Returns whether a path is a file of Python bytecode, or a directory of such files.
fn is_bytecode(map: &PathMap, path: PathId) -> bool {
    const DIRECTORY: &[u8] = b"__pycache__";
    let name = map.paths.name(path);
    name == DIRECTORY || map.paths.name(map.paths.parent(path)) == DIRECTORY || name.ends_with(b".pyc")
}
