//! `quell record`: runs a program in a recording view, and waits for the boot image; or writes a
//! boot image of selected files.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use indicatif::HumanBytes;
use quell_mount_spec::{Trusted, directory_of};
use quell_supervisor::{
    Fifo, FileSelection, ImagePlan, OutputCopy, RecordingPlan, RecordingResult, SelectedFiles, StopCondition,
    check_disk_image, wait_for_recording,
};
use rustix::fs::Access;
use serde_json::json;

use crate::arguments::RecordArgs;
use crate::failure::Failure;
use crate::indexes::{Creation, index_of};
use crate::inputs::{InputFile, real_path, shown};
use crate::output::{counted, errln, outln};
use crate::{progress, tracer};

pub fn run(args: RecordArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let creation = Creation { is_reported: !quiet, quiet };
    let index = args.index.as_ref().map(|index| index_of(index, creation)).transpose()?;
    if let Some(image) = &args.image {
        check_disk_image(image, args.image_format.image_format.map(Into::into), &args.trust_owner)?;
    }
    quell_mount_spec::LockedBootFile::check(&args.output, args.force)?;
    let output = output_of(&args.output)?;
    if is_selection(&args) {
        let index = index.ok_or_else(|| {
            Failure::wrong_input("--small, --pattern and --changed need an index: name it with -i")
        })?;
        return record_files(&args, &index, output, quiet);
    }
    // `quell run` gets the directory that the user named, so that it checks that the index is of
    // this directory.
    let index =
        index.map(|(file, directory)| directory.filter(|_| args.source.is_none()).unwrap_or(file.path));
    let interrupted = progress::interruption();
    let pipe = Fifo::create("record")?;
    let copy = match &args.until {
        Some(StopCondition::Line(_)) => Some(OutputCopy::new(std::io::stdout(), std::io::stderr())?),
        _ => None,
    };
    let recording = RecordingPlan {
        image: image_plan(&args, output.clone()),
        pipe: pipe.path.clone(),
        outputs: copy.as_ref().map(OutputCopy::paths),
    };
    let child = recording_run(&args, &recording, index.as_deref(), quiet)?
        .spawn()
        .map_err(|e| Failure::cannot(format!("cannot start the program: {e}")))?;
    let notice = |message: &str| errln!("quell: {message}");
    let end = wait_for_recording(child, &pipe, args.until.as_ref(), copy, &interrupted, &notice)?;
    let code = tracer::code_of(end.status);
    if !end.started {
        // `quell run` has printed the reason.
        return Ok(ExitCode::from(code));
    }
    let result = end.result.ok_or_else(|| {
        Failure::cannot("the recording process ended without a result, and no boot image was written; run the command again with --log-file FILE to see why")
    })?;
    if let Some(failure) = result.failure {
        let failure = Failure::cannot(format!("nothing was recorded: {failure}"));
        if result.files > 0 || end.status.success() {
            return Err(failure);
        }
        // If the program could not start, or failed at once, its own exit code is more informative.
        errln!("quell: {failure}");
        return Ok(ExitCode::from(code));
    }
    if !quiet && let (Some(until), false) = (&args.until, end.was_stopped) {
        let condition = match until {
            StopCondition::Time(time) => format!("{} s had passed", time.as_secs_f64()),
            StopCondition::Line(pattern) => format!("a line matched '{pattern}'"),
        };
        errln!("quell: the program ended before {condition}; all of it is recorded");
    }
    print_result(&args, &output, &result, quiet)?;
    Ok(ExitCode::from(code))
}

/// Returns whether options select the files of the image, so that no program is run.
fn is_selection(args: &RecordArgs) -> bool {
    args.small.is_some() || !args.pattern.is_empty() || args.changed
}

fn image_plan(args: &RecordArgs, output: PathBuf) -> ImagePlan {
    ImagePlan {
        output,
        merge: args.merge,
        update: args.update,
        refresh: args.changed,
        force: args.force,
        min_runs: args.min_runs,
        whole: args.whole,
        // Selected files are whole. Other files of an image that is updated keep their blocks.
        exact: args.exact || is_selection(args) && !args.update,
        budget_mib: args.budget,
    }
}

/// Writes an image of selected files. `index`: the index, and the directory that the user named.
fn record_files(
    args: &RecordArgs,
    index: &(InputFile, Option<PathBuf>),
    output: PathBuf,
    quiet: bool,
) -> Result<ExitCode, Failure> {
    let (index, directory) = index;
    let source = args.source.as_deref().map(real_path).transpose()?;
    let named = directory.as_deref().filter(|_| source.is_none());
    let plan = image_plan(args, output.clone());
    let selection = FileSelection {
        size_bytes_max: args.small,
        patterns: args.pattern.clone(),
        blocks_max: plan.blocks_max(),
    };
    if args.changed && !output.exists() {
        return Err(Failure::wrong_input(format!(
            "{} does not exist: --changed completes an image",
            shown(&output)
        )));
    }
    let trusted = Trusted::by_caller(&args.trust_owner);
    let files = SelectedFiles::of_index(index, source.as_deref(), named, trusted, &selection)?;
    let memory = files.memory();
    if args.dry_run && args.json {
        outln!(
            "{}",
            json!({ "files": files.files(), "blocks_bytes": files.blocks_bytes(),
                "memory_bytes": memory.memory_bytes, "ranges_bytes": memory.ranges_bytes })
        );
    } else if args.dry_run || !selection.is_empty() && !quiet && !args.json {
        let text = format!(
            "{} with {} of blocks; quell run -b takes {} of memory for them, or {} if they do not fit its --budget",
            counted(files.files(), "file", "files"),
            HumanBytes(files.blocks_bytes()),
            HumanBytes(memory.memory_bytes),
            HumanBytes(memory.ranges_bytes)
        );
        if args.dry_run { outln!("{text}") } else { errln!("quell: {text}") }
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    let print = |message: &str| errln!("quell: {message}");
    let result = files.write_image(&plan, &progress::interruption, &print)?;
    print_result(args, &output, &result, quiet)?;
    let is_complete = result.changed_files + result.unreadable_blocks == 0;
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the command that runs the program in a recording view.
fn recording_run(
    args: &RecordArgs,
    recording: &RecordingPlan,
    index: Option<&Path>,
    quiet: bool,
) -> Result<Command, Failure> {
    let text = serde_json::to_string(recording).map_err(|e| Failure::cannot(e.to_string()))?;
    let mut command = Command::new("/proc/self/exe");
    // Opens and reads must be visible to Quell, so only the FUSE view can be used.
    command.args(["run", "--strict", "--view", "fuse", "--recording", &text]);
    if let Some(index) = index {
        command.arg("-i").arg(index);
    }
    if let Some(image) = &args.image {
        command.arg("--image").arg(image);
        command.args(args.image_format.words());
    }
    if let Some(source) = &args.source {
        command.arg("--source").arg(source);
    }
    for user in &args.trust_owner {
        command.arg("--trust-owner").arg(user.to_string());
    }
    if quiet {
        command.arg("--quiet");
    }
    command.arg("--").args(&args.command);
    Ok(command)
}

fn print_result(
    args: &RecordArgs,
    output: &Path,
    result: &RecordingResult,
    quiet: bool,
) -> Result<(), Failure> {
    if args.json {
        outln!("{}", serde_json::to_string(result).map_err(|e| Failure::cannot(e.to_string()))?);
    }
    if args.json || quiet {
        return Ok(());
    }
    let bytes = |blocks: u64| HumanBytes(blocks * quell_boot::BLOCK_BYTES as u64);
    let this_one = match result.added_blocks {
        Some(added) => format!("{} added", bytes(added)),
        None => format!("{} read in this one", bytes(result.blocks)),
    };
    let unread = match result.unread_blocks {
        0 => String::new(),
        blocks => format!(" and {} of unread blocks", bytes(blocks)),
    };
    errln!(
        "quell: {}: {} of {}{unread} in {}, {} ({this_one})",
        shown(output),
        bytes(result.image_contents),
        counted(result.image_files, "file", "files"),
        HumanBytes(result.image_bytes),
        counted(result.recordings.into(), "recording", "recordings"),
    );
    Ok(())
}

/// Returns the absolute path of the image to write. Errors are reported now rather than after a
/// long run.
fn output_of(path: &Path) -> Result<PathBuf, Failure> {
    let parent = crate::inputs::real_path(directory_of(path))?;
    let name = path.file_name();
    let name = name.ok_or_else(|| Failure::wrong_input(format!("{} names no file", shown(path))))?;
    let output = parent.join(name);
    if output.is_dir() {
        return Err(Failure::wrong_input(format!("{} is a directory; -o names a file", shown(&output))));
    }
    rustix::fs::access(&parent, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| {
        Failure::cannot(format!(
            "cannot create the image in {}: {e}; name another file with -o",
            shown(&parent)
        ))
    })?;
    Ok(output)
}
