//! `quell profile`: traces a program, or reads existing traces, and writes a report.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use quell_mount_spec::OutputFormat;
use quell_profile::{Capacity, FirstReading, Geography, Links, Mount, Report, SlowDown, Tracing};

use crate::arguments::ProfileArgs;
use crate::config::{Config, TreeConfig};
use crate::failure::{Failure, INTERRUPTED, NO};
use crate::inputs::{read_small, real_path, shown};
use crate::output::{errln, outln};
use crate::progress::LOG_INTERVAL;
use crate::tracer::Tracer;
use crate::traces::Traces;
use crate::{output, progress, tracer};
use quell_supervisor::{MOUNT_TABLE, mount_table, parse_mount_table};

const TRACE: &str = "trace.strace";
const MOUNTINFO: &str = "mountinfo";
const CONFIG: &str = "quell.toml";
/// One of the first keys of report.json.
const REPORT_MARK: &[u8] = b"\"schema\": \"quell-profile/";
/// Directories of temporary files, besides TMPDIR.
const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// Size limit of a `quell probe` result that `--capacity` reads, in bytes.
const CAPACITY_BYTES_MAX: u64 = 1 << 20;
/// Size limit of a mount table that `--mounts` reads, in bytes: 100,000 mounts need less.
const MOUNTS_BYTES_MAX: u64 = 64 << 20;
/// Number of lines between two checks of the clock and of signals.
const LINES_BETWEEN_LOOKS: u64 = 4096;

pub fn run(args: ProfileArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let capacity = args.capacity.as_deref().map(capacity).transpose()?;
    let shared = args.shared.iter().map(|path| shared(path, &args)).collect::<Result<Vec<_>, _>>()?;
    let interrupted = progress::interruption();
    let imports = !args.import.is_empty();
    // The tracer is looked for before any file is created.
    let tracer = if imports { None } else { Some(Tracer::find()?) };
    let imported = if imports { Some(Traces::open(&args.import)?) } else { None };
    let geography = geography(&args, &shared)?;
    let output = Output::make(args.output.as_deref(), args.force)?;
    let (paths, traced) = match &tracer {
        None => (args.import.clone(), None),
        Some(tracer) => {
            let trace = output.path(TRACE);
            let table = std::fs::read(MOUNT_TABLE).unwrap_or_default();
            output.write(MOUNTINFO, &table)?;
            let traced = trace_program(tracer, &args, &trace, &interrupted, quiet)
                .inspect_err(|_| output.discard())?;
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
    let mut links = OfThisMachine { asks: args.mounts.is_none() };
    let reading =
        Reading { traces: &traces, geography: &geography, environment, interrupted: &interrupted, quiet };
    let (mut report, tracing) = reading.read(traced.as_ref(), capacity.as_ref(), &mut links)?;
    report.made_by = format!("quell {}", env!("CARGO_PKG_VERSION"));
    report.traces = paths.iter().map(shown).collect();
    report.command = args.command.iter().map(shown_argument).collect();
    let code = traced.as_ref().map(|t| t.code);
    report.tracing = tracing;
    if was_interrupted {
        report.notes.insert(0, "the program was interrupted: this is what it did until then".into());
    }
    if paths.len() > 1 {
        report.notes.push(format!(
            "{} traces are counted together, as one node: rates and nodes are right if all are of one node",
            paths.len()
        ));
    }
    let config = config(&report);
    report.next = next(&report, &args, &output.directory, &config);
    output.save(&report, &config)?;
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
        errln!("quell: the report is {}", shown(output.path("report.html")));
    }
    if imports && report.totals.calls == 0 {
        errln!("quell: no file-system call of strace's is in there");
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
        return Err(Failure::wrong_input(format!("--capacity {text}: operations a second are more than 0")));
    }
    let wrong = |e: &dyn std::fmt::Display| {
        Failure::wrong_input(format!(
            "--capacity {text}: neither a number nor a file that `quell probe -o` wrote: {e}"
        ))
    };
    let file = read_small(Path::new(text), CAPACITY_BYTES_MAX).map_err(|e| wrong(&e))?;
    let probe: serde_json::Value = serde_json::from_slice(&file).map_err(|e| wrong(&e))?;
    let schema = probe["schema"].as_str().unwrap_or_default();
    if schema.split('/').next() != Some("quell-probe") {
        return Err(wrong(&"it is not of the schema quell-probe"));
    }
    let sustained = probe["sustained"].as_f64().filter(|n| n.is_finite() && *n > 0.0);
    let operations_per_s = sustained.ok_or_else(|| wrong(&"the probe could not tell a rate"))?;
    let directory = probe["directory"].as_str().unwrap_or("a directory");
    Ok(Capacity { operations_per_s, from: format!("quell probe {directory}, from one node") })
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

fn geography(args: &ProfileArgs, shared: &[PathBuf]) -> Result<Geography, Failure> {
    let table = match &args.mounts {
        Some(file) => parse_mount_table(&read_small(file, MOUNTS_BYTES_MAX)?),
        None => mount_table().map_err(|e| Failure::cannot(format!("{}: {e}", MOUNT_TABLE)))?,
    };
    if table.is_empty() {
        return Err(Failure::wrong_input("the mount table is empty: is it a copy of /proc/self/mountinfo?"));
    }
    let mounts = table.into_iter().map(|m| Mount { point: bytes(&m.point), file_system: m.kind }).collect();
    let mut temporary: Vec<Vec<u8>> = TEMPORARY.map(|t| t.as_bytes().to_vec()).to_vec();
    if args.import.is_empty() {
        let own = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|p| p.is_absolute());
        temporary.extend(own.as_deref().map(bytes));
    }
    let working = args.cwd.clone().or_else(|| std::env::current_dir().ok());
    Ok(Geography {
        mounts,
        shared: shared.iter().map(|p| bytes(p)).collect(),
        temporary,
        working: working.as_deref().map(bytes),
    })
}

fn environment() -> Vec<(Vec<u8>, Vec<u8>)> {
    std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec())).collect()
}

/// Resolves symbolic links on this machine, unless the traces are from another one.
struct OfThisMachine {
    asks: bool,
}

impl Links for OfThisMachine {
    fn target(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        if !self.asks || path.starts_with(b"/proc/") {
            return None;
        }
        std::fs::read_link(OsStr::from_bytes(path)).ok().map(|target| target.into_os_string().into_vec())
    }
}

/// The result of a traced run.
struct Traced {
    code: u8,
    exit_code: Option<i32>,
    tracer: String,
    time: Duration,
    /// The duration without tracing, if it was measured.
    plain: Option<Duration>,
    cost_of_a_call: Option<Duration>,
}

impl Traced {
    /// Returns the cost of tracing. `calls` is the number of traced calls, `span` the time from the
    /// first to the last.
    fn tracing(&self, calls: u64, span: Duration) -> Tracing {
        // A measured comparison uses the wall times of both runs; an estimate excludes the start of
        // the tracer.
        let traced_s = if self.plain.is_some() { self.time } else { span }.as_secs_f64();
        let calls = calls as f64;
        let (direct_s, how) = match (self.plain, self.cost_of_a_call) {
            (Some(plain), _) => (plain.as_secs_f64(), SlowDown::Measured),
            // Several processes wait for the tracer at once, so the product can exceed the total
            // time. At least a twentieth of it is taken as the program's.
            (None, Some(cost)) => {
                ((traced_s - calls * cost.as_secs_f64()).max(traced_s / 20.0), SlowDown::Estimated)
            }
            (None, None) => (traced_s, SlowDown::Estimated),
        };
        Tracing {
            tracer: self.tracer.clone(),
            traced_s,
            direct_s,
            slow_down: if direct_s > 0.0 { traced_s / direct_s } else { 1.0 },
            how,
            exit_code: self.exit_code,
        }
    }
}

fn trace_program(
    tracer: &Tracer,
    args: &ProfileArgs,
    trace: &Path,
    interrupted: &AtomicBool,
    quiet: bool,
) -> Result<Traced, Failure> {
    let plain = match args.compare {
        true => {
            say(quiet, "running without tracing, to compare");
            Some(tracer::run_plainly(&args.command, interrupted)?.1)
        }
        false => None,
    };
    let cost_of_a_call = if plain.is_none() { tracer.cost_of_a_call() } else { None };
    say(quiet, &format!("tracing {} with {}", shown_argument(&args.command[0]), tracer.name()));
    let (status, time) = tracer.run(&args.command, trace, interrupted)?;
    if std::fs::metadata(trace).map_or(0, |m| m.len()) == 0 {
        // The code that `quell run` and shells return.
        let code = tracer::code_of(status);
        return Err(Failure::with_code(
            if code == 1 { 127 } else { code.max(1) },
            format!("{} was not started: nothing was traced", shown_argument(&args.command[0])),
        ));
    }
    Ok(Traced {
        code: tracer::code_of(status),
        exit_code: status.code(),
        tracer: tracer.name(),
        time,
        plain,
        cost_of_a_call,
    })
}

fn say(quiet: bool, what: &str) {
    if !quiet {
        errln!("quell: {what}");
    }
}

fn shown_argument(argument: &OsString) -> String {
    shown(Path::new(argument))
}

/// The input of a report, and how it is read.
struct Reading<'a> {
    traces: &'a Traces,
    geography: &'a Geography,
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    interrupted: &'a AtomicBool,
    quiet: bool,
}

impl Reading<'_> {
    /// Reads the traces twice, with a progress bar.
    fn read(
        &self,
        traced: Option<&Traced>,
        capacity: Option<&Capacity>,
        links: &mut dyn Links,
    ) -> Result<(Report, Option<Tracing>), Failure> {
        let mut bar = Bar::new(self.traces.bytes * 2, self.quiet);
        let environment = self.environment.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let mut first = FirstReading::new(self.geography, quell_profile::variables(environment), links);
        self.traces.read(&mut |line| {
            first.line(line.source, line.text, || format!("{}:{}", shown(line.path), line.number));
            bar.advance("reading the trace", line.text.len(), self.interrupted)
        })?;
        stop_if(self.interrupted)?;
        let (calls, span) = first.end();
        let tracing = traced.map(|traced| traced.tracing(calls, span));
        let mut second = first.choose(tracing.as_ref().map_or(1.0, |t| t.slow_down));
        self.traces.read(&mut |line| {
            second.line(line.source, line.text);
            bar.advance("replaying it", line.text.len(), self.interrupted)
        })?;
        stop_if(self.interrupted)?;
        bar.end();
        Ok((second.report(capacity), tracing))
    }
}

fn stop_if(interrupted: &AtomicBool) -> Result<(), Failure> {
    match interrupted.load(Ordering::Relaxed) {
        true => Err(Failure::interrupted("interrupted: no report was written; the trace is as it was")),
        false => Ok(()),
    }
}

/// Progress of the reading.
struct Bar {
    bar: ProgressBar,
    terminal: bool,
    quiet: bool,
    done: u64,
    all: u64,
    lines: u64,
    next_line: Duration,
    begun: std::time::Instant,
}

impl Bar {
    fn new(all: u64, quiet: bool) -> Bar {
        let terminal = std::io::stderr().is_terminal();
        let bar = if quiet || !terminal { ProgressBar::hidden() } else { ProgressBar::new(all) };
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}");
        bar.set_style(style.expect("a constant template"));
        Bar {
            bar,
            terminal,
            quiet,
            done: 0,
            all,
            lines: 0,
            next_line: LOG_INTERVAL,
            begun: std::time::Instant::now(),
        }
    }

    /// Returns `false` if the reading was interrupted.
    fn advance(&mut self, what: &'static str, bytes: usize, interrupted: &AtomicBool) -> bool {
        self.done += bytes as u64 + 1;
        self.lines += 1;
        if !self.lines.is_multiple_of(LINES_BETWEEN_LOOKS) {
            return true;
        }
        let elapsed = self.begun.elapsed();
        if self.terminal && elapsed > Duration::from_secs(1) {
            self.bar.set_message(what);
            self.bar.set_position(self.done);
        } else if !self.terminal && !self.quiet && elapsed > self.next_line {
            self.next_line += LOG_INTERVAL;
            errln!("quell: {what}: {} %", self.done * 100 / self.all.max(1));
        }
        !interrupted.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// The directory of the report.
struct Output {
    directory: PathBuf,
    /// Whether this process created the directory.
    made: bool,
    force: bool,
}

impl Output {
    /// Creates the directory with mode 0700, because paths and command lines are private.
    fn make(asked: Option<&Path>, force: bool) -> Result<Output, Failure> {
        let make = |directory: &Path| std::fs::DirBuilder::new().mode(0o700).create(directory);
        let failed = |directory: &Path, e: std::io::Error| {
            Failure::wrong_input(format!("{}: {e}; -o names a directory to write to", shown(directory)))
        };
        if let Some(directory) = asked {
            return match make(directory) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(failed(directory, e)),
                result => {
                    let directory = real_path(directory)?;
                    match directory.is_dir() {
                        true => Output { directory, made: result.is_ok(), force }.checked(),
                        false => {
                            Err(Failure::wrong_input(format!("{} is not a directory", shown(&directory))))
                        }
                    }
                }
            };
        }
        for number in 1.. {
            let name =
                if number == 1 { "quell-profile".to_owned() } else { format!("quell-profile.{number}") };
            match make(Path::new(&name)) {
                Ok(()) => {
                    return Ok(Output { directory: real_path(Path::new(&name))?, made: true, force: false });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(Path::new(&name), e)),
            }
        }
        unreachable!("there is a next number")
    }

    /// Checks that an existing directory is empty or contains a report.
    fn checked(self) -> Result<Output, Failure> {
        let failed = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(&self.directory)));
        if self.made || self.force || std::fs::read_dir(&self.directory).map_err(failed)?.next().is_none() {
            return Ok(self);
        }
        let report = |bytes: &[u8]| memchr::memmem::find(bytes, REPORT_MARK).is_some();
        let format = OutputFormat { name: "a report of this program", begins: report };
        let path = self.path("report.json");
        if path.symlink_metadata().is_err() {
            return Err(Failure::wrong_input(format!(
                "{} is not empty and has no report: name an empty directory or a new one; --force writes to it all the same",
                shown(&self.directory)
            )));
        }
        quell_mount_spec::Output { path: &path, format, force: false }.check()?;
        Ok(self)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        // `checked` has verified that the directory is one of a report.
        let format = OutputFormat { name: "a file of a report", begins: |_| true };
        Ok(quell_mount_spec::Output { path: &self.path(name), format, force: self.force }
            .replace(content, |_| Ok(()))?)
    }

    /// Removes the trace after a failure, and the directory if this process created it.
    fn discard(&self) {
        if self.made {
            for name in [TRACE, MOUNTINFO] {
                let _ = std::fs::remove_file(self.path(name));
            }
            let _ = std::fs::remove_dir(&self.directory);
        }
    }

    fn save(&self, report: &Report, config: &Config) -> Result<(), Failure> {
        self.write("report.json", json(report)?.as_bytes())?;
        let drawn = |e: &dyn std::fmt::Display| Failure::cannot(format!("cannot draw the report: {e}"));
        self.write("operations.csv", quell_profile::csv(report).as_bytes())?;
        for chart in quell_profile::charts(report).map_err(|e| drawn(&e))? {
            self.write(&format!("{}.svg", chart.name), chart.svg.as_bytes())?;
            self.write(&format!("{}.png", chart.name), &chart.png)?;
        }
        self.write("report.html", quell_profile::html(report).as_bytes())?;
        if !config.trees.is_empty() {
            self.write(CONFIG, config.text()?.as_bytes())?;
        }
        Ok(())
    }
}

fn json(report: &Report) -> Result<String, Failure> {
    serde_json::to_string_pretty(report).map_err(|e| Failure::cannot(format!("report.json: {e}")))
}

/// Returns a configuration that gives each proposed tree an index beside the report, named after
/// the tree.
fn config(report: &Report) -> Config {
    let mut trees: Vec<TreeConfig> = Vec::new();
    for tree in &report.trees {
        let path = PathBuf::from(&tree.path);
        let name = path.file_name().map_or_else(|| "tree".to_owned(), |n| n.to_string_lossy().into_owned());
        let names = (1..).map(|n| if n == 1 { format!("{name}.quell") } else { format!("{name}.{n}.quell") });
        let free = |index: &String| trees.iter().all(|t| t.index != Path::new(index));
        let index = names.into_iter().find(free).expect("there is a next number").into();
        trees.push(TreeConfig { path, index });
    }
    Config { trees, logs: Vec::new() }
}

/// Returns the two or three commands that the user should run next.
fn next(report: &Report, args: &ProfileArgs, directory: &Path, config: &Config) -> Vec<String> {
    let here = std::env::current_dir().unwrap_or_default();
    let quoted = |text: &OsStr| {
        let quoted = shlex::bytes::try_quote(text.as_bytes());
        quoted.map_or_else(|_| shown(Path::new(text)), |q| String::from_utf8_lossy(&q).into_owned())
    };
    let near = |path: &Path| quoted(path.strip_prefix(&here).unwrap_or(path).as_os_str());
    let mut next = Vec::new();
    for tree in config.trees.iter().take(2) {
        next.push(format!(
            "quell index {} -o {}",
            quoted(tree.path.as_os_str()),
            near(&directory.join(&tree.index))
        ));
    }
    if !config.trees.is_empty() {
        let command: Vec<String> = match args.command.is_empty() {
            true => vec!["CMD".into()],
            false => args.command.iter().map(|a| quoted(a)).collect(),
        };
        next.push(format!("quell run --config {} -- {}", near(&directory.join(CONFIG)), command.join(" ")));
    }
    let storms = report.metadata_rate.scenarios.direct.average > 0.0;
    if storms && report.nodes.is_none() {
        let place =
            report.trees.first().map(|t| Path::new(&t.path).parent().unwrap_or(Path::new("/")).to_owned());
        let place = place.map_or_else(|| "DIR".to_owned(), |p| quoted(p.as_os_str()));
        next.push(format!(
            "quell probe {place} -o probe.json    # how many nodes: then profile with --capacity probe.json"
        ));
    }
    next.truncate(3);
    next
}
