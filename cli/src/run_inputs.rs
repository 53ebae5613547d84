//! The inputs of `quell run`: its job, indexes and boot images.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_supervisor::{
    BootPlan, RecordingPlan, TreePlan, Waiting, current_job, is_first_notice, runtime_directory,
};

use crate::arguments::RunArgs;
use crate::config::Config;
use crate::failure::Failure;
use crate::indexes::{Creation, RequestedIndex, open_indexes};
use crate::inputs::{InputFile, real_path};
use crate::output::errln;

/// Returns the identifier of the job: the name given with `--share`, or the parallel job of this
/// process. Runs with the same identifier share a view.
pub fn job_of(args: &RunArgs) -> Option<String> {
    args.share.as_ref().map(|name| format!("share={name}")).or_else(current_job)
}

/// Prints a message once for all ranks of a job on a node.
pub fn print_once(args: &RunArgs, message: &str) {
    if is_first_notice(runtime_directory().ok().as_deref(), job_of(args).as_deref(), message) {
        errln!("quell: {message}");
    }
}

/// Returns the watchdog for a file system that may not answer. Messages are printed once for all
/// ranks of a job on a node, and with `quiet` only if they are errors.
pub fn waiting_of(args: &RunArgs, quiet: bool) -> Waiting {
    let job = job_of(args);
    Waiting::of_command(args.cover.answer_timeout.map(Duration::from_secs), quiet, move |message| {
        if is_first_notice(runtime_directory().ok().as_deref(), job.as_deref(), message) {
            errln!("quell: {message}");
        }
    })
}

/// Opens the indexes, and creates missing ones of directories.
pub fn tree_plans(
    args: &RunArgs,
    quiet: bool,
    files: &mut Vec<InputFile>,
    waiting: &Waiting,
) -> Result<Vec<TreePlan>, Failure> {
    let cover = &args.cover;
    let resolve = |path: &Path| waiting.watch(path, || real_path(path));
    let absolute = |path: &Option<PathBuf>| path.as_deref().map(resolve).transpose();
    let mut indexes = Vec::new();
    if let Some(file) = &args.config {
        for tree in waiting.watch(file, || Config::read_trees(file, &cover.trust_owner))? {
            let path = resolve(&tree.path).unwrap_or(tree.path);
            indexes.push(RequestedIndex::Tree { path, index: tree.index });
        }
    }
    for path in &args.index {
        indexes.push(waiting.watch(path, || RequestedIndex::open(path))?);
    }
    let creation = Creation { is_reported: cover.verbose, quiet };
    let mut trees = Vec::new();
    for (index, directory) in open_indexes(indexes, creation)? {
        let (source, at) = (absolute(&cover.source)?, absolute(&cover.at)?);
        let named = directory.filter(|_| source.is_none() && at.is_none());
        trees.push(TreePlan { index: index.path.clone(), source, at, named });
        files.push(index);
    }
    Ok(trees)
}

/// Opens the boot images, or parses the recording that `quell record` requests.
pub fn boot_plan(args: &RunArgs, files: &mut Vec<InputFile>, waiting: &Waiting) -> Result<BootPlan, Failure> {
    if let Some(text) = &args.recording {
        if !args.boot.boot.is_empty() {
            return Err(Failure::wrong_input("--recording cannot be used with -b"));
        }
        let recording: RecordingPlan =
            serde_json::from_str(text).map_err(|e| Failure::wrong_input(format!("--recording: {e}")))?;
        return Ok(BootPlan::Record(recording));
    }
    let mut images = Vec::new();
    // A missing boot image does not prevent the run, unless --strict is given.
    for path in &args.boot.boot {
        match waiting.watch(path, || InputFile::open(path)) {
            Ok(file) => {
                images.push(file.path.clone());
                files.push(file);
            }
            Err(failure) if args.cover.strict => return Err(failure),
            Err(failure) => print_once(args, &format!("{failure}; nothing is served from memory")),
        }
    }
    Ok(BootPlan::Serve { images, budget_mib: args.boot.budget })
}
