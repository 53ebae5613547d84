//! `quell log fsck`: checks and repairs stores. The log layer finds and repairs problems; this
//! module determines which files are open on this node, and the time.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use indicatif::HumanBytes;
use quell_log::{Checking, Finding, ProblemKind, RepairOutcome};
use quell_vfs::Time;
use serde_json::{Value, json};

use super::log_list::open;
use super::log_transfer::watched;
use crate::arguments::LogFsckArgs;
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown, shown_bytes, text_of_bytes};
use crate::output::{errln, outln};

const DAY_SECONDS: i64 = 86_400;

pub fn run(args: &LogFsckArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let stores = open(&args.stores)?;
    // In the order of the stores' map, which may differ from that of the arguments.
    let store_paths = stores.paths();
    let is_used = |store: usize, names: &[&[u8]]| {
        let own = Path::new(OsStr::from_bytes(&store_paths[store])).join(".quell");
        is_open_below(&names.iter().fold(own, |path, name| path.join(OsStr::from_bytes(name))))
    };
    let how = Checking {
        threads: args.threads.into(),
        repair: args.repair,
        dead: &args.retire,
        ended: &args.writer,
        now: now(),
        old_seconds: i64::from(args.older_than) * DAY_SECONDS,
        is_used: &is_used,
    };
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    let what = format!("checking {}", shown(&args.stores.stores));
    let means = "what was repaired by then is repaired, and the rest as it was";
    let checked = watched(&what, quiet || args.json, means, |tally| {
        quell_log::check(&stores, path.as_os_str().as_bytes(), &how, tally)
    })?;
    let left = checked.findings.iter().filter(|finding| finding.outcome != RepairOutcome::Repaired).count();
    let repaired = checked.findings.len() - left;
    if args.json {
        let findings: Vec<Value> = checked.findings.iter().map(value).collect();
        outln!(
            "{}",
            json!({ "files": checked.files, "bytes": checked.bytes, "open": checked.open,
                "problems": left, "repaired": repaired, "findings": findings })
        );
    } else {
        checked.findings.iter().for_each(|finding| outln!("{}", line(finding)));
        if !quiet {
            outln!(
                "{}: {} files, {} checked, {} writers at work; {left} problems{}",
                shown(&args.stores.stores),
                checked.files,
                HumanBytes(checked.bytes),
                checked.open,
                if args.repair { format!(" left, {repaired} repaired") } else { String::new() },
            );
        }
    }
    let mut is_left = left > 0;
    for writer in &args.writer {
        let is_it = |finding: &Finding| {
            finding.problem.kind == ProblemKind::DeadWriter && finding.problem.writer == Some(*writer)
        };
        if !checked.findings.iter().any(is_it) {
            is_left = true;
            errln!(
                "quell: no file that was checked has an open writer {writer:016x}; `quell log stat` shows a file's writers"
            );
        }
    }
    Ok(ExitCode::from(if is_left { NO } else { YES }))
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

fn line(finding: &Finding) -> String {
    let path = if finding.path.is_empty() { "(stores)".to_owned() } else { shown_bytes(&finding.path) };
    let outcome = match &finding.outcome {
        RepairOutcome::NotRepaired => String::new(),
        RepairOutcome::Repaired => " (repaired)".to_owned(),
        RepairOutcome::Failed(why) => format!(" (repair failed: {why})"),
    };
    format!("{path}: {}{outcome}", finding.problem)
}

fn value(finding: &Finding) -> Value {
    let problem = &finding.problem;
    let (outcome, error) = match &finding.outcome {
        RepairOutcome::NotRepaired => ("found", None),
        RepairOutcome::Repaired => ("repaired", None),
        RepairOutcome::Failed(why) => ("failed", Some(why)),
    };
    json!({
        "path": text_of_bytes(&finding.path), "problem": problem.kind.id(), "text": problem.text,
        "writer": problem.writer.map(|writer| format!("{writer:016x}")), "ranges": problem.ranges,
        "outcome": outcome, "error": error,
    })
}

/// Returns whether a process of this node that the caller may inspect has a file open at or below
/// `path`, or has its working directory there.
fn is_open_below(path: &Path) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let leads_there = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(path));
    for process in processes.flatten() {
        let name = process.file_name();
        if !name.as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        if leads_there(process.path().join("cwd")) || leads_there(process.path().join("root")) {
            return true;
        }
        match std::fs::read_dir(process.path().join("fd")) {
            Ok(open) => {
                if open.flatten().any(|fd| leads_there(fd.path())) {
                    return true;
                }
            }
            // Only root can see the open files of another user's processes. Files that they removed
            // belong to that user, and only that user (or root) can remove them.
            Err(_) => continue,
        }
    }
    false
}
