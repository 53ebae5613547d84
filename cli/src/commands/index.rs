//! `quell index`: builds or updates an index.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use quell_index::{BuildOptions, Image, Trust, Xattrs};
use quell_mount_spec::{INDEX, Output, Ownership, Trusted, TrustedUse, directory_of};
use quell_supervisor::{check_trust, load_index};
use quell_vfs::{ErrorKind, Time, errno};

use crate::arguments::{IndexArgs, Update, XattrsArg};
use crate::failure::{Failure, NO, YES};
use crate::images_beside::{ImageBeside, images_beside};
use crate::inputs::{
    InputFile, Reading, image_of, real_path, root_of, shown, shown_bytes, text_of, text_of_bytes,
};
use crate::output::{counted, errln, outln};

/// The build of the old index began at the modification time of its file. A directory that changed
/// less than this number of seconds before may have changed again within the same timestamp
/// granule. Some file systems have timestamps in steps of two seconds.
const CLOCK_TICK_SECONDS: i64 = 2;
/// Number of unreadable paths that are printed; the rest is only counted.
const PROBLEMS_SHOWN: u64 = 20;

/// A checked request to create or update an index.
struct IndexRequest {
    directory: PathBuf,
    root_path: PathBuf,
    output: PathBuf,
    options: BuildOptions,
    old: Option<Image>,
    /// With `--update=dirs`: a directory whose times are as indexed, and before this time, is not
    /// read again; its entries are taken from the old index.
    before: Option<Time>,
}

/// Where the result is printed. Paths that cannot be read are printed on standard error in any
/// case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryOutput {
    Stdout,
    /// On standard error, because standard output belongs to the program that is run.
    Stderr,
    None,
}

/// Creates or updates an index. `quiet`: shows no progress.
pub fn run(args: IndexArgs, quiet: bool, report: SummaryOutput) -> Result<ExitCode, Failure> {
    let task = match args.update {
        Some(update) => update_task(&args, update)?,
        None => new_task(&args)?,
    };
    refuse_within(&task.output, std::slice::from_ref(&task.directory))?;
    Output { path: &task.output, format: INDEX, force: args.force }.check()?;
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
    let image = Arc::new(image_of(&tree)?);
    let problems = image.problem_count();
    let unchanged = task.old.as_ref().is_some_and(|old| old.bytes() == image.bytes());
    let refused = args.strict && problems > 0;
    if !unchanged && !refused {
        let readers = quell_mount_spec::readers_of(&image, &task.directory);
        quell_mount_spec::save_index(&task.output, image.bytes(), readers, begun.elapsed(), args.force)?;
    }
    let outcome = match (unchanged, refused) {
        (_, true) => "refused",
        (true, _) => "unchanged",
        _ => "written",
    };
    let seconds = begun.elapsed().as_secs_f64();
    let boot_images = match &task.old {
        Some(old) if !refused => {
            images_beside(&task.output, image.clone(), &task.directory, old.generation())
        }
        _ => Vec::new(),
    };
    print_result(&args, &task, &image, &boot_images, (outcome, seconds), report);
    Ok(ExitCode::from(if problems > 0 { NO } else { YES }))
}

fn new_task(args: &IndexArgs) -> Result<IndexRequest, Failure> {
    let directory = real_path(&args.path)?;
    if !directory.is_dir() {
        return Err(Failure::wrong_input(format!("{} is not a directory", shown(&args.path))));
    }
    let output = match &args.output {
        Some(output) => output.clone(),
        None => default_path(&directory)?,
    };
    if output.is_dir() {
        return Err(Failure::wrong_input(format!("{} is a directory; -o names a file", shown(&output))));
    }
    // Checked now rather than after the tree was read.
    if let Some(parent) = output.parent().filter(|p| !p.as_os_str().is_empty())
        && !parent.is_dir()
    {
        let reason = match parent.exists() {
            true => "is not a directory",
            false => "does not exist: create it, or name another file with -o",
        };
        return Err(Failure::wrong_input(format!("{} {reason}", shown(parent))));
    }
    let xattrs = match args.xattrs {
        XattrsArg::Auto => Xattrs::Auto,
        XattrsArg::Always => Xattrs::Always,
        XattrsArg::Never => Xattrs::Never,
    };
    let options = BuildOptions { exclude: args.exclude.clone(), cross_mounts: args.cross_mounts, xattrs };
    Ok(IndexRequest { root_path: directory.clone(), directory, output, options, old: None, before: None })
}

/// Returns the default path of a directory's index, beside it. `directory` has no symbolic links.
/// There is no default path for the root directory. An index that does not exist yet has none in an
/// indexed tree either, because creating the file would change that tree.
pub fn default_path(directory: &Path) -> Result<PathBuf, Failure> {
    let wrong = |reason: String| Failure::wrong_input(format!("{reason}; name the index file with -o"));
    let path = quell_mount_spec::default_index_path(directory)
        .ok_or_else(|| wrong(format!("there is no directory beside {} for its index", shown(directory))))?;
    if path.exists() {
        return Ok(path);
    }
    for above in directory.ancestors().skip(1) {
        let Some(index) = quell_mount_spec::default_index_path(above).filter(|index| index.is_file()) else {
            continue;
        };
        if InputFile::open(&index).and_then(|index| index.index()).is_ok_and(|image| root_of(&image) == above)
        {
            return Err(wrong(format!(
                "{} would lie inside {}, the tree of {}, which writing it would change",
                shown(&path),
                shown(above),
                shown(&index)
            )));
        }
    }
    Ok(path)
}

/// Returns an error if `file` would be created in one of the trees. Paths of trees have no symbolic
/// links.
pub fn refuse_within(file: &Path, trees: &[PathBuf]) -> Result<(), Failure> {
    let Ok(parent) = directory_of(file).canonicalize() else { return Ok(()) };
    match trees.iter().find(|tree| parent.starts_with(tree)) {
        None => Ok(()),
        Some(tree) => Err(Failure::wrong_input(format!(
            "{} lies inside the tree {}, which writing it would change; name a file outside of the tree with -o",
            shown(file),
            shown(tree)
        ))),
    }
}

fn update_task(args: &IndexArgs, update: Update) -> Result<IndexRequest, Failure> {
    let named = InputFile::open(&args.path)?;
    let (file, directory_named) = match named.is_dir() {
        true => {
            let index = quell_mount_spec::default_index_path(&named.path).ok_or_else(|| {
                Failure::wrong_input("there is no index beside the root directory; name the index".to_owned())
            })?;
            (InputFile::open(&index)?, Some(named.path))
        }
        false => (named, None),
    };
    let InputFile { path: file, file: opened, .. } = file;
    if !args.exclude.is_empty()
        || args.cross_mounts
        || args.output.is_some()
        || args.xattrs != XattrsArg::Auto
    {
        return Err(Failure::wrong_input(
            "--update uses the options that the index was made with: run it without -o, --exclude, --cross-mounts and --xattrs",
        ));
    }
    let old = load_index(&opened, &file)?;
    let written = opened.metadata().map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(&file))))?;
    let before =
        Time { seconds: written.mtime() - CLOCK_TICK_SECONDS, nanoseconds: written.mtime_nsec() as u32 };
    let root_path = root_of(&old);
    let directory = match &args.source {
        Some(source) => real_path(source)?,
        None => root_path.clone(),
    };
    if !directory.is_dir() {
        return Err(Failure::wrong_input(format!(
            "{}, the tree of {}, does not exist here; name its present location with --source",
            shown(&directory),
            shown(&file)
        )));
    }
    if let Some(named) = directory_named.filter(|named| args.source.is_none() && *named != directory) {
        return Err(Failure::wrong_input(format!(
            "{} is an index of {}, not of {}",
            shown(&file),
            shown(&directory),
            shown(&named)
        )));
    }
    // The options of the old index, and with --update=dirs its entries, become part of an index
    // that belongs to the caller, so the old index must be trusted.
    let owner = std::fs::File::open(&directory)
        .map_err(|e| Failure::cannot(format!("{}: {e}", shown(&directory))))?;
    let owner = Ownership::read(&owner, &directory)?;
    let trusted = Trusted::by_caller(&args.trust_owner);
    check_trust(&trusted, &opened, &file, TrustedUse::Index, Some((&directory, &owner)))?;
    Ok(IndexRequest {
        directory,
        root_path,
        output: file,
        options: BuildOptions::from_image(&old)?,
        before: (update == Update::Dirs).then_some(before),
        old: Some(old),
    })
}

fn print_result(
    args: &IndexArgs,
    task: &IndexRequest,
    image: &Image,
    boot_images: &[ImageBeside],
    (outcome, seconds): (&str, f64),
    report: SummaryOutput,
) {
    let entries = image.entries();
    let bytes = image.file_bytes();
    if args.json {
        let problems: Vec<_> = image
            .problems()
            .map(|p| serde_json::json!({ "path": text_of_bytes(&p.path), "errno": p.errno, "error": reason(p.errno) }))
            .collect();
        let mut facts = serde_json::json!({
            "file": text_of(&task.output), "outcome": outcome, "generation": image.generation().to_string(),
            "entries": entries, "directories": image.directories(), "bytes": bytes,
            "bytes_per_entry": bytes as f64 / f64::from(entries), "seconds": seconds, "problems": problems,
        });
        if task.old.is_some() {
            facts["boot_images"] = boot_images.iter().map(ImageBeside::json).collect();
        }
        outln!("{facts}");
        return;
    }
    for problem in image.problems().take(PROBLEMS_SHOWN as usize) {
        let path = if problem.path.is_empty() { ".".into() } else { shown_bytes(&problem.path) };
        errln!("quell: could not read {path}: {}", reason(problem.errno));
    }
    if image.problem_count() > PROBLEMS_SHOWN {
        errln!(
            "quell: and {} more (quell show {})",
            image.problem_count() - PROBLEMS_SHOWN,
            shown(&task.output)
        );
    }
    if report == SummaryOutput::None {
        return;
    }
    let rate = f64::from(entries) / seconds.max(0.001);
    let line = format!(
        "{}: {outcome}, {} in {}, {bytes} bytes ({:.1} per entry), {seconds:.2} s ({rate:.0} entries/s)",
        shown(&task.output),
        counted(entries.into(), "entry", "entries"),
        counted(image.directories().into(), "directory", "directories"),
        bytes as f64 / f64::from(entries),
    );
    match report {
        SummaryOutput::Stderr => errln!("quell: {line}"),
        _ => outln!("{line}"),
    }
    boot_images.iter().for_each(ImageBeside::print);
}

/// Returns the message for an error number in the list of problems.
pub fn reason(errno: u32) -> String {
    match ErrorKind::from_errno(errno as i32) {
        ErrorKind::NotFound => "it was removed while the tree was read".into(),
        ErrorKind::Os(errno::EAGAIN) => {
            "it changed while it was read; index again when no program writes to it".into()
        }
        _ => std::io::Error::from_raw_os_error(errno as i32).to_string(),
    }
}
