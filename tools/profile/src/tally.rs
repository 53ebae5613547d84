//! The first reading: counts every call in exactly one cell, and stores for each path, program and
//! search the values that the findings need.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::calls::{Class, Effect};
use crate::paths::PathId;
use crate::places::{Map, Place};
use crate::reader::{Concerns, Ended, Event};
use crate::report::{Elsewhere, Operation};
use crate::searches::{Kind, Searches};
use crate::series::Series;

/// The counts of one path.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathTally {
    pub metadata: u32,
    pub missing: u32,
    pub data: u32,
    /// Number of successful opens as a file, and of starts as a program.
    pub opens: u32,
    pub read: u64,
    pub written: u64,
    pub mapped: u64,
    /// Whether it existed under this name.
    pub exists: bool,
    pub directory: bool,
    /// Whether it was changed, or opened for writing.
    pub changed: bool,
    pub created: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct ProgramTally {
    pub metadata: u64,
    pub shared: u64,
    pub missing: u64,
    pub data: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SearchTally {
    pub missing: u64,
    pub found: u64,
    pub shared: u64,
}

/// How much of a file a process has read: since the last open, and the maximum between two opens.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    now: u64,
    most: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Writing {
    pub writers: HashSet<u32>,
    pub writes: u64,
    /// The most frequent size of a write, by majority vote.
    pub record: u64,
    votes: u64,
}

/// Limit on entries for pairs of a file and a process; findings include only the entries before it.
const PAIRS_MAX: usize = 1 << 20;

/// For each file, the number of bytes that were read in one pass.
pub type Extents = HashMap<PathId, u64>;

#[derive(Debug)]
pub struct Tally {
    pub cells: BTreeMap<(Place, Class), Cell>,
    pub elsewhere: Elsewhere,
    pub operations: HashMap<(Option<Place>, Class, Vec<u8>), Operation>,
    pub failed: u64,
    pub missing: u64,
    /// The start of the first call, and the end of the last one.
    pub begin: Option<u64>,
    pub end: u64,
    /// Whether any call has its duration.
    pub has_spent: bool,
    pub metadata: Series,
    pub data: Series,
    pub metadata_elsewhere: Series,
    pub on_shared: HashMap<Place, u64>,
    pub paths: Vec<PathTally>,
    pub programs: HashMap<u32, ProgramTally>,
    pub program_processes: HashMap<u32, HashSet<u32>>,
    pub searches: HashMap<Kind, HashMap<PathId, SearchTally>>,
    readings: HashMap<(u32, PathId), Reading>,
    pub openers: HashSet<(u32, PathId)>,
    pub writings: HashMap<PathId, Writing>,
    /// Total number of writers in `writings`.
    writers: usize,
    search: Searches,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Cell {
    pub calls: u64,
    pub missing: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl Tally {
    pub fn new(search: Searches) -> Tally {
        let cells = Place::ALL
            .into_iter()
            .flat_map(|p| [Class::Metadata, Class::Data].map(|c| ((p, c), Cell::default())));
        Tally {
            cells: cells.collect(),
            elsewhere: Elsewhere::default(),
            operations: HashMap::new(),
            failed: 0,
            missing: 0,
            begin: None,
            end: 0,
            has_spent: false,
            metadata: Series::default(),
            data: Series::default(),
            metadata_elsewhere: Series::default(),
            on_shared: HashMap::new(),
            paths: Vec::new(),
            programs: HashMap::new(),
            program_processes: HashMap::new(),
            searches: HashMap::new(),
            readings: HashMap::new(),
            openers: HashSet::new(),
            writings: HashMap::new(),
            writers: 0,
            search,
        }
    }

    /// Returns the number of all counted calls: those in the cells, and those on descriptors that
    /// are not files.
    pub fn calls(&self) -> u64 {
        let Elsewhere { no_file, unknown, bad } = self.elsewhere;
        self.cells.values().map(|cell| cell.calls).sum::<u64>() + no_file + unknown + bad
    }

    /// Returns the time from the first call to the end of the last process, or of the last call if
    /// the traces end earlier. Without `-T`, the duration of the last call is taken to be the mean
    /// time between two calls.
    pub fn span_us(&self, last_exit: u64) -> u64 {
        let Some(begin) = self.begin else { return 0 };
        if last_exit > self.end {
            return last_exit - begin;
        }
        let span = self.end.saturating_sub(begin);
        let calls = self.calls();
        match self.has_spent || calls < 2 {
            true => span,
            false => (u128::from(span) * u128::from(calls) / u128::from(calls - 1)) as u64,
        }
    }

    pub fn search_name(&self, kind: &Kind) -> (&str, &'static str) {
        self.search.name(kind)
    }

    pub fn path(&mut self, path: PathId) -> &mut PathTally {
        if path.index() >= self.paths.len() {
            self.paths.resize(path.index() + 1, PathTally::default());
        }
        &mut self.paths[path.index()]
    }

    /// Returns the time since the first call, in microseconds.
    pub fn at(&self, event: &Event) -> u64 {
        event.time.saturating_sub(self.begin.unwrap_or(event.time))
    }

    pub fn count(&mut self, event: &Event, map: &Map) {
        self.begin.get_or_insert(event.first);
        self.end = self.end.max(event.time.saturating_add(event.spent.unwrap_or(0)));
        self.has_spent |= event.spent.is_some();
        let missing = event.result.is_missing();
        self.failed += u64::from(matches!(event.result, Ended::Failed(_)));
        self.missing += u64::from(missing);
        let (read, written) = bytes(event);
        let place = match event.concerns {
            Concerns::File(path) => Some(map.root(path).place),
            _ => None,
        };
        self.count_operation(event, place, read, written);
        self.program_processes.entry(event.program).or_default().insert(event.process);
        let program = self.programs.entry(event.program).or_default();
        match event.call.class {
            Class::Metadata => program.metadata += 1,
            Class::Data => program.data += 1,
        }
        program.missing += u64::from(missing);
        let Concerns::File(path) = event.concerns else {
            match event.concerns {
                Concerns::NoFile => self.elsewhere.no_file += 1,
                Concerns::Bad => self.elsewhere.bad += 1,
                _ => self.elsewhere.unknown += 1,
            }
            return;
        };
        let root = map.root(path);
        if event.call.class == Class::Metadata && root.on_shared {
            program.shared += 1;
        }
        let cell = self.cells.entry((root.place, event.call.class)).or_default();
        cell.calls += 1;
        cell.missing += u64::from(missing);
        cell.bytes_read += read;
        // The bytes that a copy writes belong to its destination.
        let sink = event.other.filter(|_| matches!(event.call.effect, Effect::Copy(..)));
        let sink_place = sink.map_or(root.place, |p| map.root(p).place);
        self.cells.entry((sink_place, event.call.class)).or_default().bytes_written += written;
        if root.on_shared {
            *self.on_shared.entry(root.place).or_default() += 1;
        }
        let at = self.at(event);
        match (event.call.class, root.on_shared) {
            (Class::Metadata, true) => self.metadata.add(at, 1),
            (Class::Metadata, false) => self.metadata_elsewhere.add(at, 1),
            (Class::Data, true) => self.data.add(at, 1),
            (Class::Data, false) => {}
        }
        self.count_path(event, path, read, written, missing);
        self.count_search(event, path, root.on_shared, map, missing);
    }

    fn count_operation(&mut self, event: &Event, place: Option<Place>, read: u64, written: u64) {
        let key = (place, event.call.class, event.name.to_vec());
        let operation = self.operations.entry(key).or_default();
        operation.calls += 1;
        operation.failed += u64::from(matches!(event.result, Ended::Failed(_)));
        operation.missing += u64::from(event.result.is_missing());
        operation.bytes_read += read;
        operation.bytes_written += written;
        operation.seconds += event.spent.unwrap_or(0) as f64 / 1e6;
    }

    fn count_path(&mut self, event: &Event, path: PathId, read: u64, written: u64, missing: bool) {
        let well = event.result == Ended::Well;
        let tally = self.path(path);
        match event.call.class {
            Class::Metadata => tally.metadata = tally.metadata.saturating_add(1),
            Class::Data => tally.data = tally.data.saturating_add(1),
        }
        tally.missing = tally.missing.saturating_add(u32::from(missing));
        if !well {
            return;
        }
        tally.exists = true;
        match event.call.effect {
            Effect::List | Effect::ChangeDirectory | Effect::ChangeRoot => tally.directory = true,
            Effect::Open(_) | Effect::Create => {
                tally.directory |= event.open.directory;
                tally.changed |= event.open.for_writing || event.open.creates;
                tally.created |= event.open.creates && !event.open.directory;
                if !event.open.directory {
                    tally.opens = tally.opens.saturating_add(1);
                    self.opened(event.process, path);
                }
            }
            Effect::Execute => {
                tally.opens = tally.opens.saturating_add(1);
                self.opened(event.process, path);
            }
            Effect::Read => {
                tally.read += read;
                self.was_read(event.process, path, read);
            }
            Effect::Copy(..) => {
                tally.read += read;
                self.was_read(event.process, path, read);
                if let Some(other) = event.other {
                    self.was_written(event.process, other, written);
                }
            }
            Effect::Write => self.was_written(event.process, path, written),
            Effect::Map(_) => tally.mapped = tally.mapped.max(event.bytes),
            Effect::Change => tally.changed = true,
            Effect::Rename(_) => {
                tally.changed = true;
                if let Some(other) = event.other {
                    self.path(other).changed = true;
                }
            }
            Effect::Look | Effect::Close | Effect::Hint => {}
        }
    }

    fn opened(&mut self, process: u32, path: PathId) {
        if self.openers.len() < PAIRS_MAX {
            self.openers.insert((process, path));
        }
        if let Some(reading) = self.readings.get_mut(&(process, path)) {
            reading.most = reading.most.max(reading.now);
            reading.now = 0;
        }
    }

    fn was_read(&mut self, process: u32, path: PathId, bytes: u64) {
        if bytes > 0 && (self.readings.len() < PAIRS_MAX || self.readings.contains_key(&(process, path))) {
            self.readings.entry((process, path)).or_default().now += bytes;
        }
    }

    fn was_written(&mut self, process: u32, path: PathId, bytes: u64) {
        let tally = self.path(path);
        tally.written += bytes;
        tally.changed |= bytes > 0;
        if bytes == 0 || (self.writings.len() >= PAIRS_MAX && !self.writings.contains_key(&path)) {
            return;
        }
        let writing = self.writings.entry(path).or_default();
        writing.writes += 1;
        if self.writers < PAIRS_MAX && writing.writers.insert(process) {
            self.writers += 1;
        }
        if writing.votes == 0 {
            (writing.record, writing.votes) = (bytes, 1);
        } else if writing.record == bytes {
            writing.votes += 1;
        } else {
            writing.votes -= 1;
        }
    }

    fn count_search(&mut self, event: &Event, path: PathId, on_shared: bool, map: &Map, missing: bool) {
        let well = event.result == Ended::Well;
        let found = well
            && match event.call.effect {
                Effect::Open(_) => !event.open.directory && !event.open.for_writing,
                Effect::Execute => true,
                _ => false,
            };
        let seeks = matches!(event.call.effect, Effect::Look | Effect::Open(_) | Effect::Execute);
        if !(missing && seeks || found) {
            return;
        }
        let path = event.asked.unwrap_or(path);
        let Some(kind) = self.search.kind(&map.paths, path, event.call.effect) else { return };
        let directory = map.paths.parent(path);
        let tally = self.searches.entry(kind).or_default().entry(directory).or_default();
        if missing {
            tally.missing += 1;
            tally.shared += u64::from(on_shared);
        } else {
            tally.found += 1;
        }
    }

    /// Returns for each file that was read the maximum that one process read between two opens.
    pub fn extents(&self) -> Extents {
        let mut extents: Extents = HashMap::new();
        for ((_, path), reading) in &self.readings {
            let extent = extents.entry(*path).or_default();
            *extent = (*extent).max(reading.most.max(reading.now));
        }
        extents
    }
}

/// Returns the bytes read and written.
fn bytes(event: &Event) -> (u64, u64) {
    match event.call.effect {
        Effect::Read => (event.bytes, 0),
        Effect::Write => (0, event.bytes),
        Effect::Copy(..) => {
            // A copy from a pipe to a file refers to the file, which is not read.
            let reads = matches!(event.concerns, Concerns::File(path) if event.other != Some(path));
            (if reads { event.bytes } else { 0 }, if event.other.is_some() { event.bytes } else { 0 })
        }
        _ => (0, 0),
    }
}
