//! The commands that a user of `quell profile` runs next. Each command is complete and stands
//! alone, so that it can be pasted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use quell_profile::{NextStep, Report};

use crate::arguments::ProfileArgs;
use crate::commands::profile::report_directory::CONFIG;
use crate::config::{Config, TreeConfig};
use crate::inputs::shown;

/// Number of trees for which a command to index them is proposed; `quell run --config` creates all
/// indexes.
const INDEX_COMMANDS_MAX: usize = 2;
/// A boot image is proposed if it absorbs at least this part of the operations in addition to the
/// index.
const BOOT_PART_MIN: f64 = 0.05;
/// Stands for the command, if traces were imported.
const UNKNOWN_COMMAND: &str = "CMD";

/// Returns a configuration that gives each proposed tree an index beside the report, named after
/// the tree.
pub fn config(report: &Report) -> Config {
    let mut trees: Vec<TreeConfig> = Vec::new();
    for tree in &report.trees {
        let path = PathBuf::from(&tree.path);
        let name = path.file_name().map_or_else(|| "tree".to_owned(), |n| n.to_string_lossy().into_owned());
        let names = (1..).map(|n| if n == 1 { format!("{name}.quell") } else { format!("{name}.{n}.quell") });
        let is_free = |index: &String| trees.iter().all(|tree| tree.index != Path::new(index));
        let index = names.into_iter().find(is_free).expect("there is a next number").into();
        trees.push(TreeConfig { path, index });
    }
    Config { trees, logs: Vec::new() }
}

/// Returns the commands to run next, in their order. `directory`: the directory of the report.
pub fn next_steps(report: &Report, args: &ProfileArgs, directory: &Path, config: &Config) -> Vec<NextStep> {
    let context = StepContext { args, directory, here: std::env::current_dir().unwrap_or_default() };
    let mut steps = Vec::new();
    steps.extend(profile_again(report, &context));
    steps.extend(index(config, &context));
    // First the boot image, if it absorbs more than the index alone.
    steps.extend(record(report, config, &context));
    steps.extend(run_with_index(config, &context));
    steps.extend(log_mount(report, &context));
    steps.extend(probe(report, &context));
    steps
}

struct StepContext<'a> {
    args: &'a ProfileArgs,
    directory: &'a Path,
    here: PathBuf,
}

impl StepContext<'_> {
    /// Returns a path for a command line, relative to the current directory if it is below it.
    fn relative(&self, path: &Path) -> String {
        quoted(path.strip_prefix(&self.here).unwrap_or(path).as_os_str())
    }

    /// Returns the path of a file beside the report.
    fn beside_report(&self, name: &Path) -> String {
        self.relative(&self.directory.join(name))
    }

    /// Returns the program and its arguments.
    fn command(&self) -> String {
        match self.args.command.is_empty() {
            true => UNKNOWN_COMMAND.to_owned(),
            false => self.args.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
        }
    }

    /// Returns the purpose of a command that contains `command()`.
    fn purpose(&self, purpose: &str) -> String {
        match self.args.command.is_empty() {
            true => format!("{purpose} (put your command in place of {UNKNOWN_COMMAND})"),
            false => purpose.to_owned(),
        }
    }
}

fn step(purpose: impl Into<String>, command: String) -> NextStep {
    NextStep { purpose: purpose.into(), command }
}

fn quoted(text: &OsStr) -> String {
    let quoted = shlex::bytes::try_quote(text.as_bytes());
    quoted.map_or_else(|_| shown(Path::new(text)), |text| String::from_utf8_lossy(&text).into_owned())
}

/// Returns a command to profile the program again, if Python wrote bytecode into a tree: the second
/// run then changes nothing in the tree.
fn profile_again(report: &Report, context: &StepContext) -> Option<NextStep> {
    let is_useful =
        report.not_proposed.iter().any(|tree| tree.only_bytecode) && !context.args.command.is_empty();
    let shared: String =
        context.args.shared.iter().map(|path| format!(" --shared {}", quoted(path.as_os_str()))).collect();
    is_useful.then(|| {
        step(
            "Profile once more: Python has written its bytecode now",
            format!(
                "quell profile -o {}{shared} -- {}",
                context.relative(context.directory),
                context.command()
            ),
        )
    })
}

/// Returns the commands to index the trees.
fn index(config: &Config, context: &StepContext) -> Vec<NextStep> {
    let index = |tree: &TreeConfig| {
        let path = quoted(tree.path.as_os_str());
        step(
            format!("Index {}", tree.path.display()),
            format!("quell index {path} -o {}", context.beside_report(&tree.index)),
        )
    };
    config.trees.iter().take(INDEX_COMMANDS_MAX).map(index).collect()
}

/// Returns the command to run the program with the indexes.
fn run_with_index(config: &Config, context: &StepContext) -> Option<NextStep> {
    let command = || {
        format!("quell run --config {} -- {}", context.beside_report(Path::new(CONFIG)), context.command())
    };
    let purpose = || context.purpose("Run the program with the index");
    (!config.trees.is_empty()).then(|| step(purpose(), command()))
}

/// Returns the commands to record and use a boot image, if opens and reads are a large part of the
/// operations.
fn record(report: &Report, config: &Config, context: &StepContext) -> Vec<NextStep> {
    let remaining = &report.remaining;
    let absorbed = remaining.index.metadata.saturating_sub(remaining.boot.metadata);
    let is_useful = absorbed as f64 >= remaining.direct.metadata as f64 * BOOT_PART_MIN;
    let Some(tree) = config.trees.first().filter(|_| is_useful) else { return Vec::new() };
    let (index, command) = (context.beside_report(&tree.index), context.command());
    let image = context.beside_report(&tree.index.with_extension("boot"));
    vec![
        step(
            context.purpose("Record a boot image, which also absorbs opens and reads"),
            format!("quell record -i {index} -o {image} -- {command}"),
        ),
        step(
            context.purpose("Run the program with the boot image"),
            format!(
                "quell run --config {} -b {image} -- {command}",
                context.beside_report(Path::new(CONFIG))
            ),
        ),
    ]
}

/// Returns a command to mount a log mount for a file that several processes write.
fn log_mount(report: &Report, context: &StepContext) -> Option<NextStep> {
    let write = report.shared_writes.iter().find(|write| write.on_shared)?;
    let file = Path::new(&write.path);
    let directory = file.parent()?;
    let (store, mountpoint) = (directory.join("log-store"), directory.join("log-mount"));
    let [store, mountpoint] = [&store, &mountpoint].map(|path| context.relative(path));
    Some(step(
        format!(
            "On every node: mount a log mount, and write the file {} in it, because {} processes write it",
            file.file_name().unwrap_or_default().display(),
            write.writers
        ),
        format!("mkdir -p {store} {mountpoint} && quell mount --log {store} {mountpoint}"),
    ))
}

/// Returns a command to measure the capacity, if it is unknown.
fn probe(report: &Report, context: &StepContext) -> Option<NextStep> {
    let is_useful = report.metadata_rate.scenarios.direct.average > 0.0 && report.nodes.is_none();
    let proposed = report.trees.first().map(|tree| Path::new(&tree.path).parent().unwrap_or(Path::new("/")));
    let busiest = || report.path_tree.first().map(|node| Path::new(&node.path));
    let directory = proposed.or_else(busiest).filter(|_| is_useful)?;
    Some(step(
        "Measure the file system, then profile with --capacity FILE for numbers of nodes",
        format!(
            "quell probe {} -o {}",
            quoted(directory.as_os_str()),
            context.beside_report(Path::new("probe.json"))
        ),
    ))
}
