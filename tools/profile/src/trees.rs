//! Chooses the directories to cover: software trees on shared file systems in which the program
//! changed nothing.

use std::collections::HashMap;

use crate::paths::PathId;
use crate::places::Map;
use crate::tally::PathTally;

/// Usual names of directories in an installation prefix; two of them identify a prefix.
const OF_A_PREFIX: [&[u8]; 14] = [
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
/// Limit on the recursion; software is not installed deeper below another tree.
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
    /// The first path below it that was changed.
    pub changed: PathId,
}

/// The sums of each directory and everything below it.
#[derive(Debug, Clone, Copy, Default)]
struct Below {
    metadata: u64,
    missing: u64,
    changed: Option<PathId>,
}

struct Choice<'a, 'l> {
    map: &'a Map<'l>,
    paths: &'a [PathTally],
    below: Vec<Below>,
    children: HashMap<PathId, Vec<PathId>>,
    refused: Vec<Refused>,
    least: u64,
}

/// Returns the chosen trees, and those that are refused only because of changes, both by decreasing
/// number of calls.
pub fn choose(map: &Map, paths: &[PathTally]) -> (Vec<Chosen>, Vec<Refused>) {
    let tally = |path: PathId| paths.get(path.index()).copied().unwrap_or_default();
    let mut below = vec![Below::default(); map.paths.len()];
    let mut children: HashMap<PathId, Vec<PathId>> = HashMap::new();
    let mut tops = Vec::new();
    // An entry of a directory has a larger number than the directory.
    for path in map.paths.all().rev().filter(|p| map.root(*p).on_shared) {
        let own = tally(path);
        let this = &mut below[path.index()];
        this.metadata += u64::from(own.metadata);
        this.missing += u64::from(own.missing);
        if own.changed {
            this.changed = Some(path);
        }
        let this = *this;
        let parent = map.paths.parent(path);
        if path == PathId::ROOT || !map.root(parent).on_shared {
            tops.push(path);
            continue;
        }
        let above = &mut below[parent.index()];
        above.metadata += this.metadata;
        above.missing += this.missing;
        above.changed = this.changed.or(above.changed);
        if this.metadata > 0 {
            children.entry(parent).or_default().push(path);
        }
    }
    let all: u64 = tops.iter().map(|p| below[p.index()].metadata).sum();
    let least = CALLS_MIN.max((all as f64 * SHARE_MIN) as u64);
    let mut choice = Choice { map, paths, below, children, refused: Vec::new(), least };
    let mut chosen: Vec<PathId> = tops.into_iter().flat_map(|top| choice.from(top, true, 0)).collect();
    chosen.sort_by_key(|p| (std::cmp::Reverse(choice.below[p.index()].metadata), *p));
    chosen.truncate(TREES_MAX);
    choice.refused.sort_by_key(|r| (std::cmp::Reverse(r.metadata), r.path));
    choice.refused.truncate(TREES_MAX);
    let of = |path: &PathId| {
        let Below { metadata, missing, .. } = choice.below[path.index()];
        Chosen { path: *path, metadata, missing }
    };
    (chosen.iter().map(of).collect(), choice.refused)
}

impl Choice<'_, '_> {
    fn tally(&self, path: PathId) -> PathTally {
        self.paths.get(path.index()).copied().unwrap_or_default()
    }

    fn is_directory(&self, path: PathId) -> bool {
        self.tally(path).directory || self.children.contains_key(&path)
    }

    /// Returns the best trees at or below this directory.
    fn from(&mut self, path: PathId, top: bool, depth: u32) -> Vec<PathId> {
        let below = self.below[path.index()];
        if below.metadata < self.least || depth > DEPTH_MAX || !self.is_directory(path) {
            return Vec::new();
        }
        let children = self.children.get(&path).cloned().unwrap_or_default();
        let is_there = |p: &&PathId| {
            self.tally(**p).exists || self.below[p.index()].metadata > self.below[p.index()].missing
        };
        let parts = children
            .iter()
            .filter(is_there)
            .filter(|p| OF_A_PREFIX.contains(&self.map.paths.name(**p)))
            .count();
        let files = children.iter().filter(is_there).filter(|p| !self.is_directory(**p)).count();
        // The root of a file system contains the files of all users; the root directory cannot be
        // covered at all.
        let is_prefix = path != PathId::ROOT && (parts >= 2 || parts == 1 && !top);
        if is_prefix && below.changed.is_none() {
            return vec![path];
        }
        let mut lower = Vec::new();
        for child in children {
            lower.extend(self.from(child, false, depth + 1));
        }
        let covered: u64 = lower.iter().map(|p| self.below[p.index()].metadata).sum();
        let enough = covered as f64 >= below.metadata as f64 * NEARLY_ALL;
        match below.changed {
            None if !top && files > 0 && !enough => vec![path],
            Some(changed) if is_prefix => {
                self.refused.push(Refused { path, metadata: below.metadata, changed });
                lower
            }
            _ => lower,
        }
    }
}
