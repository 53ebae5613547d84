//! The second reading: the operations that would reach the shared file systems from a cold node,
//! call by call, if the chosen trees were covered by an index, or by an index and a boot image. The
//! rules describe the overlay view over the client of `client_cache.rs`.
//! tests/system/profile_moosefs.rs compares the result with the counters of a real client;
//! docs/techniques/profile.md has the reasons.

use std::collections::{HashMap, HashSet};

use crate::analysis::client_cache::{ClientCache, opens};
use crate::analysis::lanes::Lanes;
use crate::analysis::series::Series;
use crate::locations::PathMap;
use crate::paths::PathId;
use crate::report::Scenarios;
use crate::trace::calls::{Class, Effect};
use crate::trace::event::{CallResult, CallTarget, Event};

/// The time for which a client uses cached directories and attributes, in microseconds.
const CACHE_US: u64 = 1_000_000;
/// Operations for loading the index of a tree (the lookups on its path, its open, its size) and for
/// the eight comparisons of the sample. Measured on MooseFS: 10 to 11.
pub const OPERATIONS_TO_LOAD_INDEX: u64 = 11;
/// As `OPERATIONS_TO_LOAD_INDEX`, with one more for loading the boot image, which is usually in the
/// same directory.
pub const OPERATIONS_TO_LOAD_BOOT: u64 = 12;
/// While trees are covered, one comparison per second detects changes (`quell run --recheck`),
/// after the first seconds.
const CHECKS_PER_SECOND: f64 = 1.0;
const SECONDS_BEFORE_CHECKS: f64 = 60.0;

/// Returns the number of comparisons during a run, which does not depend on the number of trees.
pub fn periodic_checks(duration_s: f64) -> u64 {
    ((duration_s - SECONDS_BEFORE_CHECKS).max(0.0) * CHECKS_PER_SECOND) as u64
}

#[derive(Debug)]
pub struct Replay {
    /// The tree of each path, by number.
    tree_by_path: Vec<Option<u8>>,
    direct: ClientCache,
    index: ClientCache,
    boot: ClientCache,
    /// Files of covered trees that were opened through the view.
    seen: HashSet<PathId>,
    tops: Vec<PathId>,
    begin_us: u64,
    is_directory: Vec<bool>,
    pub total: Scenarios<u64>,
    pub by_tree: Vec<Scenarios<u64>>,
    pub opens_by_tree: Vec<u64>,
    pub by_directory: HashMap<PathId, Scenarios<u64>>,
    /// The operations over time.
    pub series: Scenarios<Series>,
    pub lanes: Lanes,
}

/// The result of the first reading that a replay needs.
#[derive(Debug)]
pub struct ReplayPlan<'a> {
    /// The trees to cover.
    pub trees: &'a [PathId],
    /// The time of the first call.
    pub begin_us: u64,
    /// Whether each path is a directory, by its number.
    pub is_directory: Vec<bool>,
    /// The ratio of the durations with and without the tracer.
    pub slow_down: f64,
    pub lanes: Lanes,
}

impl Replay {
    pub fn new(map: &PathMap, plan: ReplayPlan) -> Replay {
        let cache_us = (CACHE_US as f64 * plan.slow_down) as u64;
        let trees = plan.trees;
        let count = trees.len();
        let mut tree_by_path: Vec<Option<u8>> = Vec::with_capacity(map.paths.len());
        // A directory comes before its entries.
        for path in map.paths.all() {
            let own = trees.iter().position(|tree| *tree == path).map(|n| n as u8);
            let above = tree_by_path.get(map.paths.parent(path).index()).copied().flatten();
            tree_by_path.push(own.or(above));
        }
        let mut series: Scenarios<Series> = Scenarios::default();
        series.index.add(0, OPERATIONS_TO_LOAD_INDEX as u32 * count as u32);
        series.boot.add(0, OPERATIONS_TO_LOAD_BOOT as u32 * count as u32);
        Replay {
            tree_by_path,
            direct: ClientCache::new(cache_us),
            index: ClientCache::new(cache_us),
            boot: ClientCache::new(cache_us),
            seen: HashSet::new(),
            tops: trees.to_vec(),
            begin_us: plan.begin_us,
            is_directory: plan.is_directory,
            total: Scenarios::default(),
            by_tree: vec![Scenarios::default(); count],
            opens_by_tree: vec![0; count],
            by_directory: HashMap::new(),
            series,
            lanes: plan.lanes,
        }
    }

    /// Returns the number of the tree that contains a path.
    pub fn tree(&self, path: PathId) -> Option<usize> {
        self.tree_by_path.get(path.index()).copied().flatten().map(usize::from)
    }

    pub fn count(&mut self, event: &Event, map: &PathMap) {
        let CallTarget::File(path) = event.target else { return };
        if !map.root(path).on_shared {
            return;
        }
        let now = event.time_us;
        let tree = self.tree(path);
        if event.call.class != Class::Metadata {
            if matches!(event.call.effect, Effect::Read) && event.bytes > 0 {
                self.direct.read(path);
                if tree.is_none() {
                    self.index.read(path);
                    self.boot.read(path);
                }
            }
            return;
        }
        let is_directory = self.is_directory.get(path.index()).copied().unwrap_or(false);
        let direct = self.direct.operations(map, event, path, &self.is_directory);
        let opens_file = opens(event) && !is_directory;
        let (index, boot) = match tree {
            None => (
                self.index.operations(map, event, path, &self.is_directory),
                self.boot.operations(map, event, path, &self.is_directory),
            ),
            Some(tree) => {
                let top = self.tops[tree];
                let within = self.tree(event.base) == Some(tree);
                let path_to_tree = |client: &mut ClientCache| match event.named_path.is_some() && !within {
                    true => client.look_up_directories(map, event.base, top, event.process, now),
                    false => 0,
                };
                let (to_index, to_boot) = (path_to_tree(&mut self.index), path_to_tree(&mut self.boot));
                let file = match is_directory || event.result != CallResult::Succeeded {
                    true => 0,
                    false => self.index.covered(map, event, top, path, &mut self.seen),
                };
                (to_index + file, to_boot)
            }
        };
        let add = |to: &mut Scenarios<u64>| {
            to.direct += u64::from(direct);
            to.index += u64::from(index);
            to.boot += u64::from(boot);
        };
        add(&mut self.total);
        if let Some(tree) = tree {
            add(&mut self.by_tree[tree]);
            self.opens_by_tree[tree] += u64::from(opens_file);
        }
        let directory = if is_directory { path } else { map.paths.parent(path) };
        add(self.by_directory.entry(directory).or_default());
        let offset_us = now.saturating_sub(self.begin_us);
        self.series.direct.add(offset_us, direct);
        self.series.index.add(offset_us, index);
        self.series.boot.add(offset_us, boot);
        self.lanes.add(event.process, offset_us, direct);
    }
}
