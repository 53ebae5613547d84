//! The second reading: the operations that would reach the shared file systems from a cold node,
//! call by call, if the chosen trees were covered by an index, or by an index and a boot image. The
//! rules are those of the overlay view over a client that caches directories and attributes for a
//! second (MooseFS, FUSE in general). tests/system/profile_moosefs.rs compares the result with the
//! counters of a real client; docs/techniques/profile.md has the reasons.

use std::collections::{HashMap, HashSet};

use crate::calls::{Class, Effect};
use crate::paths::PathId;
use crate::places::Map;
use crate::reader::{Concerns, Ended, Event};
use crate::report::Scenarios;
use crate::series::Series;

/// How long a client answers for a directory or for attributes from its cache.
const KEPT_US: u64 = 1_000_000;
/// Operations for loading the index of a tree (the lookups on its path, its open, its size) and for
/// the eight comparisons of the sample. Measured on MooseFS: 10 to 11.
pub const OPERATIONS_OF_AN_INDEX: u64 = 11;
/// As `OPERATIONS_OF_AN_INDEX`, and loading the boot image, which is usually in the same directory.
pub const OPERATIONS_OF_A_BOOT: u64 = 12;
/// While trees are covered, one comparison per second detects changes (`quell run --recheck`),
/// after the first seconds.
const LOOKS_A_SECOND: f64 = 1.0;
const SECONDS_BEFORE_LOOKS: f64 = 5.0;

/// Returns the number of comparisons during a run, which does not depend on the number of trees.
pub fn looks(duration_s: f64) -> u64 {
    ((duration_s - SECONDS_BEFORE_LOOKS).max(0.0) * LOOKS_A_SECOND) as u64
}

/// The caches of one client.
#[derive(Debug)]
struct Client {
    kept_us: u64,
    /// The time at which each directory was looked up by name, and at which each path's attributes
    /// were fetched.
    directories: HashMap<PathId, u64>,
    attributes: HashMap<PathId, u64>,
    /// The time at which each directory was listed, which looks up the directories in it.
    listed: HashMap<PathId, u64>,
    /// Directories that a process has listed and not closed: its requests are answered from the
    /// listing.
    at_hand: HashSet<(u32, PathId)>,
    /// Symbolic links whose target is cached, and files of which a first part was read.
    links: HashSet<PathId>,
    read: HashSet<PathId>,
}

impl Client {
    fn new(kept_us: u64) -> Client {
        Client {
            kept_us,
            directories: HashMap::new(),
            attributes: HashMap::new(),
            listed: HashMap::new(),
            at_hand: HashSet::new(),
            links: HashSet::new(),
            read: HashSet::new(),
        }
    }

    fn is_kept(&self, times: &HashMap<PathId, u64>, path: PathId, now: u64) -> bool {
        times.get(&path).is_some_and(|then| now.saturating_sub(*then) <= self.kept_us)
    }

    /// Returns the number of lookups for the directories on the path from `base` to this one.
    fn enter(&mut self, map: &Map, base: PathId, path: PathId, process: u32, now: u64) -> u32 {
        let mut operations = 0;
        let mut at = path;
        // The root of a file system is known to its client.
        while at != base && at != PathId::ROOT && map.root(map.paths.parent(at)).on_shared {
            let above = map.paths.parent(at);
            if !self.is_kept(&self.directories, at, now) {
                let told = self.is_kept(&self.listed, above, now) || self.at_hand.contains(&(process, above));
                operations += u32::from(!told);
                self.directories.insert(at, now);
                self.attributes.insert(at, now);
            }
            at = above;
        }
        operations
    }

    /// Returns the operations for looking up a file. Names of files are not cached.
    fn look_up(&mut self, map: &Map, base: PathId, path: PathId, process: u32, now: u64) -> u32 {
        let directory = map.paths.parent(path);
        self.attributes.insert(path, now);
        let told = self.at_hand.contains(&(process, directory));
        self.enter(map, base, directory, process, now) + u32::from(!told)
    }

    /// Returns the number of operations that the client sends for this call.
    fn operations(&mut self, map: &Map, event: &Event, path: PathId, is_directory: &[bool]) -> u32 {
        let (now, process) = (event.time, event.process);
        let directory = is_directory.get(path.index()).copied().unwrap_or(false);
        let Some(asked) = event.asked else {
            return self.operations_by_descriptor(map, event, path);
        };
        if event.result.is_missing() {
            // The lookup ends at the first missing name. A listing does not answer for names that
            // are not in it.
            let mut at = path;
            loop {
                let above = map.paths.parent(at);
                let known = is_directory.get(above.index()).copied().unwrap_or(false);
                if at == PathId::ROOT || known || above == event.base || !map.root(above).on_shared {
                    return self.enter(map, event.base, above, process, now) + u32::from(at != PathId::ROOT);
                }
                at = above;
            }
        }
        let mut operations = match directory {
            true => self.enter(map, event.base, path, process, now),
            false => self.look_up(map, event.base, path, process, now),
        };
        if is_link(map, asked, path) {
            operations += self.look_up(map, event.base, asked, process, now) + self.read_link(asked);
        }
        operations
            + match event.call.effect {
                Effect::Open(_) | Effect::Create | Effect::Execute => u32::from(event.result == Ended::Well),
                Effect::Change | Effect::Rename(_) => 1,
                Effect::Look if event.name.starts_with(b"readlink") && event.result == Ended::Well => {
                    self.read_link(path)
                }
                Effect::Look if asks_for_space(event) => 1,
                Effect::Look if asks_attributes(event) => self.ask_attributes(path, now),
                _ => 0,
            }
    }

    /// Returns the operations of a call by descriptor: only attributes, changes and listings need
    /// any.
    fn operations_by_descriptor(&mut self, map: &Map, event: &Event, path: PathId) -> u32 {
        match event.call.effect {
            Effect::Look if asks_for_space(event) => 1,
            Effect::Look if asks_attributes(event) => {
                let told = self.at_hand.contains(&(event.process, map.paths.parent(path)));
                if told { 0 } else { self.ask_attributes(path, event.time) }
            }
            Effect::Change => 1,
            Effect::List => self.list(event, path),
            Effect::Close if event.last => {
                self.at_hand.remove(&(event.process, path));
                0
            }
            _ => 0,
        }
    }

    fn ask_attributes(&mut self, path: PathId, now: u64) -> u32 {
        let kept = self.is_kept(&self.attributes, path, now);
        if !kept {
            self.attributes.insert(path, now);
        }
        u32::from(!kept)
    }

    fn read_link(&mut self, link: PathId) -> u32 {
        u32::from(self.links.insert(link))
    }

    /// Returns the operations of a listing. Its first part fetches all of it, and changes the
    /// directory's access time.
    fn list(&mut self, event: &Event, path: PathId) -> u32 {
        let first = self.at_hand.insert((event.process, path));
        if first {
            self.listed.insert(path, event.time);
            self.attributes.remove(&path);
        }
        u32::from(first)
    }

    /// Records a read. Data that is read from the servers changes the access time, so attributes
    /// are requested again.
    fn read(&mut self, path: PathId) {
        if self.read.insert(path) {
            self.attributes.remove(&path);
        }
    }

    /// Returns the operations that the view sends for a file of a covered tree: at the first open,
    /// the lookups from the root of the tree, and the open. After that, the kernel looks up the
    /// name in the layer below whenever a program names the file, because this client does not let
    /// it cache names of files.
    fn covered(
        &mut self,
        map: &Map,
        event: &Event,
        top: PathId,
        path: PathId,
        seen: &mut HashSet<PathId>,
    ) -> u32 {
        let opens = u32::from(opens(event));
        match (event.asked, seen.contains(&path)) {
            (None, true) if asks_attributes(event) => self.ask_attributes(path, event.time),
            (Some(_), true) => {
                self.attributes.insert(path, event.time);
                1 + opens
            }
            (Some(_), false) if opens > 0 => {
                seen.insert(path);
                self.look_up(map, top, path, event.process, event.time) + opens
            }
            _ => 0,
        }
    }
}

/// Returns whether `asked` is a symbolic link to the path, and not a path through links of
/// directories.
fn is_link(map: &Map, asked: PathId, path: PathId) -> bool {
    asked != path
        && map.root(asked).on_shared
        && (map.paths.parent(asked) == map.paths.parent(path)
            || map.paths.name(asked) != map.paths.name(path))
}

fn asks_for_space(event: &Event) -> bool {
    event.name.windows(6).any(|part| part == b"statfs")
}

fn asks_attributes(event: &Event) -> bool {
    event.call.effect == Effect::Look && event.name.windows(4).any(|part| part == b"stat")
}

#[derive(Debug)]
pub struct Replay {
    /// The tree of each path, by number.
    tree_of: Vec<Option<u8>>,
    direct: Client,
    index: Client,
    boot: Client,
    /// Files of covered trees that were opened through the view.
    seen: HashSet<PathId>,
    tops: Vec<PathId>,
    begin: u64,
    is_directory: Vec<bool>,
    pub total: Scenarios<u64>,
    pub of_tree: Vec<Scenarios<u64>>,
    pub opens_of_tree: Vec<u64>,
    pub of_directory: HashMap<PathId, Scenarios<u64>>,
    pub series: Covered,
}

/// The remaining operations over time, with an index and with a boot image.
#[derive(Debug, Default)]
pub struct Covered {
    pub index: Series,
    pub boot: Series,
}

impl Replay {
    /// Returns a replay. `begin` is the time of the first call, `slow_down` the ratio of the
    /// durations with and without the tracer.
    pub fn new(map: &Map, trees: &[PathId], begin: u64, is_directory: Vec<bool>, slow_down: f64) -> Replay {
        let kept_us = (KEPT_US as f64 * slow_down) as u64;
        let count = trees.len();
        let mut tree_of: Vec<Option<u8>> = Vec::with_capacity(map.paths.len());
        // A directory comes before its entries.
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
            seen: HashSet::new(),
            tops: trees.to_vec(),
            begin,
            is_directory,
            total: Scenarios::default(),
            of_tree: vec![Scenarios::default(); count],
            opens_of_tree: vec![0; count],
            of_directory: HashMap::new(),
            series,
        }
    }

    /// Returns the number of the tree that contains a path.
    pub fn tree(&self, path: PathId) -> Option<usize> {
        self.tree_of.get(path.index()).copied().flatten().map(usize::from)
    }

    pub fn count(&mut self, event: &Event, map: &Map) {
        let Concerns::File(path) = event.concerns else { return };
        if !map.root(path).on_shared {
            return;
        }
        let now = event.time;
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
                let way = |client: &mut Client| match event.asked.is_some() && !within {
                    true => client.enter(map, event.base, top, event.process, now),
                    false => 0,
                };
                let (to_index, to_boot) = (way(&mut self.index), way(&mut self.boot));
                let file = match is_directory || event.result != Ended::Well {
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

/// Returns whether the call opens a file, for reading, writing or listing.
fn opens(event: &Event) -> bool {
    let opens = matches!(event.call.effect, Effect::Open(_) | Effect::Create | Effect::Execute);
    opens && event.result == Ended::Well
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::{Geography, NoLinks};
    use crate::profile::FirstReading;
    use crate::reader::Source;

    /// Returns the remaining operations of the lines. Two seconds pass before each line that begins
    /// with `+`.
    fn remaining(lines: &[&str], tree: bool) -> Scenarios<u64> {
        let geography = Geography { shared: vec![b"/m".to_vec()], ..Geography::default() };
        let mut links = NoLinks;
        let mut first = FirstReading::new(&geography, Vec::new(), &mut links);
        let mut seconds = 1;
        let mut all = Vec::new();
        let padding = if tree { 20 } else { 0 };
        for number in 0..padding {
            // Enough calls that the tree is proposed; a view answers all of them.
            all.push(format!("7 1700000001.{number:06} access(\"/m/env/lib/x\", R_OK) = 0"));
        }
        for (number, line) in lines.iter().enumerate() {
            seconds += 2 * u32::from(line.starts_with('+'));
            all.push(format!("7 17000000{seconds:02}.{:06} {}", 100 + number, line.trim_start_matches('+')));
        }
        let source = Source { space: 0, pid: 0 };
        all.iter().for_each(|line| first.line(source, line.as_bytes(), String::new));
        first.end();
        let mut second = first.choose(1.0);
        all.iter().for_each(|line| second.line(source, line.as_bytes()));
        let report = second.report(None);
        let skipped = &report.totals.skipped;
        assert_eq!(skipped.truncated + skipped.foreign, 0, "{:?}", skipped.examples);
        assert_eq!(report.trees.len(), usize::from(tree));
        let remaining = report.remaining;
        Scenarios {
            direct: remaining.direct.metadata,
            index: remaining.index.metadata,
            boot: remaining.boot.metadata,
        }
    }

    fn direct(lines: &[&str]) -> u64 {
        remaining(lines, false).direct
    }

    const OPEN: &str = r#"openat(AT_FDCWD</>, "/m/d", O_RDONLY|O_DIRECTORY) = 3</m/d>"#;
    const LIST: &str = "getdents64(3</m/d>, 0x1, 32768) = 48";
    const REST: &str = "getdents64(3</m/d>, 0x1, 32768) = 0";
    const CLOSE: &str = "close(3</m/d>) = 0";
    const LOOK: &str = r#"newfstatat(AT_FDCWD</>, "/m/d", 0x1, 0) = 0"#;
    const FILE: &str = r#"newfstatat(AT_FDCWD</>, "/m/d/f", 0x1, 0) = 0"#;

    #[test]
    fn a_listing_tells_of_what_is_in_it_until_it_is_closed() {
        assert_eq!(direct(&[OPEN, LIST, REST]), 3, "a look-up, an open, the names");
        assert_eq!(direct(&[OPEN, LIST, REST, LOOK]), 4, "with another access time");
        assert_eq!(direct(&[OPEN, LIST, FILE, FILE]), 3);
        assert_eq!(direct(&[OPEN, LIST, CLOSE, FILE, FILE]), 5);
        let copied = [OPEN, LIST, "fcntl(3</m/d>, F_DUPFD_CLOEXEC, 3) = 5</m/d>", CLOSE, FILE];
        assert_eq!(direct(&copied), 3, "a copy is open");
        let absent = r#"newfstatat(AT_FDCWD</>, "/m/d/g", 0x1, 0) = -1 ENOENT (x)"#;
        assert_eq!(direct(&[OPEN, LIST, absent]), 4, "it does not tell what is not in it");
    }

    #[test]
    fn directories_are_kept_for_a_second_and_files_are_not() {
        assert_eq!(direct(&[LOOK, LOOK, FILE]), 2);
        assert_eq!(direct(&[FILE, FILE]), 3);
        let later = format!("+{FILE}");
        assert_eq!(direct(&[FILE, &later]), 4);
        let missing = r#"access("/m/d/none/deeper/x", R_OK) = -1 ENOENT (x)"#;
        assert_eq!(direct(&[FILE, missing, missing]), 4, "up to the first name that is not there");
        let relative = r#"+newfstatat(3</m/d>, "f", 0x1, 0) = 0"#;
        assert_eq!(direct(&[OPEN, relative]), 3, "nothing above the descriptor");
    }

    #[test]
    fn reading_makes_attributes_old() {
        let open = r#"openat(AT_FDCWD</>, "/m/f", O_RDONLY) = 3</m/f>"#;
        let (read, look) = ("read(3</m/f>, \"\"..., 832) = 832", "fstat(3</m/f>, 0x1) = 0");
        assert_eq!(direct(&[open, look]), 2);
        assert_eq!(direct(&[open, read, look, look]), 3);
        assert_eq!(direct(&[open, read, look, read, look]), 3, "what was read is in memory");
        assert_eq!(direct(&[r#"readlink("/m/l", "f", 99) = 1"#, r#"readlink("/m/l", "f", 99) = 1"#]), 3);
    }

    #[test]
    fn of_a_covered_tree_opens_remain_and_names_of_what_was_opened() {
        let of = |lines: &[&str]| remaining(lines, true).index - remaining(&[], true).index;
        let look = r#"newfstatat(AT_FDCWD</>, "/m/env/lib/f", 0x1, 0) = 0"#;
        let open = r#"openat(AT_FDCWD</>, "/m/env/lib/f", O_RDONLY) = 3</m/env/lib/f>"#;
        assert_eq!(of(&[look, look]), 0);
        // The directory in the tree, the file, the open.
        assert_eq!(of(&[look, open]), 3);
        assert_eq!(of(&[open, look, open]), 3 + 1 + 2);
        let boot = |lines: &[&str]| remaining(lines, true).boot;
        assert_eq!(boot(&[open, look, open]), OPERATIONS_OF_A_BOOT + 1, "and the way to the tree");
    }
}
