//! The findings of a report: the directories, programs, processes and searches with the most calls,
//! and the access patterns that a technique of Quell changes.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::analysis::counts::{PathCounts, ProgramCounts, SearchCounts, Writing};
use crate::analysis::measured::Measured;
use crate::analysis::replay::{OPERATIONS_TO_LOAD_BOOT, OPERATIONS_TO_LOAD_INDEX, periodic_checks};
use crate::analysis::searches::SearchKind;
use crate::analysis::trees::{Chosen, Refused};
use crate::paths::PathId;
use crate::report::{
    Directory, NotProposed, ProcessLane, Program, Remaining, Reread, Scenarios, Search, SearchDirectory,
    SharedWrite, SmallFiles, Tree,
};
use crate::trace::processes::ProgramId;

/// Number of rows in a table; the totals include all.
const ROWS_MAX: usize = 20;
const SEARCH_DIRECTORIES_MAX: usize = 10;
/// A file counts as reread if one process read it completely at least this many times.
const REREADS_MIN: f64 = 2.0;
const REREAD_OPENS_MIN: u64 = 3;
const SMALL_FILE_BYTES_MAX: u64 = 64 << 10;
/// Minimum number of small files in a directory that is listed.
const SMALL_FILES_MIN: u64 = 100;

pub fn directories(measured: &Measured) -> Vec<Directory> {
    let map = measured.map;
    let mut rows: HashMap<PathId, Directory> = HashMap::new();
    for (path, counts) in measured.counted_paths() {
        if counts.metadata + counts.data == 0 {
            continue;
        }
        let directory = if measured.is_directory[path.index()] { path } else { map.paths.parent(path) };
        let row = rows.entry(directory).or_default();
        row.metadata += u64::from(counts.metadata);
        row.missing += u64::from(counts.missing);
        row.data += u64::from(counts.data);
        row.bytes_read += counts.read;
        row.bytes_written += counts.written;
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    // Directories on shared file systems come first.
    rows.sort_by_key(|(path, row)| (!map.root(*path).on_shared, Reverse(row.metadata), *path));
    rows.truncate(ROWS_MAX);
    let row = |(path, row): (PathId, Directory)| Directory {
        path: measured.text(path),
        location: measured.location_name(path),
        remaining: measured.replay.by_directory.get(&path).copied().unwrap_or_default(),
        ..row
    };
    rows.into_iter().map(row).collect()
}

pub fn programs(measured: &Measured) -> Vec<Program> {
    let counts = measured.counts;
    let mut rows: Vec<(&ProgramId, &ProgramCounts)> = counts.programs.iter().collect();
    rows.sort_by_key(|(number, row)| (Reverse(row.shared), Reverse(row.metadata), **number));
    rows.truncate(ROWS_MAX);
    let row = |(number, row): (&ProgramId, &ProgramCounts)| Program {
        path: program_path(measured, *number),
        processes: counts.program_processes.get(number).map_or(0, |processes| processes.len() as u64),
        metadata: row.metadata,
        shared: row.shared,
        missing: row.missing,
        missing_shared: row.missing_shared,
        data: row.data,
    };
    rows.into_iter().map(row).collect()
}

fn program_path(measured: &Measured, program: ProgramId) -> String {
    let path = measured.reader.resolver.programs.path(program);
    path.map_or("(before the first exec)".into(), |path| measured.text(path))
}

/// Returns the processes of which the operations over time were recorded, by start.
pub fn processes(measured: &Measured) -> Vec<ProcessLane> {
    let recorded = measured
        .counts
        .processes
        .iter()
        .filter_map(|(number, row)| Some((*number, row, measured.replay.lanes.lane(*number)?)));
    let mut rows: Vec<_> = recorded.collect();
    rows.sort_by_key(|(number, row, _)| (row.begin_us, *number));
    let row =
        |(_, row, lane): (u32, &crate::analysis::counts::ProcessCounts, &crate::analysis::lanes::Lane)| {
            ProcessLane {
                pid: u64::from(row.pid),
                program: program_path(measured, row.program),
                begin_s: measured.offset_s(row.begin_us),
                end_s: measured.offset_s(row.end_us),
                calls: row.calls,
                operations: lane.operations,
                steps: lane.steps.clone(),
            }
        };
    rows.into_iter().map(row).collect()
}

pub fn searches(measured: &Measured) -> Vec<Search> {
    let search = |(kind, directories): (&SearchKind, &HashMap<PathId, SearchCounts>)| {
        let (variable, how) = measured.counts.search_name(kind);
        let mut rows: Vec<(&PathId, &SearchCounts)> = directories.iter().collect();
        rows.sort_by_key(|(path, row)| (Reverse(row.missing), **path));
        let sum = |member: fn(&SearchCounts) -> u64| rows.iter().map(|(_, row)| member(row)).sum();
        Search {
            variable: variable.to_owned(),
            how: how.to_owned(),
            missing: sum(|row| row.missing),
            shared: sum(|row| row.shared),
            found: sum(|row| row.found),
            directories: rows
                .iter()
                .filter(|(_, row)| row.missing > 0)
                .take(SEARCH_DIRECTORIES_MAX)
                .map(|(path, row)| SearchDirectory {
                    path: measured.text(**path),
                    missing: row.missing,
                    found: row.found,
                })
                .collect(),
        }
    };
    let mut searches: Vec<_> =
        measured.counts.searches.iter().map(search).filter(|search| search.missing > 0).collect();
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

pub fn rereads(measured: &Measured) -> Vec<Reread> {
    let mut openers: HashMap<PathId, u64> = HashMap::new();
    for (_, path) in &measured.counts.openers {
        *openers.entry(*path).or_default() += 1;
    }
    let row = |(path, counts): (PathId, &PathCounts)| {
        let extent = measured.extents.get(&path).filter(|extent| extent.bytes > 0)?;
        let times = extent.process_bytes as f64 / extent.bytes as f64;
        let opens = u64::from(counts.opens);
        if times < REREADS_MIN || opens < REREAD_OPENS_MIN || measured.is_device(path) {
            return None;
        }
        let row = Reread {
            path: measured.text(path),
            location: measured.location_name(path),
            opens,
            processes: openers.get(&path).copied().unwrap_or(0),
            bytes_read: counts.read,
            times,
        };
        Some((measured.map.root(path).on_shared, counts.read.saturating_sub(extent.bytes), row))
    };
    let mut rows: Vec<_> = measured.counted_paths().filter_map(row).collect();
    // Files on shared file systems come first, then those with the most repeated bytes.
    rows.sort_by(|a, b| (b.0, b.1, &a.2.path).cmp(&(a.0, a.1, &b.2.path)));
    rows.into_iter().take(ROWS_MAX).map(|(_, _, row)| row).collect()
}

pub fn shared_writes(measured: &Measured) -> Vec<SharedWrite> {
    let several = measured
        .counts
        .writings
        .iter()
        .filter(|(path, writing)| writing.writers.len() > 1 && !measured.is_device(**path));
    let row = |(path, writing): (&PathId, &Writing)| SharedWrite {
        path: measured.text(*path),
        location: measured.location_name(*path),
        on_shared: measured.map.root(*path).on_shared,
        writers: writing.writers.len() as u64,
        writes: writing.writes,
        bytes_written: writing.bytes,
        record: writing.record,
    };
    let mut rows: Vec<_> = several.map(row).collect();
    rows.sort_by(|a, b| (Reverse(a.bytes_written), &a.path).cmp(&(Reverse(b.bytes_written), &b.path)));
    rows.truncate(ROWS_MAX);
    rows
}

pub fn small_files(measured: &Measured) -> Vec<SmallFiles> {
    let mut rows: HashMap<PathId, (u64, u64)> = HashMap::new();
    for (path, counts) in measured.counted_paths() {
        if counts.created && counts.written <= SMALL_FILE_BYTES_MAX {
            let row = rows.entry(measured.map.paths.parent(path)).or_default();
            row.0 += 1;
            row.1 += counts.written;
        }
    }
    let mut rows: Vec<_> = rows.into_iter().filter(|(_, (files, _))| *files >= SMALL_FILES_MIN).collect();
    rows.sort_by_key(|(path, (files, _))| (Reverse(*files), *path));
    let row = |(path, (files, bytes_written))| SmallFiles {
        directory: measured.text(path),
        location: measured.location_name(path),
        files,
        bytes_written,
    };
    rows.into_iter().take(ROWS_MAX).map(row).collect()
}

/// Maximum size of a file that `quell record --small 16K` packs.
const PACKED_FILE_BYTES_MAX: u64 = 16 << 10;

pub fn trees(measured: &Measured) -> Vec<Tree> {
    let (replay, count) = (measured.replay, measured.chosen.len());
    let checks = periodic_checks(measured.duration_s()) / (count as u64).max(1);
    let mut bytes_by_tree = vec![0u64; count];
    let mut files_by_tree = vec![0u64; count];
    let mut small_files_by_tree = vec![0u64; count];
    for (path, counts) in measured.counted_paths() {
        if let Some(tree) = replay.tree(path) {
            let bytes = measured.distinct_bytes(path, counts);
            bytes_by_tree[tree] = bytes_by_tree[tree].saturating_add(bytes);
            files_by_tree[tree] += u64::from(counts.opens > 0);
            let is_small = counts.opens > 0 && bytes <= PACKED_FILE_BYTES_MAX;
            small_files_by_tree[tree] += u64::from(is_small && !measured.is_directory[path.index()]);
        }
    }
    let row = |(number, chosen): (usize, &Chosen)| {
        let operations = replay.by_tree[number];
        let bytes_read = bytes_by_tree[number];
        let remaining = |metadata: u64| Remaining { metadata, bytes_read };
        Tree {
            path: measured.text(chosen.path),
            file_system: measured.map.root(chosen.path).file_system.clone(),
            metadata: chosen.metadata,
            missing: chosen.missing,
            opens: replay.opens_by_tree[number],
            files_opened: files_by_tree[number],
            small_files_opened: small_files_by_tree[number],
            check: chosen.check,
            remaining: Scenarios {
                direct: remaining(operations.direct),
                index: remaining(operations.index + OPERATIONS_TO_LOAD_INDEX + checks),
                boot: remaining(operations.boot + OPERATIONS_TO_LOAD_BOOT + checks),
            },
        }
    };
    measured.chosen.iter().enumerate().map(row).collect()
}

pub fn not_proposed(measured: &Measured) -> Vec<NotProposed> {
    let row = |refused: &Refused| {
        let changed = measured.text(refused.changed);
        let why = match refused.only_bytecode {
            true => format!(
                "Python wrote bytecode in it during this run ({changed}). A second run finds the \
                 bytecode: profile the program once more"
            ),
            false => format!("the program changed {changed}"),
        };
        NotProposed {
            path: measured.text(refused.path),
            metadata: refused.metadata,
            why,
            only_bytecode: refused.only_bytecode,
        }
    };
    measured.refused.iter().map(row).collect()
}
