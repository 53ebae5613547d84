//! The second reading: what would reach the shared file systems of a cold node, call by call, if the chosen trees
//! were covered by an index, or by an index and a boot image. The rules are those of the overlay view over a client
//! that keeps directories and attributes for a second (MooseFS, FUSE in general), and are compared with what a real
//! one counts in tests/system; docs/techniques/profile.md has the reasons.

use std::collections::{HashMap, HashSet};

use crate::calls::{Class, Effect};
use crate::paths::PathId;
use crate::places::Map;
use crate::reader::{Concerns, Ended, Event};
use crate::report::Scenarios;
use crate::series::Series;

/// How long a client answers for a directory or for attributes without asking.
const KEPT_US: u64 = 1_000_000;
/// Loading the index of a tree (the way to it, its open, its size) and looking eight times whether the tree is as
/// indexed. Measured on MooseFS: 14 to 16.
pub const OPERATIONS_OF_AN_INDEX: u64 = 15;
/// The same, and loading the image.
pub const OPERATIONS_OF_A_BOOT: u64 = 20;
/// While a tree is covered, one look a second notices changes (`quell run --recheck`).
pub const LOOKS_A_SECOND: f64 = 1.0;

/// What one client has in its caches.
#[derive(Debug)]
struct Client {
    kept_us: u64,
    directories: HashMap<PathId, u64>,
    attributes: HashMap<PathId, u64>,
    /// Open directories whose listing, which comes with attributes, is at hand.
    listed: HashSet<PathId>,
}

impl Client {
    fn new(kept_us: u64) -> Client {
        Client { kept_us, directories: HashMap::new(), attributes: HashMap::new(), listed: HashSet::new() }
    }

    fn is_kept(&self, times: &HashMap<PathId, u64>, path: PathId, now: u64) -> bool {
        times.get(&path).is_some_and(|then| now.saturating_sub(*then) <= self.kept_us)
    }

    /// Look-ups of a directory and those above it.
    fn enter(&mut self, map: &Map, path: PathId, now: u64) -> u32 {
        let mut operations = 0;
        let mut at = path;
        // The top of a file system is known to its client.
        while at != PathId::ROOT && map.root(map.paths.parent(at)).on_shared {
            if !self.is_kept(&self.directories, at, now) {
                self.directories.insert(at, now);
                operations += 1;
            }
            at = map.paths.parent(at);
        }
        operations
    }

    /// The look-up of a name that is no directory, or that is not there.
    fn look_up(&mut self, map: &Map, path: PathId, now: u64) -> u32 {
        let directory = map.paths.parent(path);
        self.enter(map, directory, now) + u32::from(!self.listed.contains(&directory))
    }

    fn look_up_file(&mut self, map: &Map, path: PathId, now: u64) -> u32 {
        let operations = self.look_up(map, path, now);
        self.attributes.insert(path, now);
        operations
    }

    /// What the client asks its servers because of this call.
    fn operations(&mut self, map: &Map, event: &Event, path: PathId, is_directory: bool) -> u32 {
        let now = event.time;
        if event.asked.is_none() {
            return self.operations_by_descriptor(event, path, now);
        }
        let above = match is_directory {
            true => self.enter(map, path, now),
            false if event.result.is_missing() => self.look_up(map, path, now),
            false => self.look_up_file(map, path, now),
        };
        let own = match event.call.effect {
            Effect::Open(_) | Effect::Create | Effect::Execute => u32::from(opens_file(event, is_directory)),
            Effect::Change | Effect::Rename(_) => 1,
            _ => 0,
        };
        above + own
    }

    /// Only attributes are asked, and what changes or lists.
    fn operations_by_descriptor(&mut self, event: &Event, path: PathId, now: u64) -> u32 {
        match event.call.effect {
            Effect::Look => {
                let kept =
                    self.is_kept(&self.attributes, path, now) || self.is_kept(&self.directories, path, now);
                if !kept {
                    self.attributes.insert(path, now);
                }
                u32::from(!kept)
            }
            Effect::Change => 1,
            // The first part of a listing brings all of it.
            Effect::List => u32::from(self.listed.insert(path)),
            Effect::Close => {
                self.listed.remove(&path);
                0
            }
            _ => 0,
        }
    }
}

#[derive(Debug)]
pub struct Replay {
    /// For each path the number of the tree it is in.
    tree_of: Vec<Option<u8>>,
    direct: Client,
    index: Client,
    boot: Client,
    begin: u64,
    is_directory: Vec<bool>,
    pub total: Scenarios<u64>,
    pub of_tree: Vec<Scenarios<u64>>,
    pub opens_of_tree: Vec<u64>,
    pub of_directory: HashMap<PathId, Scenarios<u64>>,
    pub series: Covered,
}

/// What remains over time, with an index and with a boot image.
#[derive(Debug, Default)]
pub struct Covered {
    pub index: Series,
    pub boot: Series,
}

impl Replay {
    /// `begin`: the time of the first call. `slow_down`: how many times as long everything took in the trace.
    pub fn new(map: &Map, trees: &[PathId], begin: u64, is_directory: Vec<bool>, slow_down: f64) -> Replay {
        let kept_us = (KEPT_US as f64 * slow_down) as u64;
        let count = trees.len();
        let mut tree_of: Vec<Option<u8>> = Vec::with_capacity(map.paths.len());
        // A directory comes before what is in it.
        for path in map.paths.all() {
            let own = trees.iter().position(|tree| *tree == path).map(|n| n as u8);
            let above = tree_of.get(map.paths.parent(path).index()).copied().flatten();
            tree_of.push(own.or(above));
        }
        let mut series = Covered::default();
        series.index.add(0, OPERATIONS_OF_AN_INDEX as u32 * count as u32);
        series.boot.add(0, OPERATIONS_OF_A_BOOT as u32 * count as u32);
        Replay {
            tree_of,
            direct: Client::new(kept_us),
            index: Client::new(kept_us),
            boot: Client::new(kept_us),
            begin,
            is_directory,
            total: Scenarios::default(),
            of_tree: vec![Scenarios::default(); count],
            opens_of_tree: vec![0; count],
            of_directory: HashMap::new(),
            series,
        }
    }

    /// The number of the tree that a path is in.
    pub fn tree(&self, path: PathId) -> Option<usize> {
        self.tree_of.get(path.index()).copied().flatten().map(usize::from)
    }

    pub fn count(&mut self, event: &Event, map: &Map) {
        let Concerns::File(path) = event.concerns else { return };
        if event.call.class != Class::Metadata || !map.root(path).on_shared {
            return;
        }
        let now = event.time;
        let is_directory = self.is_directory.get(path.index()).copied().unwrap_or(false);
        let tree = self.tree(path);
        let direct = self.direct.operations(map, event, path, is_directory);
        let opens_file = opens_file(event, is_directory);
        let (index, boot) = match tree {
            None => (
                self.index.operations(map, event, path, is_directory),
                self.boot.operations(map, event, path, is_directory),
            ),
            // The kernel finds the file from the top of the tree, and opens it; all else it knows.
            Some(_) if opens_file => (self.index.look_up_file(map, path, now) + 1, 0),
            Some(_) => (0, 0),
        };
        let add = |to: &mut Scenarios<u64>| {
            to.direct += u64::from(direct);
            to.index += u64::from(index);
            to.boot += u64::from(boot);
        };
        add(&mut self.total);
        if let Some(tree) = tree {
            add(&mut self.of_tree[tree]);
            self.opens_of_tree[tree] += u64::from(opens_file);
        }
        let directory = if is_directory { path } else { map.paths.parent(path) };
        add(self.of_directory.entry(directory).or_default());
        let at = now.saturating_sub(self.begin);
        self.series.index.add(at, index);
        self.series.boot.add(at, boot);
    }
}

fn opens_file(event: &Event, is_directory: bool) -> bool {
    event.result == Ended::Well
        && !is_directory
        && match event.call.effect {
            Effect::Open(_) | Effect::Create => !event.open.directory,
            Effect::Execute => true,
            _ => false,
        }
}
