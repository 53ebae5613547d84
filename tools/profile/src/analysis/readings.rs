//! Creates a report from traces, in two readings of the same lines. The first counts and chooses
//! the trees that an index would cover; the second replays the operations that would then remain.

use std::cmp::Reverse;
use std::time::Duration;

use crate::analysis::counts::Counts;
use crate::analysis::lanes::Lanes;
use crate::analysis::measured::Measured;
use crate::analysis::replay::{Replay, ReplayPlan};
use crate::analysis::saturation::{LEAVES_OUT, saturating_nodes};
use crate::analysis::searches::{Searches, Variable};
use crate::analysis::trees::{self, Chosen, Refused, UserDirectories};
use crate::analysis::{findings, notes, path_tree, rates, totals, verdict};
use crate::locations::{Directories, Links, LocationRules, PathMap};
use crate::paths::PathId;
use crate::report::{Nodes, Report, SCHEMA, Scenarios};
use crate::trace::reader::{LineSource, Output, Reader};

/// Number of processes of which the operations over time are recorded.
const LANES_MAX: usize = 24;

/// The rate that a file system sustains, and its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    /// Metadata operations per second.
    pub operations_per_s: f64,
    /// The source of the number, as text for the report.
    pub from: String,
}

/// The size of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceSummary {
    /// Number of file-system calls.
    pub calls: u64,
    /// The time from the first call to the last.
    pub span: Duration,
    /// The part of `span` that tracing added, as estimated from the cost of a call; zero if that is
    /// unknown.
    pub tracing: Duration,
}

/// The first reading: counts the calls.
#[derive(Debug)]
pub struct FirstReading<'l> {
    map: PathMap<'l>,
    reader: Reader,
    counts: Counts,
    working: Option<PathId>,
    home: Option<PathId>,
}

impl<'l> FirstReading<'l> {
    /// Creates a reading that has read nothing. `variables` are the lists of directories in the
    /// environment of the traced program; empty if they are unknown.
    pub fn new(
        rules: &LocationRules,
        variables: Vec<Variable>,
        links: &'l mut dyn Links,
    ) -> FirstReading<'l> {
        let mut map = PathMap::new(rules, links);
        let working = rules.working.as_ref().map(|path| map.resolve(PathId::ROOT, path, true));
        let home = rules.home.as_ref().map(|path| map.resolve(PathId::ROOT, path, true));
        let searches = Searches::new(variables, |directory| map.resolve(PathId::ROOT, directory, true));
        FirstReading { map, reader: Reader::new(working), counts: Counts::new(searches), working, home }
    }

    /// Sets the time that tracing adds to one call, from which the whole cost of tracing is
    /// estimated.
    pub fn set_call_cost(&mut self, cost: Duration) {
        self.counts.set_call_cost_us(u64::try_from(cost.as_micros()).unwrap_or(u64::MAX));
    }

    /// Reads one line. `position` describes it if it cannot be read.
    pub fn line(&mut self, source: LineSource, text: &[u8], position: impl Fn() -> String) {
        let counts = &mut self.counts;
        let mut output = Output { map: &mut self.map, on_event: &mut |event, map| counts.count(event, map) };
        self.reader.line(source, text, &position, &mut output);
    }

    /// Ends the reading.
    pub fn end(&mut self) -> TraceSummary {
        let counts = &mut self.counts;
        let mut output = Output { map: &mut self.map, on_event: &mut |event, map| counts.count(event, map) };
        self.reader.finish(&mut output);
        let span_us = self.counts.span_us(self.reader.last_exit_us);
        TraceSummary {
            calls: self.counts.calls(),
            span: Duration::from_micros(span_us),
            tracing: Duration::from_micros(self.counts.tracing_us().min(span_us)),
        }
    }

    /// Chooses the trees to cover. `slow_down` is the ratio of the durations with and without the
    /// tracer, by which all times of the report are divided.
    pub fn choose(mut self, slow_down: f64, directories: &mut dyn Directories) -> SecondReading<'l> {
        let slow_down = if slow_down.is_finite() { slow_down.max(1.0) } else { 1.0 };
        self.reader.resolver.processes.clear();
        let (chosen, refused) = trees::choose(
            &self.map,
            &self.counts.paths,
            UserDirectories { home: self.home, working: self.working },
            directories,
        );
        let tops: Vec<PathId> = chosen.iter().map(|c| c.path).collect();
        let is_directory = used_directories(&self.map, &self.counts);
        let plan = ReplayPlan {
            trees: &tops,
            begin_us: self.counts.begin_us.unwrap_or(0),
            is_directory: is_directory.clone(),
            slow_down,
            lanes: Lanes::new(
                busiest_processes(&self.counts).into_iter(),
                self.counts.span_us(self.reader.last_exit_us),
            ),
        };
        let replay = Replay::new(&self.map, plan);
        SecondReading {
            first: self.reader,
            reader: Reader::new(self.working),
            map: self.map,
            counts: self.counts,
            chosen,
            refused,
            replay,
            is_directory,
            slow_down,
        }
    }
}

/// Returns the numbers of the processes with the most metadata calls to shared file systems.
fn busiest_processes(counts: &Counts) -> Vec<u32> {
    let mut processes: Vec<_> = counts.processes.iter().filter(|(_, row)| row.shared > 0).collect();
    processes.sort_by_key(|(number, row)| (Reverse(row.shared), **number));
    processes.into_iter().take(LANES_MAX).map(|(number, _)| *number).collect()
}

/// Returns for each path whether it is a directory: it was used as one, or has an existing entry.
fn used_directories(map: &PathMap, counts: &Counts) -> Vec<bool> {
    let counted = |path: PathId| counts.paths.get(path.index());
    let mut is_directory: Vec<bool> =
        map.paths.all().map(|path| counted(path).is_some_and(|counts| counts.directory)).collect();
    for path in map.paths.all().rev() {
        if is_directory[path.index()] || counted(path).is_some_and(|counts| counts.exists) {
            is_directory[map.paths.parent(path).index()] = true;
        }
    }
    is_directory
}

/// The second reading: replays the calls with the chosen trees.
#[derive(Debug)]
pub struct SecondReading<'l> {
    first: Reader,
    reader: Reader,
    map: PathMap<'l>,
    counts: Counts,
    chosen: Vec<Chosen>,
    refused: Vec<Refused>,
    replay: Replay,
    is_directory: Vec<bool>,
    slow_down: f64,
}

impl SecondReading<'_> {
    /// Reads one line. The second reading needs the same lines as the first, in the same order.
    pub fn line(&mut self, source: LineSource, text: &[u8]) {
        let replay = &mut self.replay;
        let mut output = Output { map: &mut self.map, on_event: &mut |event, map| replay.count(event, map) };
        self.reader.line(source, text, &String::new, &mut output);
    }

    /// Returns the report of both readings. The caller adds the values that the traces do not
    /// contain: the command, the node, the tracer, and the commands to run next.
    pub fn report(mut self, capacity: Option<&Capacity>) -> Report {
        let replay = &mut self.replay;
        let mut output = Output { map: &mut self.map, on_event: &mut |event, map| replay.count(event, map) };
        self.reader.finish(&mut output);
        let extents = self.counts.extents();
        let measured = Measured {
            map: &self.map,
            reader: &self.first,
            counts: &self.counts,
            replay: &self.replay,
            chosen: &self.chosen,
            refused: &self.refused,
            is_directory: &self.is_directory,
            extents: &extents,
            slow_down: self.slow_down,
            traced_us: self.counts.span_us(self.first.last_exit_us),
        };
        let remaining = totals::remaining(&measured);
        let (rate, metadata_rate) = rates::rates(&measured, &remaining);
        let begin_us = self.counts.begin_us.filter(|_| self.first.timestamps.has_times).unwrap_or(0);
        let mut report = Report {
            schema: SCHEMA.to_owned(),
            started_s: begin_us as f64 / 1e6,
            duration_s: measured.duration_s(),
            totals: totals::totals(&measured),
            locations: totals::locations(&measured),
            operations: totals::operations(&measured),
            rate,
            metadata_rate,
            path_tree: path_tree::path_tree(&measured),
            processes: findings::processes(&measured),
            directories: findings::directories(&measured),
            programs: findings::programs(&measured),
            searches: findings::searches(&measured),
            rereads: findings::rereads(&measured),
            shared_writes: findings::shared_writes(&measured),
            small_files: findings::small_files(&measured),
            trees: findings::trees(&measured),
            not_proposed: findings::not_proposed(&measured),
            remaining,
            ..Report::default()
        };
        let has_rates = report.totals.shared.metadata > 0 && measured.traced_us > 0;
        report.nodes = capacity.filter(|_| has_rates).map(|capacity| nodes(&report, capacity));
        report.verdict = verdict::verdict(&report);
        report.notes = notes::notes(&measured, &report);
        report
    }
}

/// Returns the numbers of nodes that saturate the file system.
fn nodes(report: &Report, capacity: &Capacity) -> Nodes {
    let nodes_at = |rate: f64| saturating_nodes(capacity.operations_per_s, rate);
    let rates = report.metadata_rate.scenarios;
    Nodes {
        direct: nodes_at(rates.direct.average),
        index: nodes_at(rates.index.average),
        boot: nodes_at(rates.boot.average),
        by_peak: Scenarios {
            direct: nodes_at(rates.direct.peak),
            index: nodes_at(rates.index.peak),
            boot: nodes_at(rates.boot.peak),
        },
        capacity: capacity.operations_per_s,
        capacity_from: capacity.from.clone(),
        leaves_out: LEAVES_OUT.map(str::to_owned).to_vec(),
    }
}
