//! The operations by path, for an icicle chart: each directory with the sum of everything below it.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::analysis::measured::Measured;
use crate::paths::PathId;
use crate::report::{PathNode, Scenarios};

/// Minimum part of all operations of a directory that is listed.
const PART_MIN: f64 = 0.005;
const DEPTH_MAX: u64 = 8;
const NODES_MAX: usize = 250;

/// Returns the directories with enough operations; each precedes its entries, which are in
/// decreasing order of operations. A directory with a single entry that accounts for all of its
/// operations is left out.
pub fn path_tree(measured: &Measured) -> Vec<PathNode> {
    let paths = &measured.map.paths;
    let mut sums = vec![Scenarios::<u64>::default(); paths.len()];
    let mut children: HashMap<PathId, Vec<PathId>> = HashMap::new();
    // An entry of a directory has a larger number than the directory.
    for path in paths.all().rev() {
        if let Some(own) = measured.replay.by_directory.get(&path) {
            add(&mut sums[path.index()], own);
        }
        let sum = sums[path.index()];
        if path != PathId::ROOT && sum.direct > 0 {
            let parent = paths.parent(path);
            add(&mut sums[parent.index()], &sum);
            children.entry(parent).or_default().push(path);
        }
    }
    for entries in children.values_mut() {
        entries.sort_by_key(|path| (Reverse(sums[path.index()].direct), *path));
    }
    let total = sums[PathId::ROOT.index()].direct;
    if total == 0 {
        return Vec::new();
    }
    let mut tree = TreeBuilder {
        measured,
        sums,
        children,
        operations_min: ((total as f64 * PART_MIN) as u64).max(1),
        nodes: Vec::new(),
    };
    tree.push(PathId::ROOT, 0);
    tree.nodes
}

fn add(to: &mut Scenarios<u64>, operations: &Scenarios<u64>) {
    to.direct += operations.direct;
    to.index += operations.index;
    to.boot += operations.boot;
}

struct TreeBuilder<'a, 'm, 'l> {
    measured: &'a Measured<'m, 'l>,
    sums: Vec<Scenarios<u64>>,
    children: HashMap<PathId, Vec<PathId>>,
    operations_min: u64,
    nodes: Vec<PathNode>,
}

impl TreeBuilder<'_, '_, '_> {
    /// Adds a directory and its entries. `depth` is at most `DEPTH_MAX`, which limits the
    /// recursion.
    fn push(&mut self, path: PathId, depth: u64) {
        if self.nodes.len() >= NODES_MAX {
            return;
        }
        let path = self.without_single_entries(path);
        self.nodes.push(PathNode {
            path: self.measured.text(path),
            depth,
            operations: self.sums[path.index()],
            in_tree: self.measured.replay.tree(path).is_some(),
        });
        if depth == DEPTH_MAX {
            return;
        }
        for child in self.children.get(&path).cloned().unwrap_or_default() {
            if self.sums[child.index()].direct >= self.operations_min {
                self.push(child, depth + 1);
            }
        }
    }

    /// Returns the first directory at or below this one that has operations of its own, or several
    /// entries with operations.
    fn without_single_entries(&self, mut path: PathId) -> PathId {
        let is_tree = |path: PathId| self.measured.chosen.iter().any(|chosen| chosen.path == path);
        while let Some([child, ..]) = self.children.get(&path).map(Vec::as_slice)
            && self.sums[child.index()].direct == self.sums[path.index()].direct
            && !is_tree(path)
        {
            path = *child;
        }
        path
    }
}
