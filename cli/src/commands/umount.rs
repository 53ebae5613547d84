//! `quell umount`: removes a mount that the caller created with `quell mount`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use quell_batch::{PartProgress, StoreAccess, has_written_changes, part_progress};
use quell_batch_service::{BatchSummary, PartState, SummaryState};
use quell_supervisor::{
    BatchReport, END_TIMEOUT, end_record_of, forget_end_record, is_quell_mount, mount_point_path, reports_of,
    unmount_and_wait,
};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::arguments::UmountArgs;
use crate::commands::batch_store::report_conflicts;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::output::errln;

pub fn run(args: UmountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let path = mount_point_path(&args.mountpoint)?;
    if !is_quell_mount(&path) {
        let path = shown(&path);
        return Err(Failure::wrong_input(format!(
            "{path} is not a mount of Quell; `grep quell: /proc/mounts` lists the mounts"
        )));
    }
    unmount_and_commit(&path, batch_of(&path).as_ref(), args.force, quiet)?;
    Ok(ExitCode::SUCCESS)
}

/// The batch of a mount.
pub struct MountedBatch {
    store: PathBuf,
    number: u64,
    /// The users who may own the store, besides the caller.
    trust_owners: Vec<u32>,
    /// The file with the messages of the process that serves the mount.
    messages: Option<PathBuf>,
}

/// Returns the batch of a mount: from its process or, if the process does not answer, from the end
/// record. `None` if the mount has no batch.
pub fn batch_of(path: &Path) -> Option<MountedBatch> {
    let reports = reports_of(path).map(|found| found.reports).unwrap_or_default();
    let has_answer = !reports.is_empty();
    let of_report = reports.into_iter().find_map(|report| match report.batch {
        Some(BatchReport { store, batch: Some(number), path: point, trust_owners, .. }) if point == path => {
            Some(MountedBatch { store, number, trust_owners, messages: report.messages })
        }
        _ => None,
    });
    // A process that was killed does not answer. The record may belong to an earlier mount.
    let of_record = || {
        end_record_of(path).filter(|_| !has_answer)?.batch.map(|batch| MountedBatch {
            store: batch.store,
            number: batch.number,
            trust_owners: batch.trust_owners,
            messages: None,
        })
    };
    of_report.or_else(of_record)
}

/// Returns the reason why data of an ended mount could not be saved, and removes the end record.
/// `None` if there is no such failure.
fn end_failure(path: &Path) -> Option<String> {
    let failure = end_record_of(path)?.failure;
    forget_end_record(path);
    failure
}

/// Unmounts, and waits until the batch of the mount is committed, if it has one. Reports conflicts,
/// and returns their number.
pub fn unmount_and_commit(
    path: &Path,
    batch: Option<&MountedBatch>,
    force: bool,
    quiet: bool,
) -> Result<u64, Failure> {
    let Some(batch) = batch else {
        unmount(path, force)?;
        return Ok(0);
    };
    // The process that serves the mount commits its batch when it ends.
    if let Some(process) = unmount_and_wait(path, force)? {
        wait_for_end(process);
    }
    let failure = end_failure(path);
    let conflicts = check_committed(batch, (failure.as_deref(), batch.messages.as_deref()), quiet)?;
    failure.map_or(Ok(conflicts), |failure| Err(Failure::cannot(failure)))
}

/// Waits for the end of a process that commits a batch, which takes longer for a larger batch. A
/// process that has ended and that its parent has not waited for counts as ended.
fn wait_for_end(process: i32) {
    let Some(process) = Pid::from_raw(process) else { return };
    let Ok(process) = pidfd_open(process, PidfdFlags::empty()) else { return };
    while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(Errno::INTR) {}
}

/// Checks that a batch was committed, reports its conflicts, and returns their number.
fn check_committed(
    mounted: &MountedBatch,
    (failure, messages): (Option<&str>, Option<&Path>),
    quiet: bool,
) -> Result<u64, Failure> {
    const WAIT: Duration = Duration::from_secs(60);
    let (store, number) = (&mounted.store, mounted.number);
    // This needs no access to the key-value store, which the ends of other parts may need, too.
    match part_progress(store, number) {
        Ok(Some(PartProgress::Closed)) => return Ok(0),
        Ok(Some(PartProgress::Open | PartProgress::Lost)) => {
            return Err(Failure::cannot(format!(
                "part {number} was not closed{}; its changes are lost; to discard it: quell batch abort {} {number}",
                reason_of(failure, None, messages),
                shown(store)
            )));
        }
        // No part has this number, or the batch has ended. An error of the store is reported below.
        Ok(None) | Err(_) => {}
    }
    let opened = StoreAccess::open_for_batches_of(store, &mounted.trust_owners, WAIT);
    let batches = match opened.and_then(|store| store.batches()) {
        // Both failures probably have the same cause.
        Err(_) if failure.is_some() => Vec::new(),
        batches => batches?,
    };
    let batch = batches.into_iter().find(|batch| batch.number == number);
    // The number of conflicts of a batch that is verified later is not known yet.
    if let Some(BatchSummary { state: SummaryState::Submitted, .. }) = batch {
        return Ok(0);
    }
    // The conflicts of a part are reported with its batch.
    if let Some(BatchSummary {
        state: SummaryState::Part { state: PartState::Committed { .. }, .. }, ..
    }) = batch
    {
        return Ok(0);
    }
    let Some(batch @ BatchSummary { state: SummaryState::Committed { conflicts, .. }, .. }) = batch else {
        let refusal = match &batch {
            Some(BatchSummary { state: SummaryState::Refused { reason }, .. }) => Some(reason),
            _ => None,
        };
        let reason = reason_of(failure, refusal.map(String::as_str), messages);
        return Err(not_committed((store, &mounted.trust_owners), number, &reason));
    };
    report_conflicts(store, &batch, quiet);
    Ok(conflicts)
}

/// Returns the failure for a batch that was not committed, with the next steps. `reason` continues
/// the sentence; `trusted`: the users to one of which the store may belong.
pub fn not_committed((store, trusted): (&Path, &[u32]), number: u64, reason: &str) -> Failure {
    let is_written = has_written_changes(store, trusted, number);
    let store = shown(store);
    let next = match is_written {
        Ok(false) => "its changes were not written and are lost".to_owned(),
        Ok(true) | Err(_) => format!("to commit it: quell batch commit {store} {number}"),
    };
    Failure::cannot(format!(
        "batch {number} was not committed{reason}; {next}; to discard it: quell batch abort {store} {number}"
    ))
}

/// Returns the reason for which a batch was not committed, as the end of a sentence.
fn reason_of(failure: Option<&str>, refusal: Option<&str>, messages: Option<&Path>) -> String {
    match (failure.or(refusal), messages) {
        (Some(reason), _) => format!(": {reason}"),
        (None, Some(log)) if log.exists() => format!("; see {} for the reason", shown(log)),
        (None, _) => ": the process that served the mount was killed".to_owned(),
    }
}

/// Unmounts, and waits for the end of the process that served the mount.
pub fn unmount(path: &Path, force: bool) -> Result<(), Failure> {
    let unended = unmount_and_wait(path, force)?;
    if let Some(failure) = end_failure(path) {
        return Err(Failure::cannot(failure));
    }
    if let Some(process) = unended {
        errln!(
            "quell: {} is unmounted; process {process}, which served it, has not ended after {} s",
            shown(path),
            END_TIMEOUT.as_secs()
        );
    }
    Ok(())
}
