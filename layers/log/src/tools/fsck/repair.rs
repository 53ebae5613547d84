//! Repairs the problems of one container that can be repaired without loss: index logs, torn ends,
//! writers that were not closed, `closed` and `epoch` names, and flat indices. New data is written
//! and synced before it gets its name, so a repair that was killed can be run again. Damaged bytes
//! are not changed.

use std::ops::RangeInclusive;

use quell_vfs::{Error, ErrorKind, Rename, Result, Time};

use super::container_check::ContainerCheck;
use super::context::Check;
use super::log_check::LogCheck;
use super::log_repairs::WriterState;
use super::names::TEMPORARY_INDEX;
use super::problem::Problem;
use crate::container::{Container, LOG_PERMISSIONS};
use crate::format::{
    Closed, FileOffset, FrameHead, Frames, HEAD_BYTES, HeadKind, LogPosition, MetaName, Order, PayloadOffset,
    Run, Runs, Summary, data_name, encode_batch, epoch_name, index_name, number_name,
};
use crate::not_found::none_if_not_found;
use crate::session::{DataLog, open_data_and_head, visit_frames};

/// Number of frames in a batch of a rebuilt index log.
const BATCH_FRAMES: usize = 1 << 14;

/// Reports all problems of a container, and repairs them if requested.
pub fn repair_container(check: &Check<'_>, container: &Container, path: &[u8], found: ContainerCheck) {
    for problem in found.problems {
        check.report(path, problem);
    }
    if let Some(epoch) = found.untaken_epoch {
        check.report_and_repair(path, Problem::untaken_epoch(epoch), || take_epoch(container, epoch));
    }
    for (directory, name) in found.leftovers {
        let text = format!("logs-{directory:x}/{}", name.escape_ascii());
        let problem = Problem::leftover(&text, &check.store_text(container.home()));
        check.report_and_repair(path, problem, || {
            container.log_directories()?.open(directory, false)?.remove(&name)
        });
    }
    for (name, defect) in found.flat_defects {
        // Readers use the logs instead, and the flat index can be created again.
        let problem = Problem::flat_index(&name.escape_ascii().to_string(), defect);
        check.report_and_repair(path, problem, || container.dir()?.remove(&name));
    }
    for log in found.logs {
        LogRepair { check, container, summary: &found.summary, path, log: &log, has_failed: false }.run();
    }
}

fn take_epoch(container: &Container, epoch: u64) -> Result<()> {
    match container.dir()?.create_file(&epoch_name(epoch), LOG_PERMISSIONS) {
        Err(error) if error.kind != ErrorKind::Exists => Err(error),
        _ => container.dir()?.sync(),
    }
}

/// The repair of one writer's logs.
struct LogRepair<'a> {
    check: &'a Check<'a>,
    container: &'a Container,
    summary: &'a Summary,
    path: &'a [u8],
    log: &'a LogCheck,
    /// A repair of this log failed. No further repair of it is tried.
    has_failed: bool,
}

impl LogRepair<'_> {
    fn run(mut self) {
        let LogRepair { check, container, summary, path, log, .. } = self;
        let writer = log.writer;
        for problem in &log.problems {
            check.report(path, problem.clone());
        }
        // The time is read before the repairs, which change it.
        let modified = data_log_time(container, writer);
        if let Some(bytes) = log.repairs.torn_bytes {
            self.repair(Problem::torn_end(writer, bytes), || truncate_torn_end(container, log));
        }
        if let Some(defect) = log.repairs.index_defect {
            let problem = Problem::index_log(writer, defect);
            match log.repairs.can_rebuild_index {
                true => self.repair(problem, || {
                    // Flat indices may have been created from the damaged index log; readers do not
                    // need them.
                    container.flats()?.iter().try_for_each(|name| container.dir()?.remove(name))?;
                    rebuild_index_log(container, log)
                }),
                false => check.report(path, problem),
            }
        }
        let (problem, replaced, time) = match &log.state {
            WriterState::Open { running, is_dead: true } => {
                let problem = Problem::dead_writer(writer, &running.holder);
                (problem, MetaName::Open(running.clone()), modified)
            }
            WriterState::Closed(closed) if log.repairs.closed_name_is_wrong => {
                let name = MetaName::Closed(*closed);
                (Problem::wrong_closed_name(writer), name, Some(closed.time))
            }
            WriterState::Closed(closed) if log.has_needless_name => {
                let remove = || container.remove_meta(&MetaName::Closed(*closed));
                return self.repair(Problem::needless_closed_name(writer), remove);
            }
            _ => return,
        };
        match log.repairs.can_close {
            true => self.repair(problem, || close_writer(container, summary, log, &replaced, time)),
            false => check.report(path, problem),
        }
    }

    fn repair(&mut self, problem: Problem, repair: impl FnOnce() -> Result<()>) {
        let has_failed = &mut self.has_failed;
        self.check.report_and_repair(self.path, problem, || match *has_failed {
            true => Err(Error {
                source: Some("an earlier repair of this log failed".into()),
                ..Error::new(ErrorKind::Unsupported, "repair", data_name(self.log.writer))
            }),
            false => repair().inspect_err(|_| *has_failed = true),
        });
    }
}

fn data_log_time(container: &Container, writer: u64) -> Option<Time> {
    let (file, _) = open_data_and_head(container, writer).ok()??;
    Some(file.stat().ok()?.modified)
}

fn truncate_torn_end(container: &Container, log: &LogCheck) -> Result<()> {
    let data = container.open_data_for_repair(log.writer)?;
    data.set_size(log.frames.log_offset)?;
    data.sync()
}

fn open_data_log(container: &Container, writer: u64) -> Result<DataLog> {
    let data = open_data_and_head(container, writer)?;
    data.ok_or_else(|| Error::new(ErrorKind::NotFound, "open", data_name(writer)))
}

/// Creates the index log again from the data log under a temporary name, and replaces the old one.
fn rebuild_index_log(container: &Container, log: &LogCheck) -> Result<()> {
    let writer = log.writer;
    let dir = container.logs_of(writer, false)?;
    let (data, _) = open_data_log(container, writer)?;
    // The data log is synced, because the new index log states that it was synced.
    container.open_data_for_repair(writer)?.sync()?;
    let random = number_name(container.stores().random_number());
    let temporary = [TEMPORARY_INDEX.as_bytes(), &random[..]].concat();
    let index = dir.create_file(&temporary, LOG_PERMISSIONS)?;
    let write = || -> Result<()> {
        container.give_to_owner(&*index)?;
        index.write_at(&container.head().for_file(HeadKind::Index, writer).encode(), 0)?;
        let block_bytes = container.head().block_bytes.into();
        let mut batch = BatchBuilder::new(block_bytes, LogPosition::START);
        let mut end = HEAD_BYTES as u64;
        let mut append = |batch: &mut BatchBuilder| -> Result<()> {
            let bytes = batch.encode();
            index.write_at(&bytes, end)?;
            end += bytes.len() as u64;
            Ok(())
        };
        visit_frames(&*data, block_bytes, LogPosition::START, &mut |log_offset, head, runs| {
            if log_offset >= log.frames.log_offset {
                return Ok(false);
            }
            batch.push(head, &runs);
            if batch.count >= BATCH_FRAMES {
                append(&mut batch)?;
            }
            Ok(true)
        })?;
        if batch.count > 0 {
            append(&mut batch)?;
        }
        if batch.payload_offset + batch.frames.payload_bytes() != log.frames.payload_offset {
            return Err(Error::new(ErrorKind::Stale, "read", data_name(writer)));
        }
        index.sync()?;
        dir.rename(&temporary, &*dir, &index_name(writer), Rename::Replace)?;
        dir.sync()
    };
    let written = write();
    if written.is_err() {
        let _ = dir.remove(&temporary);
    }
    written
}

/// Creates the `closed` name of a dead writer in place of its `open` name, or corrects it. The logs
/// and the name of a writer without frames are removed.
fn close_writer(
    container: &Container,
    summary: &Summary,
    log: &LogCheck,
    replaced: &MetaName,
    modified: Option<Time>,
) -> Result<()> {
    let writer = log.writer;
    if let Some(object) = container.object_of(writer) {
        return container.end_killed_first_writer(object);
    }
    let Some((first_epoch, last_epoch)) = log.frames.epochs.clone().map(RangeInclusive::into_inner) else {
        none_if_not_found(container.remove_logs(writer))?;
        return container.remove_meta(replaced);
    };
    let (data, _) = open_data_log(container, writer)?;
    container.open_data_for_repair(writer)?.sync()?;
    // Unsynced data that was lost is a hole; the file keeps its size.
    let mut end = log.lost_end;
    let block_bytes = container.head().block_bytes.into();
    visit_frames(&*data, block_bytes, LogPosition::START, &mut |log_offset, head, runs| {
        if log_offset >= log.frames.log_offset {
            return Ok(false);
        }
        let order = Order { epoch: head.epoch, sequence: head.sequence, writer };
        let limit = summary.truncations.limit(order, log_offset + head.bytes());
        end = runs.iter().map(|run| run.end().min(limit)).fold(end, FileOffset::max);
        Ok(true)
    })?;
    let (time, data_bytes) = (modified.unwrap_or_default(), log.frames.log_offset);
    let is_synced = true; // by the call above
    let closed = Closed { writer, first_epoch, last_epoch, end, data_bytes, time, is_synced, boot: 0 };
    container.rename_meta(replaced, &MetaName::Closed(closed))?;
    container.meta()?.sync()
}

/// A batch of an index log that is built from frames.
struct BatchBuilder {
    frames: Frames,
    runs: Runs,
    /// The payload offset at which the batch begins.
    payload_offset: PayloadOffset,
    count: usize,
}

impl BatchBuilder {
    fn new(block_bytes: u64, start: LogPosition) -> BatchBuilder {
        let frames = Frames::new(block_bytes, start.log_offset);
        BatchBuilder { frames, runs: Runs::default(), payload_offset: start.payload, count: 0 }
    }

    fn push(&mut self, head: &FrameHead, runs: &[Run]) {
        self.frames.push(head.kind, head.bytes(), head.payload_bytes, head.epoch, head.sequence);
        for run in runs {
            (0..run.count).for_each(|i| self.runs.push(run.start_of(i), run.length));
        }
        // An extent never spans frames.
        self.runs.end_extent();
        self.count += 1;
    }

    /// Encodes the batch, whose part of the data log was synced, and begins the next one at its
    /// end.
    fn encode(&mut self) -> Vec<u8> {
        let start = LogPosition { log_offset: self.frames.log_start(), payload: self.payload_offset };
        let bytes = encode_batch(&self.frames, self.runs.finish(), start, true);
        let payload = self.payload_offset + self.frames.payload_bytes();
        let end = LogPosition { log_offset: self.frames.log_end(), payload };
        *self = BatchBuilder::new(self.frames.block_bytes(), end);
        bytes
    }
}
