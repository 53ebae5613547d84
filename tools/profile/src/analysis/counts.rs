//! The first reading: counts every call in exactly one cell, and stores for each path, program and
//! search the values that the findings need.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::analysis::searches::{SearchKind, Searches};
use crate::analysis::series::Series;
use crate::locations::{Location, PathMap};
use crate::paths::PathId;
use crate::report::{Elsewhere, Operation, SharedTotals};
use crate::trace::calls::{Class, Effect};
use crate::trace::event::{CallResult, CallTarget, Event};
use crate::trace::processes::ProgramId;

/// The counts of one path.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathCounts {
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
pub struct ProgramCounts {
    pub metadata: u64,
    pub shared: u64,
    pub missing: u64,
    /// The part of `missing` that is on shared file systems.
    pub missing_shared: u64,
    pub data: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SearchCounts {
    pub missing: u64,
    pub found: u64,
    pub shared: u64,
}

/// The counts of one process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessCounts {
    /// The id of its first thread in the trace.
    pub pid: u32,
    /// The last program that it executed.
    pub program: ProgramId,
    pub begin_us: u64,
    pub end_us: u64,
    pub calls: u64,
    /// Metadata calls to shared file systems.
    pub shared: u64,
}

/// The number of bytes of a file that a process has read in one program. The count begins again at
/// an exec, because every program reads its libraries.
#[derive(Debug, Clone, Copy, Default)]
struct BytesRead {
    since_open: u64,
    /// The maximum between two opens.
    pass_max: u64,
    total: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Writing {
    pub writers: HashSet<u32>,
    /// Number of writes by `writers`.
    pub writes: u64,
    /// Number of bytes that `writers` wrote.
    pub bytes: u64,
    /// The most frequent size of a write, by majority vote.
    pub record: u64,
    votes: u64,
}

/// Limit on entries for pairs of a file and a process; findings include only the entries before it.
const PAIRS_MAX: usize = 1 << 20;

/// The bytes of a file that were read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extent {
    /// The maximum that one process read between two opens: the part of the file that is used.
    pub bytes: u64,
    /// The maximum that one process read in total.
    pub process_bytes: u64,
}

pub type Extents = HashMap<PathId, Extent>;

#[derive(Debug)]
pub struct Counts {
    pub cells: BTreeMap<(Location, Class), Cell>,
    pub elsewhere: Elsewhere,
    pub operations: HashMap<(Option<Location>, Class, Vec<u8>), Operation>,
    pub failed: u64,
    pub missing: u64,
    /// The start of the first call, and the end of the last one.
    pub begin_us: Option<u64>,
    pub end_us: u64,
    /// Whether any call has its duration.
    pub has_durations: bool,
    pub metadata: Series,
    pub data: Series,
    pub metadata_not_shared: Series,
    pub on_shared: HashMap<Location, u64>,
    pub paths: Vec<PathCounts>,
    pub programs: HashMap<u32, ProgramCounts>,
    pub program_processes: HashMap<u32, HashSet<u32>>,
    pub searches: HashMap<SearchKind, HashMap<PathId, SearchCounts>>,
    pub processes: HashMap<u32, ProcessCounts>,
    /// Calls to shared file systems.
    pub shared: SharedTotals,
    bytes_read: HashMap<(u32, ProgramId, PathId), BytesRead>,
    pub openers: HashSet<(u32, PathId)>,
    /// Files that a process opened for writing in its current program.
    write_openers: HashSet<(u32, ProgramId, PathId)>,
    pub writings: HashMap<PathId, Writing>,
    /// Total number of writers in `writings`.
    writers: usize,
    search: Searches,
    tracing: TracingCost,
}

/// The time that tracing adds, estimated as the union of the intervals in which the tracer handles
/// a call: several processes that are stopped at the same time do not add up.
#[derive(Debug, Clone, Copy, Default)]
struct TracingCost {
    /// The time that the tracer needs for one call.
    call_us: u64,
    total_us: u64,
    covered_until_us: u64,
}

impl TracingCost {
    fn add(&mut self, time_us: u64) {
        let end_us = time_us.saturating_add(self.call_us);
        let begin_us = time_us.max(self.covered_until_us);
        self.total_us += end_us.saturating_sub(begin_us);
        self.covered_until_us = self.covered_until_us.max(end_us);
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Cell {
    pub calls: u64,
    pub missing: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl Counts {
    pub fn new(search: Searches) -> Counts {
        let cells = Location::ALL
            .into_iter()
            .flat_map(|p| [Class::Metadata, Class::Data].map(|c| ((p, c), Cell::default())));
        Counts {
            cells: cells.collect(),
            elsewhere: Elsewhere::default(),
            operations: HashMap::new(),
            failed: 0,
            missing: 0,
            begin_us: None,
            end_us: 0,
            has_durations: false,
            metadata: Series::default(),
            data: Series::default(),
            metadata_not_shared: Series::default(),
            on_shared: HashMap::new(),
            paths: Vec::new(),
            programs: HashMap::new(),
            program_processes: HashMap::new(),
            searches: HashMap::new(),
            processes: HashMap::new(),
            shared: SharedTotals::default(),
            bytes_read: HashMap::new(),
            openers: HashSet::new(),
            write_openers: HashSet::new(),
            writings: HashMap::new(),
            writers: 0,
            search,
            tracing: TracingCost::default(),
        }
    }

    /// Sets the time that tracing adds to one call.
    pub fn set_call_cost_us(&mut self, call_us: u64) {
        self.tracing.call_us = call_us;
    }

    /// Returns the time in microseconds that tracing added, as estimated from the cost of a call.
    pub fn tracing_us(&self) -> u64 {
        self.tracing.total_us
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
    pub fn span_us(&self, last_exit_us: u64) -> u64 {
        let Some(begin_us) = self.begin_us else { return 0 };
        if last_exit_us > self.end_us {
            return last_exit_us - begin_us;
        }
        let span = self.end_us.saturating_sub(begin_us);
        let calls = self.calls();
        match self.has_durations || calls < 2 {
            true => span,
            false => (u128::from(span) * u128::from(calls) / u128::from(calls - 1)) as u64,
        }
    }

    pub fn search_name(&self, kind: &SearchKind) -> (&str, &'static str) {
        self.search.name(kind)
    }

    pub fn path(&mut self, path: PathId) -> &mut PathCounts {
        if path.index() >= self.paths.len() {
            self.paths.resize(path.index() + 1, PathCounts::default());
        }
        &mut self.paths[path.index()]
    }

    /// Returns the time since the first call, in microseconds.
    pub fn offset_us(&self, event: &Event) -> u64 {
        event.time_us.saturating_sub(self.begin_us.unwrap_or(event.time_us))
    }

    pub fn count(&mut self, event: &Event, map: &PathMap) {
        self.begin_us.get_or_insert(event.first_call_us);
        self.end_us = self.end_us.max(event.time_us.saturating_add(event.duration_us.unwrap_or(0)));
        self.has_durations |= event.duration_us.is_some();
        self.tracing.add(event.time_us);
        let missing = event.result.is_missing();
        self.failed += u64::from(matches!(event.result, CallResult::Failed(_)));
        self.missing += u64::from(missing);
        let (read, written) = bytes(event);
        let location = match event.target {
            CallTarget::File(path) => Some(map.root(path).location),
            _ => None,
        };
        self.count_operation(event, location, read, written);
        self.program_processes.entry(event.program).or_default().insert(event.process);
        let on_shared = matches!(event.target, CallTarget::File(path) if map.root(path).on_shared);
        self.count_process(event, on_shared);
        let program = self.programs.entry(event.program).or_default();
        match event.call.class {
            Class::Metadata => program.metadata += 1,
            Class::Data => program.data += 1,
        }
        program.missing += u64::from(missing);
        let CallTarget::File(path) = event.target else {
            match event.target {
                CallTarget::NoFile => self.elsewhere.no_file += 1,
                CallTarget::Invalid => self.elsewhere.bad += 1,
                _ => self.elsewhere.unknown += 1,
            }
            return;
        };
        let root = map.root(path);
        if event.call.class == Class::Metadata && root.on_shared {
            program.shared += 1;
            program.missing_shared += u64::from(missing);
        }
        let cell = self.cells.entry((root.location, event.call.class)).or_default();
        cell.calls += 1;
        cell.missing += u64::from(missing);
        cell.bytes_read += read;
        // The bytes that a copy writes belong to its destination.
        let sink = event.other_path.filter(|_| matches!(event.call.effect, Effect::Copy(..)));
        let sink_location = sink.map_or(root.location, |p| map.root(p).location);
        self.cells.entry((sink_location, event.call.class)).or_default().bytes_written += written;
        if root.on_shared {
            *self.on_shared.entry(root.location).or_default() += 1;
            self.shared.missing += u64::from(missing);
            self.shared.bytes_read += read;
            match event.call.class {
                Class::Metadata => self.shared.metadata += 1,
                Class::Data => self.shared.data += 1,
            }
        }
        if sink.map_or(root.on_shared, |path| map.root(path).on_shared) {
            self.shared.bytes_written += written;
        }
        let at_us = self.offset_us(event);
        match (event.call.class, root.on_shared) {
            (Class::Metadata, true) => self.metadata.add(at_us, 1),
            (Class::Metadata, false) => self.metadata_not_shared.add(at_us, 1),
            (Class::Data, true) => self.data.add(at_us, 1),
            (Class::Data, false) => {}
        }
        self.count_path(event, path, read, written, missing);
        self.count_search(event, path, root.on_shared, map, missing);
    }

    fn count_process(&mut self, event: &Event, on_shared: bool) {
        if self.processes.len() >= PAIRS_MAX && !self.processes.contains_key(&event.process) {
            return;
        }
        let process = self.processes.entry(event.process).or_insert(ProcessCounts {
            pid: event.pid,
            program: event.program,
            begin_us: event.time_us,
            end_us: event.time_us,
            calls: 0,
            shared: 0,
        });
        process.program = event.program;
        process.begin_us = process.begin_us.min(event.time_us);
        process.end_us = process.end_us.max(event.time_us.saturating_add(event.duration_us.unwrap_or(0)));
        process.calls += 1;
        process.shared += u64::from(on_shared && event.call.class == Class::Metadata);
    }

    fn count_operation(&mut self, event: &Event, location: Option<Location>, read: u64, written: u64) {
        let key = (location, event.call.class, event.name.to_vec());
        let operation = self.operations.entry(key).or_default();
        operation.calls += 1;
        operation.failed += u64::from(matches!(event.result, CallResult::Failed(_)));
        operation.missing += u64::from(event.result.is_missing());
        operation.bytes_read += read;
        operation.bytes_written += written;
        operation.seconds += event.duration_us.unwrap_or(0) as f64 / 1e6;
    }

    fn count_path(&mut self, event: &Event, path: PathId, read: u64, written: u64, missing: bool) {
        let succeeded = event.result == CallResult::Succeeded;
        let counts = self.path(path);
        match event.call.class {
            Class::Metadata => counts.metadata = counts.metadata.saturating_add(1),
            Class::Data => counts.data = counts.data.saturating_add(1),
        }
        counts.missing = counts.missing.saturating_add(u32::from(missing));
        if !succeeded {
            return;
        }
        counts.exists = true;
        match event.call.effect {
            Effect::List | Effect::ChangeDirectory | Effect::ChangeRoot => counts.directory = true,
            Effect::Open(_) | Effect::Create => {
                counts.directory |= event.open.directory;
                counts.changed |= event.open.for_writing || event.open.creates;
                counts.created |= event.open.creates && !event.open.directory;
                if !event.open.directory {
                    counts.opens = counts.opens.saturating_add(1);
                    self.record_open(event, path);
                    if event.open.for_writing && self.write_openers.len() < PAIRS_MAX {
                        self.write_openers.insert((event.process, event.program, path));
                    }
                }
            }
            Effect::Execute => {
                counts.opens = counts.opens.saturating_add(1);
                self.record_open(event, path);
            }
            Effect::Read => {
                counts.read += read;
                self.record_read(event, path, read);
            }
            Effect::Copy(..) => {
                counts.read += read;
                self.record_read(event, path, read);
                if let Some(other) = event.other_path {
                    self.record_write(event, other, written);
                }
            }
            Effect::Write => self.record_write(event, path, written),
            Effect::Map(_) => counts.mapped = counts.mapped.max(event.bytes),
            Effect::Change => counts.changed = true,
            Effect::Rename(_) => {
                counts.changed = true;
                if let Some(other) = event.other_path {
                    self.path(other).changed = true;
                }
            }
            Effect::Inspect | Effect::Close | Effect::Hint => {}
        }
    }

    fn record_open(&mut self, event: &Event, path: PathId) {
        if self.openers.len() < PAIRS_MAX {
            self.openers.insert((event.process, path));
        }
        if let Some(read) = self.bytes_read.get_mut(&(event.process, event.program, path)) {
            read.pass_max = read.pass_max.max(read.since_open);
            read.since_open = 0;
        }
    }

    fn record_read(&mut self, event: &Event, path: PathId, bytes: u64) {
        let key = (event.process, event.program, path);
        if bytes > 0 && (self.bytes_read.len() < PAIRS_MAX || self.bytes_read.contains_key(&key)) {
            let read = self.bytes_read.entry(key).or_default();
            read.since_open += bytes;
            read.total += bytes;
        }
    }

    fn record_write(&mut self, event: &Event, path: PathId, bytes: u64) {
        let counts = self.path(path);
        counts.written += bytes;
        counts.changed |= bytes > 0;
        if bytes == 0
            || self.is_inherited_stream(event, path)
            || (self.writings.len() >= PAIRS_MAX && !self.writings.contains_key(&path))
        {
            return;
        }
        let writing = self.writings.entry(path).or_default();
        writing.writes += 1;
        writing.bytes += bytes;
        if self.writers < PAIRS_MAX && writing.writers.insert(event.process) {
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

    /// Returns whether a write goes to the standard output or standard error that the program
    /// inherited. The processes of a job that print to one file do not share it as data.
    fn is_inherited_stream(&self, event: &Event, path: PathId) -> bool {
        matches!(event.output_descriptor, Some(1 | 2))
            && !self.write_openers.contains(&(event.process, event.program, path))
    }

    fn count_search(&mut self, event: &Event, path: PathId, on_shared: bool, map: &PathMap, missing: bool) {
        let succeeded = event.result == CallResult::Succeeded;
        let found = succeeded
            && match event.call.effect {
                Effect::Open(_) => !event.open.directory && !event.open.for_writing,
                Effect::Execute => true,
                _ => false,
            };
        let seeks = matches!(event.call.effect, Effect::Inspect | Effect::Open(_) | Effect::Execute);
        if !(missing && seeks || found) {
            return;
        }
        let path = event.named_path.unwrap_or(path);
        let Some(kind) = self.search.kind(&map.paths, path, event.call.effect) else { return };
        let directory = map.paths.parent(path);
        let counts = self.searches.entry(kind).or_default().entry(directory).or_default();
        if missing {
            counts.missing += 1;
            counts.shared += u64::from(on_shared);
        } else {
            counts.found += 1;
        }
    }

    /// Returns the extent of each file that was read.
    pub fn extents(&self) -> Extents {
        let mut extents: Extents = HashMap::new();
        for ((_, _, path), read) in &self.bytes_read {
            let extent = extents.entry(*path).or_default();
            extent.bytes = extent.bytes.max(read.pass_max.max(read.since_open));
            extent.process_bytes = extent.process_bytes.max(read.total);
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
            let reads = matches!(event.target, CallTarget::File(path) if event.other_path != Some(path));
            (if reads { event.bytes } else { 0 }, if event.other_path.is_some() { event.bytes } else { 0 })
        }
        _ => (0, 0),
    }
}
