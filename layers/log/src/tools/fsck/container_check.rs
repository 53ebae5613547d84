//! Checks one container completely: its names, the logs of all writers, and its flat indices.
//! Writes nothing.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use quell_threads::{into_inner, lock};
use quell_vfs::Result;

use super::context::Check;
use super::flat_check::check_flat_indexes;
use super::log_check::{LogCheck, check_logs};
use super::log_repairs::WriterState;
use super::names::{ContainerName, LogName, classify_container_name, classify_log_name};
use super::problem::Problem;
use crate::container::{Container, FIRST_EPOCH};
use crate::format::{FileOffset, MetaName, Summary};
use crate::tools::progress::run_tasks;
use crate::tools::report::{ByteState, ResolvedFile};

/// The result of checking one container.
pub struct ContainerCheck {
    /// The names in `meta`, sorted.
    meta_names: Vec<Vec<u8>>,
    pub summary: Summary,
    /// Problems that cannot be repaired.
    pub problems: Vec<Problem>,
    /// Temporary names of index logs whose repair was interrupted, by log directory.
    pub leftovers: Vec<(u32, Vec<u8>)>,
    /// Flat indices that cannot be used, and the reason.
    pub flat_defects: Vec<(Vec<u8>, &'static str)>,
    pub logs: Vec<LogCheck>,
    /// The largest epoch that was used, if no name marks it as taken.
    pub untaken_epoch: Option<u64>,
    /// Number of open writers that are not known to be dead.
    pub open_writers: u64,
    /// Number of these writers whose node the user declared dead, although it runs.
    pub kept_writers: u64,
}

impl ContainerCheck {
    /// Returns true if there is nothing to report. Leftovers are not the effect of a concurrent
    /// writer.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
            && self.flat_defects.is_empty()
            && self.untaken_epoch.is_none()
            && self.logs.iter().all(LogCheck::is_clean)
    }

    /// Returns true if names in `meta` have changed since the check began.
    pub fn has_changed(&self, container: &Container) -> bool {
        !meta_names(container).is_ok_and(|names| names == self.meta_names)
    }
}

fn meta_names(container: &Container) -> Result<Vec<Vec<u8>>> {
    if container.only_object()?.is_some() {
        return container.names_of_object();
    }
    let mut names = container.meta()?.names()?;
    names.sort_unstable();
    Ok(names)
}

/// The names in a container.
#[derive(Default)]
struct Names {
    writers: BTreeMap<u64, WriterState>,
    problems: Vec<Problem>,
    leftovers: Vec<(u32, Vec<u8>)>,
}

pub fn check_container(check: &Check<'_>, container: &Container) -> Result<ContainerCheck> {
    let meta_names = meta_names(container)?;
    let summary = Summary::from_names(meta_names.iter().cloned());
    let mut names = Names::default();
    for name in meta_names.iter().filter(|name| MetaName::decode(name).is_none()) {
        names.problems.push(Problem::foreign_name(&format!("meta/{}", name.escape_ascii())));
    }
    container.access_stat()?;
    let (mut open_writers, mut kept_writers) = (0, 0);
    for running in &summary.open {
        let is_dead = check.is_dead(&running.holder) || check.options.dead_writers.contains(&running.writer);
        open_writers += u64::from(!is_dead);
        kept_writers += u64::from(!is_dead && check.is_kept(&running.holder));
        names.writers.insert(running.writer, WriterState::Open { running: running.clone(), is_dead });
    }
    for closed in &summary.closed {
        names.writers.insert(closed.writer, WriterState::Closed(*closed));
    }
    read_names(check, container, &mut names)?;
    let Names { writers, mut problems, leftovers } = names;
    let logs = check_all_logs(check, container, writers, &summary)?;
    let (epochs, flat_names) = container.epochs_and_flats()?;
    let flat_defects = check_flat_indexes(container, &summary, flat_names)?;
    let used = logs.iter().filter_map(|log| log.frames.epochs.as_ref()).map(|epochs| *epochs.end());
    let used = used.max().unwrap_or(0).max(summary.epoch());
    let taken = epochs.last().copied().unwrap_or(FIRST_EPOCH);
    let untaken_epoch = (used > taken).then_some(used);
    problems.append(&mut damage_problems(container, &summary, &logs)?);
    Ok(ContainerCheck {
        meta_names,
        summary,
        problems,
        leftovers,
        flat_defects,
        logs,
        untaken_epoch,
        open_writers,
        kept_writers,
    })
}

/// Reads the names in the container and its log directories, and collects the writers with logs.
fn read_names(check: &Check<'_>, container: &Container, found: &mut Names) -> Result<()> {
    if container.only_object()?.is_some() {
        return Ok(());
    }
    let directories = container.head().directories;
    for name in container.dir()?.names()? {
        let directory = match classify_container_name(&name, directories) {
            ContainerName::LogDirectory(number) => number,
            ContainerName::Other => continue,
            ContainerName::Foreign => {
                found.problems.push(Problem::foreign_name(&name.escape_ascii().to_string()));
                continue;
            }
        };
        let logs = match container.log_directories()?.open(directory, false) {
            Ok(logs) => logs,
            Err(error) => {
                let reason = format_args!("{}: {error}", name.escape_ascii());
                found.problems.push(Problem::not_checked(reason));
                continue;
            }
        };
        for file in logs.names()? {
            match classify_log_name(&file, directory, directories) {
                LogName::Log(writer) => {
                    found.writers.entry(writer).or_insert(WriterState::Orphan);
                }
                LogName::TemporaryIndex => {
                    if check.is_old(&*logs, &file)? {
                        found.leftovers.push((directory, file));
                    }
                }
                LogName::Foreign => {
                    let name = format!("logs-{directory:x}/{}", file.escape_ascii());
                    found.problems.push(Problem::foreign_name(&name));
                }
            }
        }
    }
    Ok(())
}

/// Checks the logs of all writers. Returns the results sorted by writer.
fn check_all_logs(
    check: &Check<'_>,
    container: &Container,
    writers: BTreeMap<u64, WriterState>,
    summary: &Summary,
) -> Result<Vec<LogCheck>> {
    let checked: Mutex<Vec<Result<LogCheck>>> = Mutex::default();
    let tasks = writers.into_iter().collect();
    run_tasks(check.threads_per_file, tasks, check.progress, &|(writer, state), _| {
        let log = check_logs(container, writer, state, summary, check.progress);
        lock(&checked).push(log);
    });
    let checked = into_inner(checked);
    let mut logs = checked.into_iter().collect::<Result<Vec<_>>>()?;
    logs.sort_by_key(|log| log.writer);
    Ok(logs)
}

/// Returns the problems with damaged and lost bytes. Bytes that are no longer part of the file are
/// reported separately.
fn damage_problems(container: &Container, summary: &Summary, logs: &[LogCheck]) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    if logs.iter().all(|log| log.damaged.is_empty() && log.lost.is_empty()) {
        return Ok(problems);
    }
    let file = ResolvedFile::resolve_with(container, summary.clone(), 1)?;
    for log in logs {
        let (mut damaged, mut lost, mut unused) = (Vec::new(), Vec::new(), Vec::new());
        for (bad, ranges) in [(&log.damaged, &mut damaged), (&log.lost, &mut lost)] {
            for (payload_offset, start, end) in bad {
                file.visit_states(log.writer, *payload_offset, *start, *end - *start, &mut |range| {
                    let ranges = if range.state == ByteState::Held { &mut *ranges } else { &mut unused };
                    ranges.push(FileOffset(range.start)..FileOffset(range.end));
                })?;
            }
        }
        let found = [
            (lost, Problem::lost_unsynced as fn(u64, Vec<Range<FileOffset>>) -> Problem),
            (damaged, Problem::damaged_ranges),
            (unused, Problem::damaged_unused_ranges),
        ];
        for (ranges, problem) in found {
            if !ranges.is_empty() {
                problems.push(problem(log.writer, merge_ranges(ranges)));
            }
        }
    }
    Ok(problems)
}

/// Sorts ranges and merges adjacent and overlapping ones.
fn merge_ranges(mut ranges: Vec<Range<FileOffset>>) -> Vec<Range<FileOffset>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<FileOffset>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_and_overlapping_ranges_are_merged() {
        let range = |start, end| FileOffset(start)..FileOffset(end);
        let ranges = vec![range(5, 9), range(0, 2), range(2, 3), range(6, 7)];
        assert_eq!(merge_ranges(ranges), [range(0, 3), range(5, 9)]);
        assert_eq!(merge_ranges(Vec::new()), []);
    }
}
