//! The sums of a report: by location, by call, and the operations that remain.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use crate::analysis::measured::Measured;
use crate::analysis::replay::{OPERATIONS_TO_LOAD_BOOT, OPERATIONS_TO_LOAD_INDEX, periodic_checks};
use crate::locations::Location;
use crate::report::{AccessMode, LocationTotals, Locations, Operation, Remaining, Scenarios, Totals};
use crate::trace::calls::Class;

pub fn totals(measured: &Measured) -> Totals {
    let counts = measured.counts;
    let sum = |class| counts.cells.iter().filter(|((_, c), _)| *c == class).map(|(_, cell)| cell.calls).sum();
    let mut by_call: BTreeMap<String, u64> = BTreeMap::new();
    for ((_, _, name), operation) in &counts.operations {
        *by_call.entry(String::from_utf8_lossy(name).into_owned()).or_default() += operation.calls;
    }
    Totals {
        lines: measured.reader.lines,
        calls: counts.calls(),
        metadata: sum(Class::Metadata),
        data: sum(Class::Data),
        elsewhere: counts.elsewhere,
        failed: counts.failed,
        missing: counts.missing,
        bytes_read: counts.cells.values().map(|cell| cell.bytes_read).sum(),
        bytes_written: counts.cells.values().map(|cell| cell.bytes_written).sum(),
        shared: counts.shared,
        processes: u64::from(measured.reader.resolver.processes.groups),
        paths: counts.paths.iter().filter(|path| path.metadata + path.data > 0).count() as u64,
        by_call,
        skipped: measured.reader.skipped.clone(),
    }
}

pub fn locations(measured: &Measured) -> Locations {
    Locations {
        cwd: location(measured, Location::Cwd),
        tmp: location(measured, Location::Tmp),
        shared: location(measured, Location::Shared),
        local: location(measured, Location::Local),
    }
}

fn location(measured: &Measured, location: Location) -> LocationTotals {
    let (map, counts) = (measured.map, measured.counts);
    let cell = |class| counts.cells[&(location, class)];
    let (metadata, data) = (cell(Class::Metadata), cell(Class::Data));
    let used: HashSet<u16> = measured
        .counted_paths()
        .filter(|(_, path)| path.metadata + path.data > 0)
        .map(|(path, _)| map.root_id(path))
        .collect();
    let roots = (0u16..).zip(map.roots()).filter(|(id, root)| root.location == location && used.contains(id));
    let roots = roots.map(|(_, root)| {
        let path = map.paths.text(root.path);
        if root.file_system.is_empty() { path } else { format!("{path} ({})", root.file_system) }
    });
    let is_changed = measured.counted_paths().any(|(path, counts)| {
        counts.changed && map.root(path).location == location && !measured.is_device(path)
    });
    LocationTotals {
        roots: roots.collect(),
        metadata: metadata.calls,
        data: data.calls,
        bytes_read: metadata.bytes_read + data.bytes_read,
        bytes_written: metadata.bytes_written + data.bytes_written,
        missing: metadata.missing + data.missing,
        on_shared: counts.on_shared.get(&location).copied().unwrap_or(0),
        mode: match (metadata.calls + data.calls, is_changed) {
            (0, _) => AccessMode::Unused,
            (_, false) => AccessMode::ReadOnly,
            (_, true) => AccessMode::ReadWrite,
        },
    }
}

/// Returns the rows of `operations.csv`.
pub fn operations(measured: &Measured) -> Vec<Operation> {
    let mut rows: Vec<_> = measured.counts.operations.iter().collect();
    rows.sort_by_key(|((location, class, name), row)| {
        (location.is_none(), *location, *class, Reverse(row.calls), name.clone())
    });
    let row = |((location, class, name), row): (&(Option<Location>, Class, Vec<u8>), &Operation)| Operation {
        location: location.map_or("elsewhere", Location::name).to_owned(),
        class: class.name().to_owned(),
        call: String::from_utf8_lossy(name).into_owned(),
        ..row.clone()
    };
    rows.into_iter().map(row).collect()
}

/// Returns the operations that reach the shared file systems, including the operations of Quell
/// itself.
pub fn remaining(measured: &Measured) -> Scenarios<Remaining> {
    let bytes_read = measured
        .shared_paths()
        .map(|(path, counts)| measured.distinct_bytes(path, counts))
        .fold(0, u64::saturating_add);
    let trees = measured.chosen.len() as u64;
    let checks = if trees > 0 { periodic_checks(measured.duration_s()) } else { 0 };
    let total = measured.replay.total;
    let remaining = |metadata: u64| Remaining { metadata, bytes_read };
    Scenarios {
        direct: remaining(total.direct),
        index: remaining(total.index + trees * OPERATIONS_TO_LOAD_INDEX + checks),
        boot: remaining(total.boot + trees * OPERATIONS_TO_LOAD_BOOT + checks),
    }
}
