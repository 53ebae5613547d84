//! `quell profile`: traces a program, or reads existing traces, and writes a report.

mod directories;
mod next_steps;
mod reading;
mod report_directory;

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_profile::{Capacity, Links, LocationRules, MountPoint};

use crate::arguments::ProfileArgs;
use crate::failure::{Failure, INTERRUPTED, NO};
use crate::inputs::{read_small, real_path, shown};
use crate::output::{errln, outln};
use crate::tracer::{Traced, Tracer};
use crate::traces::Traces;
use crate::{local_time, output, progress, tracer};
use quell_supervisor::{MOUNT_TABLE, current_job, mount_table, parse_mount_table};

use directories::DirectoriesOfThisMachine;
use reading::Reading;
use report_directory::{MOUNTINFO, ReportDirectory, TRACE, json};

/// Directories of temporary files, besides TMPDIR.
const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// Size limit of a `quell probe` result that `--capacity` reads, in bytes.
const CAPACITY_BYTES_MAX: u64 = 1 << 20;
/// Size limit of a mount table that `--mounts` reads, in bytes: 100,000 mounts need less.
const MOUNTS_BYTES_MAX: u64 = 64 << 20;

pub fn run(args: ProfileArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let capacity = args.capacity.as_deref().map(capacity).transpose()?;
    let shared = args.shared.iter().map(|path| shared(path, &args)).collect::<Result<Vec<_>, _>>()?;
    let interrupted = progress::interruption();
    let imports = !args.import.is_empty();
    // The tracer is looked for before any file is created.
    let tracer = if imports { None } else { Some(Tracer::find()?) };
    let imported = if imports { Some(Traces::open(&args.import)?) } else { None };
    let rules = location_rules(&args, &shared)?;
    let directory = ReportDirectory::create(args.output.as_deref(), args.force)?;
    let (paths, traced) = match &tracer {
        None => (args.import.clone(), None),
        Some(tracer) => {
            let trace = directory.file(TRACE);
            let table = std::fs::read(MOUNT_TABLE).unwrap_or_default();
            directory.write(MOUNTINFO, &table)?;
            let traced = trace_program(tracer, &args, &trace, &interrupted, quiet)
                .inspect_err(|_| directory.discard())?;
            (vec![trace], Some(traced))
        }
    };
    let traces = match imported {
        Some(traces) => traces,
        None => Traces::open(&paths)?,
    };
    let environment = if imports { Vec::new() } else { environment() };
    // After Ctrl-C, the calls traced so far are reported; a second Ctrl-C ends this too.
    let was_interrupted = interrupted.swap(false, Ordering::Relaxed);
    let mut links = LinksOfThisMachine { are_resolved: args.mounts.is_none() };
    let reading = Reading { traces: &traces, rules: &rules, environment, interrupted: &interrupted, quiet };
    let mut directories = DirectoriesOfThisMachine::new(args.mounts.is_none(), &interrupted);
    let (mut report, tracing) =
        reading.read(traced.as_ref(), capacity.as_ref(), &mut links, &mut directories)?;
    report.made_by = format!("quell {}", env!("CARGO_PKG_VERSION"));
    report.traces = paths.iter().map(shown).collect();
    report.command = args.command.iter().map(shown_argument).collect();
    let code = traced.as_ref().map(|t| t.code);
    report.tracing = tracing;
    report.utc_offset_s = local_time::utc_offset_s(report.started_s);
    if !imports {
        report.host = Some(rustix::system::uname().nodename().to_string_lossy().into_owned());
        report.job = current_job();
    }
    if was_interrupted {
        report
            .notes
            .insert(0, "the program was interrupted; the report contains its calls until then".into());
    }
    if paths.len() > 1 {
        report.notes.push(format!(
            "{} traces are counted together, as those of one node; rates and numbers of nodes are wrong if they are of several",
            paths.len()
        ));
    }
    let config = next_steps::config(&report);
    report.next = next_steps::next_steps(&report, &args, &directory.path, &config);
    directory.save(&report, &config)?;
    if args.json {
        outln!("{}", json(&report)?);
    } else if !quiet {
        // Standard output belongs to the traced program, so the summary goes to standard error.
        let colour = if imports { output::is_terminal() } else { std::io::stderr().is_terminal() };
        let text = quell_profile::summary(&report, colour && std::env::var_os("NO_COLOR").is_none());
        if imports {
            output::print_coloured(&text);
        } else {
            output::report_coloured(&text);
        }
        errln!("quell: the report is {}", shown(directory.file("report.html")));
    }
    if imports && report.totals.calls == 0 {
        let traces = paths.iter().map(shown).collect::<Vec<_>>().join(", ");
        errln!("quell: {traces}: no file-system calls; expected a trace of `strace -f -ttt -y -o FILE CMD`");
        return Ok(ExitCode::from(NO));
    }
    Ok(ExitCode::from(if was_interrupted { INTERRUPTED } else { code.unwrap_or(0) }))
}

/// Resolves a directory given with `--shared`. In traces of another machine the path is used as
/// given.
fn shared(path: &Path, args: &ProfileArgs) -> Result<PathBuf, Failure> {
    match real_path(path) {
        Err(_) if !args.import.is_empty() && path.is_absolute() => Ok(path.to_owned()),
        real => real,
    }
}

/// Parses a capacity: a number such as `32000`, or the path of a probe result.
fn capacity(text: &str) -> Result<Capacity, Failure> {
    if let Ok(number) = text.replace(['_', ','], "").parse::<f64>() {
        if number.is_finite() && number > 0.0 {
            return Ok(Capacity { operations_per_s: number, from: "--capacity".into() });
        }
        return Err(Failure::wrong_input(format!(
            "--capacity {text}: the operations per second must be more than 0"
        )));
    }
    let wrong = |e: &dyn std::fmt::Display| {
        Failure::wrong_input(format!(
            "--capacity {text}: {e}; give a number of operations per second, or a file that `quell probe -o` wrote"
        ))
    };
    let file = read_small(Path::new(text), CAPACITY_BYTES_MAX).map_err(|e| wrong(&e))?;
    let probe: serde_json::Value = serde_json::from_slice(&file).map_err(|e| wrong(&e))?;
    let schema = probe["schema"].as_str().unwrap_or_default();
    if schema.split('/').next() != Some("quell-probe") {
        return Err(wrong(&"it is not a result of `quell probe -o`"));
    }
    let sustained = probe["sustained"].as_f64().filter(|n| n.is_finite() && *n > 0.0);
    let operations_per_s = sustained.ok_or_else(|| wrong(&"the probe measured no rate"))?;
    let directory = probe["directory"].as_str().unwrap_or("a directory");
    Ok(Capacity { operations_per_s, from: format!("quell probe {directory}, from one node") })
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Returns the directories that determine the location of a path.
fn location_rules(args: &ProfileArgs, shared: &[PathBuf]) -> Result<LocationRules, Failure> {
    let table = match &args.mounts {
        Some(file) => parse_mount_table(&read_small(file, MOUNTS_BYTES_MAX)?),
        None => mount_table().map_err(|e| Failure::cannot(format!("{}: {e}", MOUNT_TABLE)))?,
    };
    if table.is_empty() {
        return Err(Failure::wrong_input(
            "the mount table of --mounts is empty; copy /proc/self/mountinfo of the traced machine",
        ));
    }
    let mounts =
        table.into_iter().map(|m| MountPoint { point: bytes(&m.point), file_system: m.kind }).collect();
    let mut temporary: Vec<Vec<u8>> = TEMPORARY.map(|t| t.as_bytes().to_vec()).to_vec();
    // Imported traces may be from another machine or user.
    let own = |variable: &str| {
        let value = std::env::var_os(variable).filter(|_| args.import.is_empty()).map(PathBuf::from);
        value.filter(|path| path.is_absolute()).as_deref().map(bytes)
    };
    temporary.extend(own("TMPDIR"));
    let working = args.cwd.clone().or_else(|| std::env::current_dir().ok());
    Ok(LocationRules {
        mounts,
        shared: shared.iter().map(|p| bytes(p)).collect(),
        temporary,
        working: working.as_deref().map(bytes),
        home: own("HOME"),
    })
}

fn environment() -> Vec<(Vec<u8>, Vec<u8>)> {
    std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec())).collect()
}

/// Resolves symbolic links on this machine, unless the traces are from another one.
struct LinksOfThisMachine {
    are_resolved: bool,
}

impl Links for LinksOfThisMachine {
    fn target(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        if !self.are_resolved || path.starts_with(b"/proc/") {
            return None;
        }
        std::fs::read_link(OsStr::from_bytes(path)).ok().map(|target| target.into_os_string().into_vec())
    }
}

fn trace_program(
    tracer: &Tracer,
    args: &ProfileArgs,
    trace: &Path,
    interrupted: &AtomicBool,
    quiet: bool,
) -> Result<Traced, Failure> {
    let untraced = match args.compare {
        true => {
            say(quiet, "running without tracing, to compare");
            Some(tracer::run_untraced(&args.command, interrupted)?.1)
        }
        false => None,
    };
    let call_cost = if untraced.is_none() { tracer.call_cost() } else { None };
    say(quiet, &format!("tracing {} with {}", shown_argument(&args.command[0]), tracer.name()));
    let (status, time) = tracer.run(&args.command, trace, interrupted)?;
    if std::fs::metadata(trace).map_or(0, |m| m.len()) == 0 {
        // The code that `quell run` and shells return.
        let code = tracer::code_of(status);
        return Err(Failure::with_code(
            if code == 1 { 127 } else { code.max(1) },
            format!("{} could not be started: nothing was traced", shown_argument(&args.command[0])),
        ));
    }
    Ok(Traced {
        code: tracer::code_of(status),
        exit_code: status.code(),
        tracer: tracer.name(),
        time,
        untraced,
        call_cost,
    })
}

fn say(quiet: bool, message: &str) {
    if !quiet {
        errln!("quell: {message}");
    }
}

fn shown_argument(argument: &OsString) -> String {
    shown(Path::new(argument))
}
