//! `quell index`: builds or updates an index.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use quell_fs::{ErrorKind, Time, errno};
use quell_index::{BuildOptions, Image, Trust, Xattrs};

use crate::arguments::{IndexArgs, Update, XattrsArg};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{Reading, image_of, real_path, root_of, shown, shown_bytes};

/// A directory that changed this shortly before the old index was written may have changed again within
/// the same tick of its file system's clock; some tick only every two seconds.
const CLOCK_TICK_SECONDS: i64 = 2;
/// Paths that could not be read, printed before the rest is only counted.
const PROBLEMS_SHOWN: u64 = 20;

/// What is to be done, after looking at what was named.
struct Task {
    directory: PathBuf,
    root_path: PathBuf,
    output: PathBuf,
    options: BuildOptions,
    old: Option<Image>,
    /// What of the old index may be trusted.
    before: Option<Time>,
}

/// Where the result is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// On standard output.
    Result,
    /// On standard error: the output is another program's.
    Aside,
}

pub fn run(args: IndexArgs, quiet: bool, voice: Voice) -> Result<ExitCode, Failure> {
    let task = match args.update {
        Some(how) => update_task(&args, how)?,
        None => new_task(&args)?,
    };
    if task
        .output
        .parent()
        .and_then(|p| p.canonicalize().ok())
        .is_some_and(|p| p.starts_with(&task.directory))
    {
        return Err(Failure::wrong_input(format!(
            "{} would lie inside the tree, and change it by being written; choose another place with -o",
            shown(&task.output)
        )));
    }
    let begun = Instant::now();
    let expected = task.old.as_ref().map(|old| u64::from(old.entries()));
    let trust = match (&task.old, task.before) {
        (Some(image), Some(before)) => Some(Trust { image, before }),
        _ => None,
    };
    let tree = Reading {
        directory: &task.directory,
        root_path: &task.root_path,
        options: &task.options,
        threads: args.threads,
        trust,
        expected,
        quiet: quiet || args.json,
    }
    .read()?;
    let image = image_of(&tree)?;
    let problems = image.problem_count();
    let unchanged = task.old.as_ref().is_some_and(|old| old.bytes() == image.bytes());
    let refused = args.strict && problems > 0;
    if !unchanged && !refused {
        let readers = quell_stack::readers_of(&image, &task.directory);
        quell_stack::save_index(&task.output, image.bytes(), readers)?;
    }
    let outcome = match (unchanged, refused) {
        (_, true) => "refused",
        (true, _) => "unchanged",
        _ => "written",
    };
    report(&args, &task, &image, outcome, begun.elapsed().as_secs_f64(), quiet, voice);
    Ok(ExitCode::from(if problems > 0 { NO } else { YES }))
}

fn new_task(args: &IndexArgs) -> Result<Task, Failure> {
    let directory = real_path(&args.path)?;
    if !directory.is_dir() {
        return Err(Failure::wrong_input(format!("{} is not a directory", shown(&args.path))));
    }
    let output = args
        .output
        .clone()
        .unwrap_or_else(|| quell_stack::default_index_path(&named(&args.path, &directory)));
    if output.is_dir() {
        return Err(Failure::wrong_input(format!("{} is a directory; -o names a file", shown(&output))));
    }
    // Said now, not after the tree was read.
    if let Some(parent) = output.parent().filter(|p| !p.as_os_str().is_empty())
        && !parent.is_dir()
    {
        return Err(Failure::wrong_input(format!("{} is not a directory", shown(parent))));
    }
    let xattrs = match args.xattrs {
        XattrsArg::Auto => Xattrs::Auto,
        XattrsArg::Always => Xattrs::Always,
        XattrsArg::Never => Xattrs::Never,
    };
    let options = BuildOptions { exclude: args.exclude.clone(), cross_mounts: args.cross_mounts, xattrs };
    Ok(Task { root_path: directory.clone(), directory, output, options, old: None, before: None })
}

/// The name to put `.quell` behind: what the user wrote, unless that names nothing (`.`, `..`, `/`).
fn named(path: &Path, real: &Path) -> PathBuf {
    match path.components().next_back() {
        Some(std::path::Component::Normal(_)) => path.into(),
        _ => real.into(),
    }
}

fn update_task(args: &IndexArgs, how: Update) -> Result<Task, Failure> {
    let file = match args.path.is_dir() {
        true => quell_stack::default_index_path(&args.path),
        false => args.path.clone(),
    };
    if !args.exclude.is_empty()
        || args.cross_mounts
        || args.output.is_some()
        || args.xattrs != XattrsArg::Auto
    {
        return Err(Failure::wrong_input("an update follows the options that the index was made with"));
    }
    let old = quell_stack::load_index(&file)?;
    let written =
        std::fs::metadata(&file).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(&file))))?;
    let before =
        Time { seconds: written.mtime() - CLOCK_TICK_SECONDS, nanoseconds: written.mtime_nsec() as u32 };
    let root_path = root_of(&old);
    let directory = match &args.source {
        Some(source) => real_path(source)?,
        None => root_path.clone(),
    };
    if !directory.is_dir() {
        return Err(Failure::wrong_input(format!(
            "{}, which {} describes, is not here; --source says where it lies now",
            shown(&directory),
            shown(&file)
        )));
    }
    Ok(Task {
        directory,
        root_path,
        output: file,
        options: BuildOptions::of(&old)?,
        before: (how == Update::Dirs).then_some(before),
        old: Some(old),
    })
}

fn report(
    args: &IndexArgs,
    task: &Task,
    image: &Image,
    outcome: &str,
    seconds: f64,
    quiet: bool,
    voice: Voice,
) {
    let entries = image.entries();
    let bytes = image.file_bytes();
    if args.json {
        let problems: Vec<_> = image
            .problems()
            .map(|p| serde_json::json!({ "path": shown_bytes(&p.path), "errno": p.errno, "error": reason(p.errno) }))
            .collect();
        let facts = serde_json::json!({
            "file": shown(&task.output), "outcome": outcome, "generation": image.generation().to_string(),
            "entries": entries, "directories": image.directories(), "bytes": bytes,
            "bytes_per_entry": bytes as f64 / f64::from(entries), "seconds": seconds, "problems": problems,
        });
        println!("{facts}");
        return;
    }
    for problem in image.problems().take(PROBLEMS_SHOWN as usize) {
        let path = if problem.path.is_empty() { ".".into() } else { shown_bytes(&problem.path) };
        eprintln!("quell: could not read {path}: {}", reason(problem.errno));
    }
    if image.problem_count() > PROBLEMS_SHOWN {
        eprintln!(
            "quell: and {} more (quell show {})",
            image.problem_count() - PROBLEMS_SHOWN,
            shown(&task.output)
        );
    }
    if quiet {
        return;
    }
    let rate = f64::from(entries) / seconds.max(0.001);
    let line = format!(
        "{}: {outcome}, {entries} entries in {} directories, {bytes} bytes ({:.1} an entry), {seconds:.2} s ({rate:.0} entries/s)",
        shown(&task.output),
        image.directories(),
        bytes as f64 / f64::from(entries),
    );
    match voice {
        Voice::Result => println!("{line}"),
        Voice::Aside => eprintln!("quell: {line}"),
    }
}

/// What an error number in the list of problems means here.
pub fn reason(errno: u32) -> String {
    match ErrorKind::from_errno(errno as i32) {
        ErrorKind::NotFound => "it vanished while the tree was read".into(),
        ErrorKind::Os(errno::EAGAIN) => "it kept changing while it was read".into(),
        _ => std::io::Error::from_raw_os_error(errno as i32).to_string(),
    }
}
