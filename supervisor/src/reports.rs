//! Collects the reports of holders.

use std::path::Path;

use crate::failure::Failure;
use crate::inputs::real_path;
use crate::protocol::report::{HolderReport, TreeReport};
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

/// Returns the reports of the caller's holders on this node that serve the path as mount point,
/// index, store or covered tree.
pub fn reports_of(path: &Path) -> Result<Reports, Failure> {
    let directory = runtime_directory()?;
    let real = real_path(path)?;
    let mut found = Reports::default();
    for key in holder_keys(&directory) {
        let text = match request_report(&directory, &key) {
            Ok(Some(text)) => text,
            Err(e) if e.errno() == rustix::io::Errno::TIMEDOUT.raw_os_error() => {
                found.unanswered.push(format!("no report of {key}: {e}"));
                continue;
            }
            // A holder that has just ended is not an error.
            Ok(None) | Err(_) => continue,
        };
        let Ok(report) = serde_json::from_str::<HolderReport>(&text) else { continue };
        if is_about(&report, &real) {
            found.reports.push(report);
        }
    }
    Ok(found)
}

fn is_about(report: &HolderReport, path: &Path) -> bool {
    let covers = |tree: &TreeReport| tree.index == path || tree.path == path;
    let is_store = report.log.as_ref().is_some_and(|log| log.stores.iter().any(|store| store == path));
    report.mountpoint.as_deref() == Some(path) || is_store || report.trees.iter().any(covers)
}
