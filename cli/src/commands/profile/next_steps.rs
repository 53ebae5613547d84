//! The commands that a user of `quell profile` runs next. Each command is complete and stands
//! alone, so that it can be pasted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use quell_profile::{NextStep, Remaining, Report, Scenarios, Tree};

use crate::arguments::ProfileArgs;
use crate::commands::profile::report_directory::CONFIG;
use crate::config::{Config, TreeConfig};
use crate::inputs::shown;

/// Boot images are proposed if they absorb at least this part of the operations in addition to the
/// indexes.
const BOOT_PART_MIN: f64 = 0.05;
/// The boot image of a tree is proposed only if it absorbs at least this number of operations,
/// because it is recorded in a run of its own, and loaded at each start.
const IMAGE_OPERATIONS_MIN: u64 = 32;
/// Small files are packed without a program if the program opens at least this number of them in a
/// tree, and they are at least this part of the files that it opens there.
const SMALL_FILES_MIN: u64 = 100;
const SMALL_FILES_PART_MIN: f64 = 0.5;
/// A run without the comparison of the whole tree is proposed if the comparison takes at least this
/// part of the other operations that remain.
const CHECK_PART_MIN: f64 = 0.5;
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
    let images = images(report, config);
    steps.extend(record(&images, &context));
    steps.extend(run_with_images(&images, &context));
    steps.extend(run_without_check(report, config, &images, &context));
    steps.extend(small_files(report, config, &images, &context));
    steps.extend(run_with_index(report, config, &images, &context));
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
    /// Returns a path for a command line, relative to the current directory if it is below it. No
    /// command takes it for an option.
    fn relative(&self, path: &Path) -> String {
        argument(path.strip_prefix(&self.here).unwrap_or(path))
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

    /// Returns the command that runs the program with the indexes, these further options, and these
    /// boot images.
    fn run(&self, options: &str, images: &[PathBuf]) -> String {
        let config = self.beside_report(Path::new(CONFIG));
        let images: String =
            images.iter().map(|image| format!(" -b {}", self.beside_report(image))).collect();
        format!("quell run{options} --config {config}{images} -- {}", self.command())
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

/// Returns a path as an argument that no command takes for an option.
fn argument(path: &Path) -> String {
    match path.as_os_str().as_bytes().starts_with(b"-") {
        true => quoted(Path::new(".").join(path).as_os_str()),
        false => quoted(path.as_os_str()),
    }
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
    config.trees.iter().map(index).collect()
}

/// Returns the command to run the program with the indexes alone, unless there are boot images and
/// the comparison of the trees takes as many operations as the indexes absorb.
fn run_with_index(
    report: &Report,
    config: &Config,
    images: &[&TreeConfig],
    context: &StepContext,
) -> Option<NextStep> {
    let remaining = &report.remaining;
    let absorbs = remaining.index.metadata + report.check_operations() < remaining.direct.metadata;
    let purpose = || context.purpose("Run the program with the index");
    (!config.trees.is_empty() && (absorbs || images.is_empty()))
        .then(|| step(purpose(), context.run("", &[])))
}

/// Returns the trees for which boot images are proposed.
fn images<'a>(report: &Report, config: &'a Config) -> Vec<&'a TreeConfig> {
    let absorbed =
        |remaining: &Scenarios<Remaining>| remaining.index.metadata.saturating_sub(remaining.boot.metadata);
    let part_min = report.remaining.direct.metadata as f64 * BOOT_PART_MIN;
    let are_useful = absorbed(&report.remaining) as f64 >= part_min;
    let trees = report.trees.iter().zip(&config.trees);
    let useful = trees.filter(|(tree, _)| are_useful && absorbed(&tree.remaining) >= IMAGE_OPERATIONS_MIN);
    useful.map(|(_, tree)| tree).collect()
}

/// Returns the name of the boot image of a tree.
fn image_of(tree: &TreeConfig) -> PathBuf {
    tree.index.with_extension("boot")
}

/// Returns the name of the image of the small files of a tree, which differs from the name of every
/// boot image of another tree.
fn packed_image_of(tree: &TreeConfig, config: &Config) -> PathBuf {
    let name = tree.index.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let names =
        (1..).map(|n| if n == 1 { format!("{name}-small.boot") } else { format!("{name}-small.{n}.boot") });
    let is_free = |image: &PathBuf| config.trees.iter().all(|other| image_of(other) != *image);
    names.map(PathBuf::from).find(is_free).expect("there is a next number")
}

/// Returns the commands to record the boot images, each in a run of the program.
fn record(images: &[&TreeConfig], context: &StepContext) -> Vec<NextStep> {
    let record = |tree: &&TreeConfig| {
        let (index, image) = (context.beside_report(&tree.index), context.beside_report(&image_of(tree)));
        let name = match images.len() {
            1 => "a boot image, which also absorbs opens and reads".to_owned(),
            _ => format!("a boot image of {}, which also absorbs opens and reads", tree.path.display()),
        };
        let command = format!("quell record -i {index} -o {image} -- {}", context.command());
        step(context.purpose(&format!("Record {name}")), command)
    };
    images.iter().map(record).collect()
}

/// Returns the command to run the program with the boot images.
fn run_with_images(images: &[&TreeConfig], context: &StepContext) -> Option<NextStep> {
    let paths: Vec<PathBuf> = images.iter().map(|tree| image_of(tree)).collect();
    let purpose = match images.len() {
        0 => return None,
        1 => "Run the program with the boot image",
        _ => "Run the program with the boot images",
    };
    Some(step(context.purpose(purpose), context.run("", &paths)))
}

/// Returns the commands to compare the trees once before many starts, and to start the program
/// without the comparison, if the user may write to the trees and the comparison takes a large part
/// of the operations.
fn run_without_check(
    report: &Report,
    config: &Config,
    images: &[&TreeConfig],
    context: &StepContext,
) -> Vec<NextStep> {
    let remaining = if images.is_empty() { report.remaining.index } else { report.remaining.boot };
    let part_min = remaining.metadata as f64 * CHECK_PART_MIN;
    if report.check_operations() == 0 || (report.check_operations() as f64) < part_min {
        return Vec::new();
    }
    let own = report.trees.iter().zip(&config.trees).filter(|(tree, _)| tree.check.is_some());
    let verify: Vec<String> =
        own.map(|(_, tree)| format!("quell verify {}", context.beside_report(&tree.index))).collect();
    let paths: Vec<PathBuf> = images.iter().map(|tree| image_of(tree)).collect();
    vec![
        step("Before many starts: compare your own tree with its index once", verify.join(" && ")),
        step(
            context.purpose("Then start the program without comparing the whole tree at each start"),
            context.run(" --check sample", &paths),
        ),
    ]
}

/// Returns the commands to pack all small files of the tree in which the program opens the most of
/// them, if they are a large part of the opened files: other runs open other files of it.
fn small_files(
    report: &Report,
    config: &Config,
    images: &[&TreeConfig],
    context: &StepContext,
) -> Vec<NextStep> {
    let dominate = |tree: &Tree| {
        tree.small_files_opened >= SMALL_FILES_MIN
            && tree.small_files_opened as f64 >= tree.files_opened as f64 * SMALL_FILES_PART_MIN
    };
    let trees = report.trees.iter().zip(&config.trees);
    let most = trees.filter(|(tree, _)| dominate(tree)).max_by_key(|(tree, _)| tree.small_files_opened);
    let Some((_, tree)) = most else { return Vec::new() };
    let packed = packed_image_of(tree, config);
    let others = images.iter().filter(|other| other.index != tree.index).map(|other| image_of(other));
    let paths: Vec<PathBuf> = std::iter::once(packed.clone()).chain(others).collect();
    vec![
        step(
            format!(
                "Or, if each run opens other files: pack all files of up to 16 KiB of {}",
                tree.path.display()
            ),
            format!(
                "quell record --small 16K -i {} -o {}",
                context.beside_report(&tree.index),
                context.beside_report(&packed)
            ),
        ),
        step(context.purpose("Run the program with the packed files"), context.run("", &paths)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_small_files_has_a_name_of_its_own() {
        let tree = |index: &str| TreeConfig { path: "/m/tree".into(), index: index.into() };
        let indexes = ["app.quell", "app-small.quell", "lib.quell"];
        let config = Config { trees: indexes.map(tree).to_vec(), logs: Vec::new() };
        let packed = |n: usize| packed_image_of(&config.trees[n], &config);
        assert_eq!(packed(0), Path::new("app-small.2.boot"));
        assert_eq!(packed(2), Path::new("lib-small.boot"));
    }

    #[test]
    fn a_path_is_never_an_option() {
        assert_eq!(argument(Path::new("-x.quell")), "./-x.quell");
        assert_eq!(argument(Path::new("a/-x.quell")), "a/-x.quell");
    }
}
