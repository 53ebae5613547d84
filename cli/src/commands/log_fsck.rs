//! `quell log fsck`: checks and repairs stores. The log layer finds and repairs problems; this
//! module determines which files are open on this node, and the time.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use indicatif::HumanBytes;
use quell_log::{CheckOptions, CheckResult, Finding, ProblemKind, RepairOutcome};
use quell_vfs::Time;
use serde_json::{Value, json};

use super::log_stores::{open_stores, open_stores_for_change};
use super::log_transfer::run_with_progress;
use crate::arguments::LogFsckArgs;
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown, shown_bytes, text_of_bytes};
use crate::output::{counted, errln, outln};

const DAY_SECONDS: i64 = 86_400;
const INTERRUPTED: &str = "completed repairs are kept; run the command again to check the rest";

pub fn run(args: &LogFsckArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let stores = match args.repair {
        true => open_stores_for_change(&args.stores)?,
        false => open_stores(&args.stores)?,
    };
    // The paths are in the order of the stores' map, which may differ from the order of the
    // arguments.
    let store_paths = stores.paths();
    let is_in_use = |store: usize, names: &[&[u8]]| {
        let own = Path::new(OsStr::from_bytes(&store_paths[store])).join(".quell");
        is_open_below(&names.iter().fold(own, |path, name| path.join(OsStr::from_bytes(name))))
    };
    let options = CheckOptions {
        threads: args.threads.count.into(),
        repair: args.repair,
        dead_nodes: &args.retire,
        dead_writers: &args.writer,
        now: now(),
        leftover_age_seconds: i64::from(args.older_than) * DAY_SECONDS,
        is_in_use: &is_in_use,
    };
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    let title = format!("checking {}", shown(&args.stores.stores));
    let result = run_with_progress(&title, quiet || args.output.json, INTERRUPTED, |progress| {
        quell_log::check(&stores, path.as_os_str().as_bytes(), &options, progress)
    })?;
    let repaired =
        result.findings.iter().filter(|finding| finding.outcome == RepairOutcome::Repaired).count();
    let remaining = result.findings.len() - repaired;
    match args.output.json {
        true => print_json(&result, remaining, repaired),
        false => print_text(args, &result, remaining, repaired, quiet),
    }
    let mut is_clean = remaining == 0;
    if result.kept_writers > 0 {
        is_clean = false;
        errln!(
            "quell: --retire does not apply to {}: the node has not been rebooted since, so the processes may still be \
             running, for example in another PID namespace; `quell log stat` shows a file's writers, and --force \
             --writer WRITER ends one",
            counted(
                result.kept_writers,
                "open writer that began on this node",
                "open writers that began on this node"
            ),
        );
    }
    for writer in args.writer.iter().filter(|writer| !was_found(&result, **writer)) {
        is_clean = false;
        errln!(
            "quell: no file that was checked has an open writer {writer:016x}; `quell log stat` shows a file's writers"
        );
    }
    Ok(ExitCode::from(if is_clean { YES } else { NO }))
}

/// Returns whether a writer that the user declared dead was found.
fn was_found(result: &CheckResult, writer: u64) -> bool {
    result.findings.iter().any(|finding| {
        finding.problem.kind == ProblemKind::DeadWriter && finding.problem.writer == Some(writer)
    })
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

fn print_text(args: &LogFsckArgs, result: &CheckResult, remaining: usize, repaired: usize, quiet: bool) {
    result.findings.iter().for_each(|finding| outln!("{}", line(finding)));
    if quiet {
        return;
    }
    let problems = counted(remaining as u64, "problem", "problems");
    let problems = match args.repair {
        true => format!("{problems} left, {repaired} repaired"),
        false => problems,
    };
    outln!(
        "{}: {}, {} checked, {}; {problems}",
        shown(&args.stores.stores),
        counted(result.files, "file", "files"),
        HumanBytes(result.bytes),
        counted(result.open_writers, "open writer", "open writers"),
    );
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

fn print_json(result: &CheckResult, remaining: usize, repaired: usize) {
    let findings: Vec<Value> = result.findings.iter().map(json_of).collect();
    outln!(
        "{}",
        json!({ "files": result.files, "bytes": result.bytes, "open": result.open_writers,
            "problems": remaining, "repaired": repaired, "findings": findings })
    );
}

fn json_of(finding: &Finding) -> Value {
    let problem = &finding.problem;
    let ranges: Vec<_> = problem.ranges.iter().map(|range| [range.start.0, range.end.0]).collect();
    let (outcome, error) = match &finding.outcome {
        RepairOutcome::NotRepaired => ("found", None),
        RepairOutcome::Repaired => ("repaired", None),
        RepairOutcome::Failed(why) => ("failed", Some(why)),
    };
    json!({
        "path": text_of_bytes(&finding.path), "problem": problem.kind.id(), "text": problem.text,
        "writer": problem.writer.map(|writer| format!("{writer:016x}")), "ranges": ranges,
        "outcome": outcome, "error": error,
    })
}

/// Returns whether a process of this node that the caller may inspect has a file open at or below
/// `path`, or has its working directory there.
fn is_open_below(path: &Path) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let is_below = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(path));
    for process in processes.flatten() {
        let name = process.file_name();
        if !name.as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        if is_below(process.path().join("cwd")) || is_below(process.path().join("root")) {
            return true;
        }
        match std::fs::read_dir(process.path().join("fd")) {
            Ok(open) => {
                if open.flatten().any(|fd| is_below(fd.path())) {
                    return true;
                }
            }
            // Only root can see the open files of another user's processes. Files that such a
            // process has removed belong to the same user, and only that user (or root) can remove
            // them from the store.
            Err(_) => continue,
        }
    }
    false
}
