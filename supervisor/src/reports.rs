//! Collects the reports of holders.

use std::path::Path;

use quell_log::Choices;
use quell_mount_spec::{IndexMode, PROCESS_COUNTERS, ProcessCounters, read_process_counters};

use crate::failure::Failure;
use crate::inputs::real_path;
use crate::protocol::plan::LocksMode;
use crate::protocol::report::{HolderReport, LogReport, TreeReport};
use crate::runtime::directory::runtime_directory;
use crate::runtime::key::holder_keys;
use crate::socket::client::request_report;

/// The reports about one path.
#[derive(Debug, Default)]
pub struct Reports {
    /// The reports, one for each holder that answered.
    pub reports: Vec<HolderReport>,
    /// Messages about holders that did not answer in time.
    pub unanswered: Vec<String>,
}

/// Returns the reports of the caller's processes on this node that have the files of a job.
pub fn job_reports() -> Result<Reports, Failure> {
    let mut found = all_reports(&runtime_directory()?);
    found.reports.retain(|report| report.job.is_some());
    Ok(found)
}

/// Returns the reports of the caller's holders on this node that serve the path as mount point,
/// index, store or covered tree.
pub fn reports_of(path: &Path) -> Result<Reports, Failure> {
    let directory = runtime_directory()?;
    let real = real_path(path)?;
    let mut found = all_reports(&directory);
    found.reports.retain(|report| is_about(report, &real));
    for counted in read_process_counters(&directory) {
        let of_logs = reports_of_processes(counted, &mut found.reports);
        found.reports.extend(of_logs.into_iter().filter(|report| is_about(report, &real)));
    }
    Ok(found)
}

/// Returns the reports of all holders.
fn all_reports(directory: &Path) -> Reports {
    let mut found = Reports::default();
    for key in holder_keys(directory) {
        let text = match request_report(directory, &key) {
            Ok(Some(text)) => text,
            Err(e) if e.errno() == rustix::io::Errno::TIMEDOUT.raw_os_error() => {
                found.unanswered.push(format!("no report of {key}: {e}"));
                continue;
            }
            // A holder that has just ended is not an error.
            Ok(None) | Err(_) => continue,
        };
        found.reports.extend(serde_json::from_str::<HolderReport>(&text));
    }
    found
}

/// Returns a report for each log directory that the preload library serves in the processes of one
/// `quell run`, and adds the counters of its trees to the reports of the holders that have them.
fn reports_of_processes(counted: ProcessCounters, holders: &mut [HolderReport]) -> Vec<HolderReport> {
    let ProcessCounters { process: pid, view, values } = counted;
    let names = || PROCESS_COUNTERS.iter().map(|name| (*name).to_owned());
    let named = |values: &[u64]| names().zip(values.iter().copied()).collect();
    let mut values = values.iter();
    let mut reports = Vec::new();
    for (log, values) in view.logs.into_iter().zip(values.by_ref()) {
        let log = LogReport {
            path: log.path.clone(),
            index: log.index.unwrap_or(IndexMode::Parallel),
            buffer_bytes: log.buffer_bytes.unwrap_or(Choices::default().buffer_bytes) as u64,
            stores: log.stores,
            locks: LocksMode::Store,
            only_user: false,
            counters: named(values),
        };
        let mountpoint = Some(log.path.clone());
        reports.push(HolderReport { pid, mountpoint, log: Some(log), ..HolderReport::default() });
    }
    for (tree, values) in view.trees.into_iter().zip(values) {
        let holder = tree.shared.map(|shared| shared.holder);
        let mut of_holder = holders.iter_mut().filter(|report| Some(report.pid) == holder);
        let trees = of_holder.next().map(|report| &mut report.trees);
        let Some(report) = trees.into_iter().flatten().find(|report| report.path == tree.path) else {
            continue;
        };
        let counters = report.counters.get_or_insert_default();
        for (name, value) in names().zip(values) {
            *counters.entry(name).or_default() += value;
        }
    }
    reports
}

fn is_about(report: &HolderReport, path: &Path) -> bool {
    let covers = |tree: &TreeReport| tree.index == path || tree.path == path;
    let is_store = report.log.as_ref().is_some_and(|log| log.stores.iter().any(|store| store == path));
    report.mountpoint.as_deref() == Some(path) || is_store || report.trees.iter().any(covers)
}
