//! Creates a report from traces, in two readings of the same lines. The first counts and chooses
//! the trees that an index would cover; the second replays the operations that would then remain.

use std::cmp::Reverse;
use std::time::Duration;

use crate::calls::Class;
use crate::nodes::{LEAVES_OUT, nodes};
use crate::paths::PathId;
use crate::places::{Geography, Links, Map, Place};
use crate::reader::{Programs, Reader, Source};
use crate::replay::{OPERATIONS_OF_A_BOOT, OPERATIONS_OF_AN_INDEX, Replay, looks};
use crate::report::{self, Report, Scenarios};
use crate::searches::{Searches, Variable};
use crate::series::{SECOND_US, Series};
use crate::tally::{Extents, Tally};
use crate::trees::{self, Chosen, Refused};

/// Number of rows in a table; the totals include all.
const ROWS_MAX: usize = 20;
const SEARCH_DIRECTORIES_MAX: usize = 10;
/// Number of points in a chart.
const POINTS_MAX: usize = 600;
/// A file counts as reread if it was read completely at least this many times.
const REREADS_MIN: f64 = 2.0;
const REREAD_OPENS_MIN: u64 = 3;
const SMALL_FILE_BYTES_MAX: u64 = 64 << 10;
/// Minimum number of small files in a directory that is listed.
const SMALL_FILES_MIN: u64 = 100;

/// The rate that a file system sustains, and its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    pub operations_per_s: f64,
    pub from: String,
}

#[derive(Debug)]
pub struct FirstReading<'l> {
    map: Map<'l>,
    reader: Reader,
    tally: Tally,
    working: Option<PathId>,
}

impl<'l> FirstReading<'l> {
    pub fn new(
        geography: &Geography,
        variables: Vec<Variable>,
        links: &'l mut dyn Links,
    ) -> FirstReading<'l> {
        let mut map = Map::new(geography, links);
        let working = geography.working.as_ref().map(|path| map.resolve(PathId::ROOT, path, true));
        let search = Searches::new(variables, |directory| map.resolve(PathId::ROOT, directory, true));
        FirstReading { map, reader: Reader::new(working), tally: Tally::new(search), working }
    }

    /// Reads one line. `place` describes it if it cannot be read.
    pub fn line(&mut self, source: Source, text: &[u8], place: impl Fn() -> String) {
        let tally = &mut self.tally;
        self.reader.line(source, text, &mut self.map, place, &mut |event, map| tally.count(event, map));
    }

    /// Ends the reading. Returns the number of file-system calls, and the time from the first to
    /// the last.
    pub fn end(&mut self) -> (u64, Duration) {
        let tally = &mut self.tally;
        self.reader.finish(&mut self.map, &mut |event, map| tally.count(event, map));
        (self.tally.calls(), Duration::from_micros(self.tally.span_us(self.reader.last_exit)))
    }

    /// Chooses the trees to cover. `slow_down` is the ratio of the durations with and without the
    /// tracer: all times of the report are those without.
    pub fn choose(mut self, slow_down: f64) -> SecondReading<'l> {
        let slow_down = if slow_down.is_finite() { slow_down.max(1.0) } else { 1.0 };
        self.reader.processes.forget();
        let (chosen, refused) = trees::choose(&self.map, &self.tally.paths);
        let tops: Vec<PathId> = chosen.iter().map(|c| c.path).collect();
        let is_directory = directories(&self.map, &self.tally);
        let begin = self.tally.begin.unwrap_or(0);
        let replay = Replay::new(&self.map, &tops, begin, is_directory.clone(), slow_down);
        SecondReading {
            first: self.reader,
            reader: Reader::new(self.working),
            map: self.map,
            tally: self.tally,
            chosen,
            refused,
            replay,
            is_directory,
            slow_down,
        }
    }
}

/// Returns which paths are directories: those that were used as one, and those with an existing
/// entry.
fn directories(map: &Map, tally: &Tally) -> Vec<bool> {
    let mut is_directory: Vec<bool> =
        map.paths.all().map(|p| tally.paths.get(p.index()).is_some_and(|t| t.directory)).collect();
    for path in map.paths.all().rev() {
        let there = is_directory[path.index()] || tally.paths.get(path.index()).is_some_and(|t| t.exists);
        if there {
            is_directory[map.paths.parent(path).index()] = true;
        }
    }
    is_directory
}

#[derive(Debug)]
pub struct SecondReading<'l> {
    first: Reader,
    reader: Reader,
    map: Map<'l>,
    tally: Tally,
    chosen: Vec<Chosen>,
    refused: Vec<Refused>,
    replay: Replay,
    is_directory: Vec<bool>,
    slow_down: f64,
}

impl SecondReading<'_> {
    pub fn line(&mut self, source: Source, text: &[u8]) {
        let replay = &mut self.replay;
        self.reader
            .line(source, text, &mut self.map, String::new, &mut |event, map| replay.count(event, map));
    }

    /// Returns the report of both readings. The caller adds what the traces do not contain: the
    /// command, the tracer, and the commands to run next.
    pub fn report(mut self, capacity: Option<&Capacity>) -> Report {
        let replay = &mut self.replay;
        self.reader.finish(&mut self.map, &mut |event, map| replay.count(event, map));
        let traced_us = self.tally.span_us(self.first.last_exit);
        let duration_s = traced_us as f64 / SECOND_US as f64 / self.slow_down;
        let extents = self.tally.extents();
        let remaining = self.remaining(&extents, duration_s);
        let (rate, metadata_rate) = self.rates(traced_us, &remaining);
        let totals = self.totals();
        let mut report = Report {
            schema: report::SCHEMA.to_owned(),
            started_s: self.tally.begin.filter(|_| self.first.has_times).unwrap_or(0) as f64 / 1e6,
            duration_s,
            totals,
            places: self.places(),
            operations: self.operations(),
            rate,
            metadata_rate,
            directories: self.top_directories(),
            programs: self.programs(),
            searches: self.searches(),
            rereads: self.rereads(&extents),
            shared_writes: self.shared_writes(),
            small_files: self.small_files(),
            trees: self.trees(&extents, duration_s),
            not_proposed: self.not_proposed(),
            remaining,
            ..Report::default()
        };
        let reaches_shared = self.metadata_on_shared() > 0;
        report.nodes = capacity.filter(|_| reaches_shared && traced_us > 0).map(|c| saturation(&report, c));
        report.notes = self.notes(&report, reaches_shared);
        report
    }

    fn metadata_on_shared(&self) -> u64 {
        self.on_shared().map(|(_, tally)| u64::from(tally.metadata)).sum()
    }

    fn on_shared(&self) -> impl Iterator<Item = (PathId, &crate::tally::PathTally)> {
        let paths = self.map.paths.all().zip(&self.tally.paths);
        paths.filter(|(path, _)| self.map.root(*path).on_shared)
    }

    fn totals(&self) -> report::Totals {
        let sum = |class| {
            self.tally.cells.iter().filter(|((_, c), _)| *c == class).map(|(_, cell)| cell.calls).sum()
        };
        let cells = || self.tally.cells.values();
        let mut by_call = std::collections::BTreeMap::new();
        for ((_, _, name), operation) in &self.tally.operations {
            *by_call.entry(String::from_utf8_lossy(name).into_owned()).or_default() += operation.calls;
        }
        report::Totals {
            lines: self.first.lines,
            calls: self.tally.calls(),
            metadata: sum(Class::Metadata),
            data: sum(Class::Data),
            elsewhere: self.tally.elsewhere,
            failed: self.tally.failed,
            missing: self.tally.missing,
            bytes_read: cells().map(|cell| cell.bytes_read).sum(),
            bytes_written: cells().map(|cell| cell.bytes_written).sum(),
            processes: u64::from(self.first.processes.groups),
            paths: self.tally.paths.iter().filter(|t| t.metadata + t.data > 0).count() as u64,
            by_call,
            skipped: self.first.skipped.clone(),
        }
    }

    fn places(&self) -> report::Places {
        let of = |place: Place| {
            let cell = |class| self.tally.cells[&(place, class)];
            let (metadata, data) = (cell(Class::Metadata), cell(Class::Data));
            let roots = (0u16..).zip(self.map.roots()).filter(|(_, root)| root.place == place);
            let used: std::collections::HashSet<u16> = self
                .tally
                .paths
                .iter()
                .zip(self.map.paths.all())
                .filter(|(tally, _)| tally.metadata + tally.data > 0)
                .map(|(_, path)| self.map.root_id(path))
                .collect();
            let changed = self.tally.paths.iter().zip(self.map.paths.all()).any(|(tally, path)| {
                tally.changed && self.map.root(path).place == place && !is_device(&self.map, path)
            });
            let calls = metadata.calls + data.calls;
            let roots = roots.filter(|(number, _)| used.contains(number)).map(|(_, root)| {
                let path = self.map.paths.text(root.path);
                if root.file_system.is_empty() { path } else { format!("{path} ({})", root.file_system) }
            });
            report::Place {
                roots: roots.collect(),
                metadata: metadata.calls,
                data: data.calls,
                bytes_read: metadata.bytes_read + data.bytes_read,
                bytes_written: metadata.bytes_written + data.bytes_written,
                missing: metadata.missing + data.missing,
                on_shared: self.tally.on_shared.get(&place).copied().unwrap_or(0),
                mode: match (calls, changed) {
                    (0, _) => report::AccessMode::Unused,
                    (_, false) => report::AccessMode::ReadOnly,
                    (_, true) => report::AccessMode::ReadWrite,
                },
            }
        };
        report::Places {
            cwd: of(Place::Cwd),
            tmp: of(Place::Tmp),
            shared: of(Place::Shared),
            local: of(Place::Local),
        }
    }

    fn operations(&self) -> Vec<report::Operation> {
        let mut rows: Vec<_> = self.tally.operations.iter().collect();
        rows.sort_by_key(|((place, class, name), row)| {
            (place.is_none(), *place, *class, Reverse(row.calls), name.clone())
        });
        let row = |((place, class, name), row): (&(Option<Place>, Class, Vec<u8>), &report::Operation)| {
            report::Operation {
                place: place.map_or("elsewhere", Place::name).to_owned(),
                class: class.name().to_owned(),
                call: String::from_utf8_lossy(name).into_owned(),
                ..row.clone()
            }
        };
        rows.into_iter().map(row).collect()
    }

    /// Converts the series to rates without the tracer; the series have the tracer's times.
    fn rates(
        &self,
        traced_us: u64,
        remaining: &Scenarios<report::Remaining>,
    ) -> (Vec<report::RatePoint>, report::MetadataRates) {
        if traced_us == 0 {
            return Default::default();
        }
        let series = &self.replay.series;
        let all = [
            &self.tally.metadata,
            &self.tally.data,
            &series.index,
            &series.boot,
            &self.tally.metadata_elsewhere,
        ];
        let step = all.iter().map(|s| s.step()).max().unwrap_or(1);
        let [metadata, data, index, boot, elsewhere] = all.map(|s| s.coarsened(step));
        let second_us = SECOND_US as f64 * self.slow_down;
        let rate = |series: &Series, operations: u64| {
            let peak = series.peak(traced_us, second_us as u64);
            report::Rate {
                average: operations as f64 * second_us / traced_us as f64,
                peak: peak.count as f64 * second_us / peak.window_us as f64,
                peak_at_s: peak.at_us as f64 / second_us,
            }
        };
        let scenarios = Scenarios {
            direct: rate(&metadata, self.metadata_on_shared()),
            index: rate(&index, remaining.index.metadata),
            boot: rate(&boot, remaining.boot.metadata),
        };
        let steps = (traced_us / step + 1) as usize;
        let together = steps.div_ceil(POINTS_MAX);
        let step_s = (step * together as u64) as f64 / second_us;
        let point = |number: usize| {
            let of = |series: &Series| series.sum(number * together, together) as f64 / step_s;
            report::RatePoint {
                t: number as f64 * step_s,
                metadata: of(&metadata),
                data: of(&data),
                index: of(&index),
                boot: of(&boot),
                elsewhere: of(&elsewhere),
            }
        };
        let points = (0..steps.div_ceil(together)).map(point).collect();
        let window_s = metadata.peak(traced_us, second_us as u64).window_us as f64 / second_us;
        (points, report::MetadataRates { step_s, window_s, scenarios })
    }

    fn remaining(&self, extents: &Extents, duration_s: f64) -> Scenarios<report::Remaining> {
        let bytes_read = self
            .on_shared()
            .map(|(path, tally)| extents.get(&path).copied().unwrap_or(0).max(tally.mapped))
            .fold(0, u64::saturating_add);
        let trees = self.chosen.len() as u64;
        let looks = if trees > 0 { looks(duration_s) } else { 0 };
        let of = |calls: u64, own: u64| report::Remaining { metadata: calls + own, bytes_read };
        Scenarios {
            direct: of(self.replay.total.direct, 0),
            index: of(self.replay.total.index, trees * OPERATIONS_OF_AN_INDEX + looks),
            boot: of(self.replay.total.boot, trees * OPERATIONS_OF_A_BOOT + looks),
        }
    }

    fn top_directories(&self) -> Vec<report::Directory> {
        let mut rows: std::collections::HashMap<PathId, report::Directory> = Default::default();
        for (path, tally) in self.map.paths.all().zip(&self.tally.paths) {
            if tally.metadata + tally.data == 0 {
                continue;
            }
            let directory = if self.is_directory[path.index()] { path } else { self.map.paths.parent(path) };
            let row = rows.entry(directory).or_default();
            row.metadata += u64::from(tally.metadata);
            row.missing += u64::from(tally.missing);
            row.data += u64::from(tally.data);
            row.bytes_read += tally.read;
            row.bytes_written += tally.written;
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        // Directories on shared file systems come first.
        rows.sort_by_key(|(path, row)| (!self.map.root(*path).on_shared, Reverse(row.metadata), *path));
        rows.truncate(ROWS_MAX);
        let row = |(path, row): (PathId, report::Directory)| report::Directory {
            path: self.map.paths.text(path),
            place: self.map.root(path).place.name().to_owned(),
            remaining: self.replay.of_directory.get(&path).copied().unwrap_or_default(),
            ..row
        };
        rows.into_iter().map(row).collect()
    }

    fn programs(&self) -> Vec<report::Program> {
        let programs: &Programs = self.first.programs();
        let mut rows: Vec<_> = self.tally.programs.iter().collect();
        rows.sort_by_key(|(number, row)| (Reverse(row.shared), Reverse(row.metadata), **number));
        rows.truncate(ROWS_MAX);
        let row = |(number, row): (&u32, &crate::tally::ProgramTally)| report::Program {
            path: programs.path(*number).map_or("(before the first exec)".into(), |p| self.map.paths.text(p)),
            processes: self.tally.program_processes.get(number).map_or(0, |p| p.len() as u64),
            metadata: row.metadata,
            shared: row.shared,
            missing: row.missing,
            data: row.data,
        };
        rows.into_iter().map(row).collect()
    }

    fn searches(&self) -> Vec<report::Search> {
        let search =
            |(kind, directories): (&crate::searches::Kind, &std::collections::HashMap<PathId, _>)| {
                let (variable, how) = self.tally.search_name(kind);
                let mut rows: Vec<(&PathId, &crate::tally::SearchTally)> = directories.iter().collect();
                rows.sort_by_key(|(path, row)| (Reverse(row.missing), **path));
                let sum =
                    |of: fn(&crate::tally::SearchTally) -> u64| rows.iter().map(|(_, row)| of(row)).sum();
                report::Search {
                    variable: variable.to_owned(),
                    how: how.to_owned(),
                    missing: sum(|row| row.missing),
                    shared: sum(|row| row.shared),
                    found: sum(|row| row.found),
                    directories: rows
                        .iter()
                        .filter(|(_, row)| row.missing > 0)
                        .take(SEARCH_DIRECTORIES_MAX)
                        .map(|(path, row)| report::SearchDirectory {
                            path: self.map.paths.text(**path),
                            missing: row.missing,
                            found: row.found,
                        })
                        .collect(),
                }
            };
        let mut searches: Vec<_> = self.tally.searches.iter().map(search).filter(|s| s.missing > 0).collect();
        searches.sort_by(|a, b| {
            (Reverse(a.shared), Reverse(a.missing), &a.variable).cmp(&(
                Reverse(b.shared),
                Reverse(b.missing),
                &b.variable,
            ))
        });
        searches.truncate(ROWS_MAX);
        searches
    }

    fn place_name(&self, path: PathId) -> String {
        self.map.root(path).place.name().to_owned()
    }

    fn rereads(&self, extents: &Extents) -> Vec<report::Reread> {
        let mut openers: std::collections::HashMap<PathId, u64> = Default::default();
        for (_, path) in &self.tally.openers {
            *openers.entry(*path).or_default() += 1;
        }
        let row = |(path, tally): (PathId, &crate::tally::PathTally)| {
            let extent = extents.get(&path).copied().filter(|e| *e > 0)?;
            let times = tally.read as f64 / extent as f64;
            let opens = u64::from(tally.opens);
            let is_one = times >= REREADS_MIN && opens >= REREAD_OPENS_MIN && !is_device(&self.map, path);
            is_one.then(|| {
                let wasted = tally.read - extent;
                let row = report::Reread {
                    path: self.map.paths.text(path),
                    place: self.place_name(path),
                    opens,
                    processes: openers.get(&path).copied().unwrap_or(0),
                    bytes_read: tally.read,
                    times,
                };
                (self.map.root(path).on_shared, wasted, row)
            })
        };
        let mut rows: Vec<_> = self.map.paths.all().zip(&self.tally.paths).filter_map(row).collect();
        rows.sort_by(|a, b| (b.0, b.1, &a.2.path).cmp(&(a.0, a.1, &b.2.path)));
        rows.into_iter().take(ROWS_MAX).map(|(_, _, row)| row).collect()
    }

    fn shared_writes(&self) -> Vec<report::SharedWrite> {
        let several = self
            .tally
            .writings
            .iter()
            .filter(|(path, w)| w.writers.len() > 1 && !is_device(&self.map, **path));
        let row = |(path, writing): (&PathId, &crate::tally::Writing)| report::SharedWrite {
            path: self.map.paths.text(*path),
            place: self.place_name(*path),
            writers: writing.writers.len() as u64,
            writes: writing.writes,
            bytes_written: self.tally.paths.get(path.index()).map_or(0, |t| t.written),
            record: writing.record,
        };
        let mut rows: Vec<_> = several.map(row).collect();
        rows.sort_by(|a, b| (Reverse(a.bytes_written), &a.path).cmp(&(Reverse(b.bytes_written), &b.path)));
        rows.truncate(ROWS_MAX);
        rows
    }

    fn small_files(&self) -> Vec<report::SmallFiles> {
        let mut rows: std::collections::HashMap<PathId, (u64, u64)> = Default::default();
        for (path, tally) in self.map.paths.all().zip(&self.tally.paths) {
            if tally.created && tally.written <= SMALL_FILE_BYTES_MAX {
                let row = rows.entry(self.map.paths.parent(path)).or_default();
                row.0 += 1;
                row.1 += tally.written;
            }
        }
        let mut rows: Vec<_> = rows.into_iter().filter(|(_, (files, _))| *files >= SMALL_FILES_MIN).collect();
        rows.sort_by_key(|(path, (files, _))| (Reverse(*files), *path));
        let row = |(path, (files, bytes_written))| report::SmallFiles {
            directory: self.map.paths.text(path),
            place: self.place_name(path),
            files,
            bytes_written,
        };
        rows.into_iter().take(ROWS_MAX).map(row).collect()
    }

    fn trees(&self, extents: &Extents, duration_s: f64) -> Vec<report::Tree> {
        let looks = looks(duration_s) / (self.chosen.len() as u64).max(1);
        let mut bytes_of_tree = vec![0u64; self.chosen.len()];
        let mut files_of_tree = vec![0u64; self.chosen.len()];
        for (path, tally) in self.map.paths.all().zip(&self.tally.paths) {
            if let Some(tree) = self.replay.tree(path) {
                let extent = extents.get(&path).copied().unwrap_or(0).max(tally.mapped);
                bytes_of_tree[tree] = bytes_of_tree[tree].saturating_add(extent);
                files_of_tree[tree] += u64::from(tally.opens > 0);
            }
        }
        let row = |(number, chosen): (usize, &Chosen)| {
            let calls = self.replay.of_tree[number];
            let bytes_read = bytes_of_tree[number];
            let of = |calls: u64, own: u64| report::Remaining { metadata: calls + own, bytes_read };
            report::Tree {
                path: self.map.paths.text(chosen.path),
                file_system: self.map.root(chosen.path).file_system.clone(),
                metadata: chosen.metadata,
                missing: chosen.missing,
                opens: self.replay.opens_of_tree[number],
                files_opened: files_of_tree[number],
                remaining: Scenarios {
                    direct: of(calls.direct, 0),
                    index: of(calls.index, OPERATIONS_OF_AN_INDEX + looks),
                    boot: of(calls.boot, OPERATIONS_OF_A_BOOT + looks),
                },
            }
        };
        self.chosen.iter().enumerate().map(row).collect()
    }

    fn not_proposed(&self) -> Vec<report::NotProposed> {
        let row = |refused: &Refused| report::NotProposed {
            path: self.map.paths.text(refused.path),
            metadata: refused.metadata,
            why: format!("the program changed {}", self.map.paths.text(refused.changed)),
        };
        self.refused.iter().map(row).collect()
    }

    fn notes(&self, report: &Report, reaches_shared: bool) -> Vec<String> {
        let mut notes = Vec::new();
        let skipped = &report.totals.skipped;
        let mut note = |condition: bool, text: String| {
            if condition {
                notes.push(text);
            }
        };
        note(report.totals.calls == 0, "the traces hold no file-system call".into());
        note(
            report.totals.calls > 0 && !reaches_shared,
            "nothing went to a shared file system; --shared DIR treats a directory as if it lay on one"
                .into(),
        );
        note(
            report.totals.calls > 0 && !self.first.has_times,
            "the traces have no times (strace -ttt): there are no rates and no nodes".into(),
        );
        note(
            skipped.truncated + skipped.foreign + skipped.orphans > 0,
            format!(
                "{} lines were cut off, {} are not strace's, {} are second halves without a first: these are not counted",
                skipped.truncated, skipped.foreign, skipped.orphans
            ),
        );
        note(
            report.totals.elsewhere.unknown > 0,
            format!(
                "{} calls use descriptors or directories that the traces do not explain (strace -y does)",
                report.totals.elsewhere.unknown
            ),
        );
        note(
            self.first.hidden > 0,
            format!("{} calls of io_uring or aio do what a trace of calls cannot show", self.first.hidden),
        );
        note(
            self.map.paths.dropped > 0,
            format!(
                "there are more paths, or deeper ones, than are kept: {} look-ups count for a directory above",
                self.map.paths.dropped
            ),
        );
        note(
            !report.trees.is_empty(),
            "what remains is foretold for a node with cold caches whose client keeps directories and attributes for a \
             second and asks again for files, as MooseFS does; clients that keep more have less remaining"
                .into(),
        );
        notes
    }
}

/// Returns whether a path is a device or a file of the kernel: writing to it changes no file
/// system.
fn is_device(map: &Map, path: PathId) -> bool {
    let line = map.paths.line(path);
    let names: Vec<&[u8]> = line.iter().take(2).map(|p| map.paths.name(*p)).collect();
    match names.as_slice() {
        [b"dev", b"shm"] => false,
        [b"dev" | b"proc" | b"sys", ..] => true,
        _ => false,
    }
}

fn saturation(report: &Report, capacity: &Capacity) -> report::Nodes {
    let of = |rate: f64| nodes(capacity.operations_per_s, rate);
    let rates = report.metadata_rate.scenarios;
    report::Nodes {
        direct: of(rates.direct.average),
        index: of(rates.index.average),
        boot: of(rates.boot.average),
        by_peak: Scenarios {
            direct: of(rates.direct.peak),
            index: of(rates.index.peak),
            boot: of(rates.boot.peak),
        },
        capacity: capacity.operations_per_s,
        capacity_from: capacity.from.clone(),
        leaves_out: LEAVES_OUT.map(str::to_owned).to_vec(),
    }
}
