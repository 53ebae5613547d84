//! `quell umount`: removes a mount that the caller created with `quell mount`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use quell_batch::StoreAccess;
use quell_batch_service::{BatchSummary, SummaryState};
use quell_supervisor::{
    BatchReport, END_TIMEOUT, is_quell_mount, mount_point_path, reports_of, unmount_and_wait,
};

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
    unmount_and_commit(&path, args.force, quiet)?;
    Ok(ExitCode::SUCCESS)
}

/// Unmounts, and waits until the batch of the mount is committed, if it has one. Reports conflicts,
/// and returns their number.
pub fn unmount_and_commit(path: &Path, force: bool, quiet: bool) -> Result<u64, Failure> {
    // The process that serves the mount commits its batch when it ends.
    let reports = reports_of(path).map(|found| found.reports).unwrap_or_default();
    let batch = reports.into_iter().find_map(|report| {
        let messages = report.messages;
        report.batch.filter(|batch| batch.path == path).map(|batch| (batch, messages))
    });
    match batch {
        Some((BatchReport { store, batch: Some(number), .. }, messages)) => {
            if let Some(process) = unmount_and_wait(path, force)? {
                wait_for_end(process);
            }
            check_committed(&store, number, messages.as_deref(), quiet)
        }
        _ => {
            unmount(path, force)?;
            Ok(0)
        }
    }
}

/// Waits for the end of a process that commits a batch, which may last as long as the batch is
/// large.
fn wait_for_end(process: i32) {
    const INTERVAL: Duration = Duration::from_millis(100);
    while Path::new(&format!("/proc/{process}")).exists() {
        std::thread::sleep(INTERVAL);
    }
}

/// Checks that a batch was committed, reports its conflicts, and returns their number.
fn check_committed(store: &Path, number: u64, messages: Option<&Path>, quiet: bool) -> Result<u64, Failure> {
    const WAIT: Duration = Duration::from_secs(60);
    let batches = StoreAccess::open(store, WAIT)?.batches()?;
    let batch = batches.into_iter().find(|batch| batch.number == number);
    let Some(batch @ BatchSummary { state: SummaryState::Committed { conflicts, .. }, .. }) = batch else {
        let log = messages.map_or_else(String::new, |log| format!("; {} has the reason", shown(log)));
        return Err(Failure::cannot(format!(
            "batch {number} was not committed{log}; to repeat it: quell batch commit {} {number}",
            shown(store)
        )));
    };
    report_conflicts(store, &batch, quiet);
    Ok(conflicts)
}

/// Unmounts, and waits for the end of the process that served the mount.
pub fn unmount(path: &Path, force: bool) -> Result<(), Failure> {
    if let Some(process) = unmount_and_wait(path, force)? {
        errln!(
            "quell: {} is unmounted; process {process}, which served it, has not ended after {} s",
            shown(path),
            END_TIMEOUT.as_secs()
        );
    }
    Ok(())
}
