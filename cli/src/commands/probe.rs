//! `quell probe`: prints its plan, asks for confirmation, runs the measurement and draws the curve.
//! The schema of the result is in docs/formats/probe.md.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use quell_mount_spec::{Output, OutputFormat};
use quell_probe::{
    AnsweredBy, End, Leftover, Limits, OperationKind, ProbeProgress, ProbeResult, Refusal, Stage,
};
use quell_supervisor::file_system_of;
use serde_json::{Value, json};

use crate::arguments::ProbeArgs;
use crate::failure::{Failure, NO, YES};
use crate::inputs::{real_path, shown, text_of};
use crate::output::{counted, errln, outln};
use crate::{output, progress};

const SCHEMA: &str = "quell-probe/1";
/// Local file systems. Others may be shared; the type of a FUSE file system does not show whether
/// it is local.
const LOCAL: [&str; 19] = [
    "bcachefs",
    "btrfs",
    "devtmpfs",
    "ecryptfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "fuseblk",
    "hugetlbfs",
    "jfs",
    "overlay",
    "ramfs",
    "tmpfs",
    "vfat",
    "xfs",
    "zfs",
];
/// A note for every result; the drawn curve has its own wording.
const LOWER_BOUND: &str = "measured on one node: a lower bound of the rate that the file system sustains";
/// From this utilization on, the node's processors may limit the rate.
const NODE_BUSY: f64 = 0.85;
/// Length of the longest bar, in characters.
const BAR: f64 = 16.0;

/// A checked request to probe a directory.
struct ProbeRequest<'a> {
    directory: &'a Path,
    kind: Option<String>,
    local: bool,
    limits: Limits,
}

pub fn run(args: ProbeArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let directory = real_path(&args.directory)?;
    if !directory.is_dir() {
        return Err(Failure::wrong_input(format!("{} is not a directory", shown(&args.directory))));
    }
    if args.clean {
        return clean(&directory, quiet);
    }
    // Checked now rather than after the measurement.
    if let Some(output) = &args.output {
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
        if output.is_dir() || parent.is_some_and(|parent| !parent.is_dir()) {
            return Err(Failure::wrong_input(format!(
                "{} cannot be created: -o names a file in an existing directory",
                shown(output)
            )));
        }
    }
    let kind = file_system_of(&directory);
    let task = ProbeRequest {
        directory: &directory,
        local: kind.as_deref().is_some_and(|kind| LOCAL.contains(&kind)),
        kind,
        limits: Limits {
            operations: args.operations,
            duration: Duration::from_secs(args.seconds),
            parallelism: args.max_parallel,
        },
    };
    let is_interactive = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if !args.yes && !is_interactive {
        let plan = task.plan();
        return Err(Failure::wrong_input(format!(
            "{plan}\nquell: standard input is not a terminal; pass --yes to start"
        )));
    }
    if let Some(output) = &args.output {
        result_file(output, args.force).check()?;
    }
    let progress = Arc::new(ProbeProgress::default());
    let survey =
        quell_probe::survey(&directory, &progress).map_err(|refusal| refused(refusal, &directory))?;
    if !args.yes {
        errln!("quell: {}", task.plan());
        if !agreed() {
            errln!("quell: not started; nothing was created");
            return Ok(ExitCode::from(NO));
        }
    }
    let leftovers: Vec<String> =
        survey.leftovers.iter().map(|leftover| left_behind(leftover, &directory)).collect();
    let interrupted = progress::interruption();
    let look = || {
        if interrupted.load(Ordering::Relaxed) {
            progress.stop();
        }
    };
    let line = |_| format!("probing {}: {}", shown(&directory), state(&progress));
    let outcome = progress::watch_line(&line, quiet || args.json, &look, || {
        quell_probe::measure(survey, &task.limits, task.local, &progress)
    });
    // The measurement was refused while it was running; the created names are removed.
    let outcome = outcome.map_err(|refusal| refused(refusal, &directory))?;
    if let Some(name) = &outcome.left {
        errln!(
            "quell: {} could not be removed; remove it with: quell probe --clean {}",
            shown(directory.join(name)),
            shown(&directory)
        );
    }
    if outcome.end == End::Interrupted {
        return Err(Failure::interrupted(match outcome.left {
            None => "interrupted: everything that the probe created is removed",
            Some(_) => "interrupted",
        }));
    }
    let notes = [task.notes(&outcome), leftovers].concat();
    let result = task.result(&outcome, &notes);
    if let Some(output) = &args.output {
        result_file(output, args.force).replace(format!("{result:#}\n").as_bytes(), |_| Ok(()))?;
    }
    if args.json {
        outln!("{result}");
    } else if !(quiet && args.output.is_some()) {
        task.print(&outcome, &notes);
    }
    if outcome.left.is_some() {
        return Err(Failure::cannot("the probe could not remove everything that it created"));
    }
    Ok(ExitCode::from(if outcome.sustained().is_some() { YES } else { NO }))
}

/// Returns the output file for a result. An existing one is JSON with the schema among its first
/// keys.
fn result_file(path: &Path, force: bool) -> Output<'_> {
    let begins = |bytes: &[u8]| {
        bytes.starts_with(b"{") && memchr::memmem::find(bytes, b"\"schema\": \"quell-probe/").is_some()
    };
    Output { path, format: OutputFormat { name: "the result of a probe", begins }, force }
}

fn refused(refusal: Refusal, directory: &Path) -> Failure {
    match refusal {
        Refusal::Failed(error) => error.into(),
        other => Failure::cannot(format!("{} is not probed: {other}", shown(directory))),
    }
}

fn clean(directory: &Path, quiet: bool) -> Result<ExitCode, Failure> {
    let cleaned = quell_probe::clean(directory, &Arc::default()).map_err(|refusal| match refusal {
        Refusal::Failed(error) => error.into(),
        other => Failure::cannot(format!("{}: {other}", shown(directory))),
    })?;
    for (name, why) in &cleaned.kept {
        errln!("quell: {} was not removed: {why}", shown(directory.join(name)));
    }
    if !quiet {
        for name in &cleaned.removed {
            outln!("{}: removed", shown(directory.join(name)));
        }
        if cleaned.removed.is_empty() && cleaned.kept.is_empty() {
            outln!("{}: no leftovers of probes", shown(directory));
        }
    }
    Ok(ExitCode::from(if cleaned.kept.is_empty() { YES } else { NO }))
}

/// Returns whether the user confirmed at the terminal.
fn agreed() -> bool {
    output::report_coloured("Begin? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Describes a directory that a killed probe left behind.
fn left_behind(leftover: &Leftover, directory: &Path) -> String {
    format!(
        "{} was left by a probe that was killed ({}); quell probe --clean {} removes it if it is yours",
        shown(directory.join(&leftover.name)),
        leftover.describe_owner(),
        shown(directory)
    )
}

/// Describes the current stage for the progress line.
fn state(progress: &ProbeProgress) -> String {
    let what = match progress.stage() {
        Stage::Checking => "checking".into(),
        Stage::Creating => "creating a tree".into(),
        Stage::Kinds => "one request at a time".into(),
        Stage::Mix(1) => "1 thread".into(),
        Stage::Mix(threads) => format!("{threads} threads"),
        Stage::Removing => "removing the tree".into(),
    };
    format!("{what}, {} operations", grouped(progress.operations()))
}

/// Returns the name of a kind as it is printed.
fn kind_name(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::LookUp => "look-ups",
        OperationKind::Attributes => "attributes",
        OperationKind::List => "listings",
        OperationKind::Create => "creates",
        OperationKind::Remove => "removes",
        OperationKind::Other => "others",
    }
}

/// Formats a number with a comma between thousands.
fn grouped(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

fn latency(duration: Duration) -> String {
    match duration.as_micros() {
        0..10 => format!("{:.1} us", duration.as_nanos() as f64 / 1e3),
        10..10_000 => format!("{} us", duration.as_micros()),
        _ => format!("{} ms", duration.as_millis()),
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

/// Rounds to a number of decimal digits; a negative number of digits rounds to tens, hundreds, and
/// so on.
fn rounded(number: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (number * scale).round() / scale
}

impl ProbeRequest<'_> {
    /// Describes the planned measurement.
    fn plan(&self) -> String {
        let (directories, files) = self.limits.shape();
        let threads = match self.limits.parallelism {
            1 => "with one thread".into(),
            highest => {
                format!(
                    "with 1, 2, 4, ... up to {highest} threads,\n  until more threads bring no higher rate"
                )
            }
        };
        format!(
            "a probe of {} ({}) will\n  \
             create a directory .quell-probe-XXXXXX there, with {} of {} each,\n  \
             request names, attributes and listings {threads},\n  \
             send at most {} operations in all, measure for at most {} s,\n  \
             and remove the directory at the end.",
            shown(self.directory),
            self.kind.as_deref().unwrap_or("file system unknown"),
            counted(directories.into(), "directory", "directories"),
            counted(files.into(), "empty file", "empty files"),
            grouped(self.limits.operations),
            self.limits.duration.as_secs(),
        )
    }

    /// Returns the remarks for the interpretation of the numbers.
    fn notes(&self, outcome: &ProbeResult) -> Vec<String> {
        let mut notes = Vec::new();
        let kind = self.kind.as_deref().unwrap_or("unknown");
        if self.local {
            notes.push(format!("{kind} is a file system of this node: no server answered"));
        } else if outcome.sustained().is_some() {
            notes.push(LOWER_BOUND.into());
        }
        if let Some(busy) = outcome.node_busy().filter(|busy| *busy >= NODE_BUSY) {
            notes.push(format!(
                "the processors of this node were {:.0} % busy: they may be the limit, not the file system",
                busy * 100.0
            ));
        }
        if kind.starts_with("fuse") {
            notes.push(
                "behind FUSE, answers from the memory of the file system's own process look like those of a fast server"
                    .into(),
            );
        }
        for kind in outcome.kinds.iter().filter(|kind| kind.answered_by == AnsweredBy::Cache) {
            notes.push(format!(
                "{}: answered by the cache of this node, and not included in the rate",
                kind_name(kind.kind)
            ));
        }
        notes.extend(match outcome.end {
            End::Plateau | End::Cached | End::Interrupted => None,
            End::Highest => Some(
                "the rate was still rising at the highest number of threads; raise --max-parallel".into(),
            ),
            End::Operations | End::Seconds if outcome.steps.is_empty() => {
                Some("the limits were too low to measure a rate; raise --operations and --seconds".into())
            }
            End::Operations => Some(
                "the limit on operations ended the probe while the rate was rising; raise --operations"
                    .into(),
            ),
            End::Seconds => Some(
                "the limit on the duration ended the probe while the rate was rising; raise --seconds".into(),
            ),
            End::Slow => Some("a call took longer than a second, so the probe ended at once".to_owned()),
        });
        notes
    }

    fn result(&self, outcome: &ProbeResult, notes: &[String]) -> Value {
        let kinds: Vec<Value> = outcome
            .kinds
            .iter()
            .map(|k| {
                json!({
                    "kind": k.kind.name(), "calls": k.calls, "operations": k.operations,
                    "seconds": rounded(k.seconds, 4), "rate": rounded(k.rate(), 1),
                    "p50_us": rounded(micros(k.p50), 1), "p99_us": rounded(micros(k.p99), 1),
                    "answered_by": k.answered_by.name(),
                })
            })
            .collect();
        let steps: Vec<Value> = outcome
            .steps
            .iter()
            .map(|s| {
                json!({
                    "parallelism": s.parallelism, "operations": s.operations,
                    "seconds": rounded(s.seconds, 4), "rate": rounded(s.rate(), 1),
                    "p50_us": rounded(micros(s.p50), 1), "p99_us": rounded(micros(s.p99), 1),
                    "node_busy": s.node_busy.map(|busy| rounded(busy, 2)),
                })
            })
            .collect();
        let capped_by = match outcome.end {
            End::Operations => Some("operations"),
            End::Seconds => Some("seconds"),
            End::Slow => Some("slow"),
            End::Plateau | End::Highest | End::Cached | End::Interrupted => None,
        };
        json!({
            "schema": SCHEMA,
            "made_by": concat!("quell ", env!("CARGO_PKG_VERSION")),
            "directory": text_of(self.directory),
            "file_system": self.kind,
            "started": outcome.started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            "kinds": kinds,
            "steps": steps,
            "sustained": outcome.sustained().map(|rate| rounded(rate, 1)),
            "saturated": outcome.end == End::Plateau,
            "capped_by": capped_by,
            "operations_total": outcome.operations,
            "notes": notes,
        })
    }

    /// Prints the curve (figure 3 of the paper) and its interpretation.
    fn print(&self, outcome: &ProbeResult, notes: &[String]) {
        let kind = self.kind.as_deref().unwrap_or("file system unknown");
        outln!("{} ({kind}), {} operations in all", shown(self.directory), grouped(outcome.operations));
        outln!();
        outln!(
            "{:<16}{:>10}{:>10}{:>10}{:>10}  answered by",
            "one at a time",
            "calls",
            "ops/s",
            "p50",
            "p99"
        );
        for k in &outcome.kinds {
            outln!(
                "{:<16}{:>10}{:>10}{:>10}{:>10}  {}",
                kind_name(k.kind),
                grouped(k.calls),
                grouped(k.rate().round() as u64),
                latency(k.p50),
                latency(k.p99),
                k.answered_by.name()
            );
        }
        if !outcome.steps.is_empty() {
            let best = outcome.steps.iter().map(quell_probe::Step::rate).fold(1.0, f64::max);
            outln!();
            outln!(
                "{:>7}{:>11}{:>9}{:>10}{:>9}{:>9}",
                "threads",
                "operations",
                "seconds",
                "ops/s",
                "p50",
                "p99"
            );
            for step in &outcome.steps {
                let bar = "#".repeat((step.rate() / best * BAR).round() as usize);
                outln!(
                    "{:>7}{:>11}{:>9.3}{:>10}{:>9}{:>9} {bar}{}",
                    step.parallelism,
                    grouped(step.operations),
                    step.seconds,
                    grouped(step.rate().round() as u64),
                    latency(step.p50),
                    latency(step.p99),
                    if outcome.end == End::Plateau && outcome.is_on_plateau(step) { " plateau" } else { "" },
                );
            }
        }
        outln!();
        match outcome.sustained() {
            None => outln!("No rate could be measured."),
            Some(rate) => {
                outln!("This node alone sustains about {} metadata operations per second.", about(rate));
                if !self.local {
                    outln!(
                        "This is a lower bound: the file system may sustain more from several nodes.\n\
                         To measure that, probe on several nodes at once, each in a directory of its\n\
                         own, and add the rates."
                    );
                }
            }
        }
        for note in notes.iter().filter(|note| *note != LOWER_BOUND) {
            outln!("note: {note}");
        }
    }
}

/// Formats a rate with two significant digits: a measurement of a few seconds is not more precise.
fn about(rate: f64) -> String {
    let digits = rate.max(1.0).log10().floor() as i32;
    grouped(rounded(rate, 1 - digits) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_two_digits() {
        for (rate, expected) in
            [(32_481.0, "32,000"), (9_870.0, "9,900"), (104.0, "100"), (7.0, "7"), (0.4, "0")]
        {
            assert_eq!(about(rate), expected);
        }
    }

    #[test]
    fn latencies_have_the_unit_that_fits() {
        for (nanoseconds, expected) in
            [(480, "0.5 us"), (85_400, "85 us"), (9_999_000, "9999 us"), (62_000_000, "62 ms")]
        {
            assert_eq!(latency(Duration::from_nanos(nanoseconds)), expected);
        }
    }
}
