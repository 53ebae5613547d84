//! `quell log export` and `import`. Source and destination are chosen here; the log layer copies
//! the files.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::HumanBytes;
use quell_log::{
    Choices, ExportSource, ImportSource, ResolvedPath, ToolProgress, TransferOptions, TransferResult,
};
use quell_mount_spec::directory_of;
use quell_posix::PosixDir;
use quell_vfs::{ErrorKind, Kind};
use serde_json::json;

use super::log_stores::{find, open_stores, stores_failure};
use crate::arguments::{LogExportArgs, LogImportArgs, TransferArgs};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{real_path, shown, shown_bytes, text_of_bytes};
use crate::output::{counted, errln, outln};
use crate::progress;

/// Number of failures that are printed; the rest is only counted.
const FAILURES_SHOWN: usize = 20;
const INTERRUPTED: &str =
    "every file that has its final name is complete; run the command again with --resume to continue";

pub fn export(args: &LogExportArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let stores = open_stores(&args.stores)?;
    let real_dest =
        if args.dest.is_dir() { real_path(&args.dest)? } else { real_path(&split(&args.dest)?.0)? };
    for store in args.stores.paths() {
        if real_dest.starts_with(real_path(&store)?) {
            let (dest, store) = (shown(&args.dest), shown(&store));
            return Err(Failure::wrong_input(format!(
                "{dest} lies in the store {store}; name a destination outside of it"
            )));
        }
    }
    let (source, into) = match find(&stores, &args.stores, &args.path)? {
        ResolvedPath::Dir(dir) => {
            create_empty_dir(&args.dest, args.transfer.resume)?;
            (ExportSource::Dir(dir), args.dest.clone())
        }
        ResolvedPath::Entry(dir, entry) => {
            let (parent, name) = match args.dest.is_dir() {
                true => (args.dest.clone(), entry.name.clone()),
                false => split(&args.dest)?,
            };
            (ExportSource::Entry(dir, entry, name), parent)
        }
    };
    let to = Arc::new(PosixDir::open(&into)?);
    let title = format!("exporting {}", shown(&args.path));
    let options = options(&args.transfer);
    let result = run_with_progress(&title, quiet || args.transfer.output.json, INTERRUPTED, |progress| {
        quell_log::export(source, to, options, progress)
    })?;
    Ok(report(&args.dest, "exported", &result, args.transfer.output.json, quiet))
}

/// Creates the destination directory of a tree, if it does not exist. An existing directory must be
/// empty, unless the command resumes.
fn create_empty_dir(dest: &Path, resume: bool) -> Result<(), Failure> {
    let failed = |cause: std::io::Error| Failure::wrong_input(format!("{}: {cause}", shown(dest)));
    match std::fs::create_dir(dest) {
        Ok(()) => Ok(()),
        Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
            let is_empty = std::fs::read_dir(dest).map_err(failed)?.next().is_none();
            match resume || is_empty {
                true => Ok(()),
                false => Err(Failure::wrong_input(format!(
                    "{} is not empty; name a new directory, or use --resume to continue an earlier export",
                    shown(dest)
                ))),
            }
        }
        Err(cause) => Err(failed(cause)),
    }
}

/// Splits a path into a directory and a name in it.
fn split(path: &Path) -> Result<(PathBuf, Vec<u8>), Failure> {
    let name = path.file_name().ok_or_else(|| {
        Failure::wrong_input(format!("{} does not end with the name of a file or directory", shown(path)))
    })?;
    Ok((directory_of(path).to_path_buf(), name.as_bytes().to_vec()))
}

pub fn import(args: &LogImportArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let source = real_path(&args.source)?;
    for store in args.stores.paths() {
        let store = real_path(&store)?;
        let nested = |inner: &str, outer: &str| {
            Failure::wrong_input(format!("{inner} lies in {outer}; name directories apart from each other"))
        };
        let (source_text, store_text) =
            (format!("the source {}", shown(&source)), format!("the store {}", shown(&store)));
        if source.starts_with(&store) {
            return Err(nested(&source_text, &store_text));
        }
        if store.starts_with(&source) {
            return Err(nested(&store_text, &source_text));
        }
    }
    let stores = quell_mount_spec::open_stores(&args.stores.paths());
    let stores = Arc::new(stores.map_err(|error| stores_failure(&args.stores, error))?);
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    let is_dir = source.is_dir();
    let (parent, name) = split(&source)?;
    let existing = match quell_log::find(&stores, path.as_os_str().as_bytes()) {
        Ok(ResolvedPath::Dir(_)) => Some(Kind::Dir),
        Ok(ResolvedPath::Entry(_, entry)) => Some(entry.kind),
        Err(error) if error.kind == ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let (from, import_source, into) = match existing {
        Some(Kind::Dir) if is_dir => (source, ImportSource::All, path.to_path_buf()),
        Some(Kind::Dir) => (parent, ImportSource::Entry(name.clone(), name), path.to_path_buf()),
        _ => {
            let (dir, target_name) = split(path)?;
            (parent, ImportSource::Entry(name, target_name), dir)
        }
    };
    if let ResolvedPath::Entry(..) = find(&stores, &args.stores, &into)? {
        return Err(Failure::wrong_input(format!("{} is not a directory of the store", shown(&into))));
    }
    let from = Arc::new(PosixDir::open(&from)?);
    let fs = quell_mount_spec::open_log(&args.stores.paths(), Choices::default())?;
    let title = format!("importing {}", shown(&args.source));
    let options = options(&args.transfer);
    let into = into.as_os_str().as_bytes();
    let result = run_with_progress(&title, quiet || args.transfer.output.json, INTERRUPTED, |progress| {
        quell_log::import(from, import_source, &fs, &stores, into, options, progress)
    })?;
    Ok(report(&args.stores.stores, "imported", &result, args.transfer.output.json, quiet))
}

fn options(args: &TransferArgs) -> TransferOptions {
    let owners = rustix::process::geteuid().is_root();
    TransferOptions { threads: args.threads.count.into(), resume: args.resume, verify: args.verify, owners }
}

/// Runs `work` with a progress line, until Ctrl-C. `interrupted` states what an interruption
/// leaves.
pub(super) fn run_with_progress<T: Send>(
    title: &str,
    quiet: bool,
    interrupted: &str,
    work: impl FnOnce(&ToolProgress) -> quell_vfs::Result<T> + Send,
) -> Result<T, Failure> {
    let progress = ToolProgress::default();
    Ok(progress::watch_files(title, &progress, quiet, interrupted, || work(&progress))??)
}

fn report(place: &Path, verb: &str, result: &TransferResult, json: bool, quiet: bool) -> ExitCode {
    match json {
        true => print_json(result),
        false => print_text(place, verb, result, quiet),
    }
    let is_complete = result.short.is_empty() && result.special.is_empty() && result.failed.is_empty();
    ExitCode::from(if is_complete { YES } else { NO })
}

fn print_json(result: &TransferResult) {
    let TransferResult { files, bytes, dirs, links, skipped, being_written, short, special, failed } = result;
    let paths = |paths: &[Vec<u8>]| paths.iter().map(|path| text_of_bytes(path)).collect::<Vec<_>>();
    let failed: Vec<_> = (failed.iter())
        .map(|(path, error)| json!({ "path": text_of_bytes(path), "error": error.to_string() }))
        .collect();
    outln!(
        "{}",
        json!({ "files": files, "bytes": bytes, "directories": dirs, "links": links, "skipped": skipped,
            "being_written": paths(being_written), "short": paths(short), "special": paths(special),
            "failed": failed })
    );
}

fn print_text(place: &Path, verb: &str, result: &TransferResult, quiet: bool) {
    let TransferResult { files, bytes, dirs, links, skipped, being_written, short, special, failed } = result;
    for path in being_written {
        errln!("quell: {} is being written; the copy has its published content", shown_bytes(path));
    }
    for path in short {
        errln!(
            "quell: {}: the end of a log is lost, and the copy has the previous content of that range; see `quell log fsck`",
            shown_bytes(path)
        );
    }
    for path in special {
        errln!("quell: {} is not a file, directory or symbolic link; it was not copied", shown_bytes(path));
    }
    for (path, error) in failed.iter().take(FAILURES_SHOWN) {
        errln!("quell: {}: {error}", shown_bytes(path));
    }
    if failed.len() > FAILURES_SHOWN {
        let more = (failed.len() - FAILURES_SHOWN) as u64;
        errln!("quell: {} not listed", counted(more, "more failure is", "more failures are"));
    }
    if failed.iter().any(|(_, error)| error.kind == ErrorKind::Exists) {
        errln!(
            "quell: existing files are not replaced: name another destination, or use --resume to replace them"
        );
    }
    if !quiet {
        outln!(
            "{}: {verb} {}, {}, {}, {}; {skipped} skipped, {} failed",
            shown(place),
            counted(*files, "file", "files"),
            HumanBytes(*bytes),
            counted(*dirs, "directory", "directories"),
            counted(*links, "link", "links"),
            failed.len()
        );
    }
}
