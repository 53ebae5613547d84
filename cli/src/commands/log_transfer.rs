//! `quell log export` and `import`. Source and destination are chosen here; the log layer copies
//! the files.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::HumanBytes;
use quell_log::{Choices, Found, How, Moved, Offered, Tally, Wanted};
use quell_posix::PosixDir;
use quell_vfs::{ErrorKind, Kind};
use serde_json::json;

use super::log_list::{find, of_stores, open};
use crate::arguments::{LogExportArgs, LogImportArgs, MoveArgs};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{real_path, shown, shown_bytes, text_of_bytes};
use crate::output::{errln, outln};
use crate::progress;

/// Number of failures that are printed; the rest is only counted.
const FAILURES_SHOWN: usize = 20;

/// The message after an interruption.
const WHOLE: &str = "what has its name is whole; --resume goes on";

pub fn export(args: &LogExportArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let stores = open(&args.stores)?;
    let place = if args.dest.is_dir() { real_path(&args.dest)? } else { real_path(&apart(&args.dest)?.0)? };
    for store in args.stores.paths() {
        if place.starts_with(real_path(&store)?) {
            return Err(Failure::wrong_input(format!("{} lies in the store", shown(&args.dest))));
        }
    }
    let (wanted, into) = match find(&stores, &args.path)? {
        Found::Dir(dir) => (Wanted::Dir(dir), made(&args.dest, args.how.resume)?),
        Found::Entry(dir, entry) => {
            let (parent, name) = match args.dest.is_dir() {
                true => (args.dest.clone(), entry.name.clone()),
                false => apart(&args.dest)?,
            };
            (Wanted::Entry(dir, entry, name), parent)
        }
    };
    let to = Arc::new(PosixDir::open(&into)?);
    let how = how(&args.how);
    let moved =
        watched(&format!("exporting {}", shown(&args.path)), quiet || args.how.json, WHOLE, |tally| {
            quell_log::export(wanted, to, how, tally)
        })?;
    Ok(report(&args.dest, "written", &moved, args.how.json, quiet))
}

/// Returns the destination directory of a tree, created if necessary. An existing directory must be
/// empty, unless the command resumes.
fn made(dest: &Path, resume: bool) -> Result<PathBuf, Failure> {
    let failed = |cause: std::io::Error| Failure::wrong_input(format!("{}: {cause}", shown(dest)));
    match std::fs::create_dir(dest) {
        Ok(()) => {}
        Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
            let is_empty = std::fs::read_dir(dest).map_err(failed)?.next().is_none();
            if !resume && !is_empty {
                return Err(Failure::wrong_input(format!(
                    "{} is not empty; --resume goes on with an earlier export",
                    shown(dest)
                )));
            }
        }
        Err(cause) => return Err(failed(cause)),
    }
    Ok(dest.to_path_buf())
}

/// Splits a path into a directory and a name in it.
fn apart(path: &Path) -> Result<(PathBuf, Vec<u8>), Failure> {
    let name = path.file_name();
    let name = name.ok_or_else(|| Failure::wrong_input(format!("{} has no name", shown(path))))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((parent.to_path_buf(), name.as_bytes().to_vec()))
}

pub fn import(args: &LogImportArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let source = real_path(&args.source)?;
    for store in args.stores.paths() {
        let store = real_path(&store)?;
        if source.starts_with(&store) || store.starts_with(&source) {
            return Err(Failure::wrong_input(format!(
                "{} and the store {} lie in each other",
                shown(&source),
                shown(&store)
            )));
        }
    }
    let stores = quell_mount_spec::open_stores(&args.stores.paths());
    let stores = Arc::new(stores.map_err(|error| of_stores(&args.stores, error))?);
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    let is_dir = source.is_dir();
    let (parent, name) = apart(&source)?;
    let there = match quell_log::find(&stores, path.as_os_str().as_bytes()) {
        Ok(Found::Dir(_)) => Some(Kind::Dir),
        Ok(Found::Entry(_, entry)) => Some(entry.kind),
        Err(error) if error.kind == ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let (from, offered, into) = match there {
        Some(Kind::Dir) if is_dir => (source, Offered::All, path.to_path_buf()),
        Some(Kind::Dir) => (parent, Offered::Entry(name.clone(), name), path.to_path_buf()),
        _ => {
            let (dir, named) = apart(path)?;
            (parent, Offered::Entry(name, named), dir)
        }
    };
    let from = Arc::new(PosixDir::open(&from)?);
    let fs = quell_mount_spec::open_log(&args.stores.paths(), Choices::default())?;
    let how = how(&args.how);
    let into = into.as_os_str().as_bytes();
    let moved =
        watched(&format!("importing {}", shown(&args.source)), quiet || args.how.json, WHOLE, |tally| {
            quell_log::import(from, offered, &fs, &stores, into, how, tally)
        })?;
    Ok(report(&args.stores.stores, "imported", &moved, args.how.json, quiet))
}

fn how(args: &MoveArgs) -> How {
    let owners = rustix::process::geteuid().is_root();
    How { threads: args.threads.into(), resume: args.resume, verify: args.verify, owners }
}

/// Runs `work` with a progress line, until Ctrl-C.
pub(super) fn watched<T: Send>(
    what: &str,
    quiet: bool,
    interrupted_means: &str,
    work: impl FnOnce(&Tally) -> quell_vfs::Result<T> + Send,
) -> Result<T, Failure> {
    let tally = Tally::default();
    let interrupted = progress::interruption();
    let look = || {
        if interrupted.load(Ordering::Relaxed) {
            tally.stop();
        }
    };
    let line = |elapsed: Duration| {
        let rate = tally.bytes() as f64 / elapsed.as_secs_f64().max(0.001);
        format!(
            "{what}: {} files, {}, {}/s",
            tally.files(),
            HumanBytes(tally.bytes()),
            HumanBytes(rate as u64)
        )
    };
    let done = progress::watch_line(&line, quiet, &look, || work(&tally));
    match interrupted.load(Ordering::Relaxed) {
        true => Err(Failure::interrupted(format!("interrupted: {interrupted_means}"))),
        false => Ok(done?),
    }
}

fn report(place: &Path, done: &str, moved: &Moved, as_json: bool, quiet: bool) -> ExitCode {
    let Moved { files, bytes, dirs, links, skipped, written, short, special, failed } = moved;
    let paths = |paths: &[Vec<u8>]| paths.iter().map(|path| shown_bytes(path)).collect::<Vec<_>>();
    if as_json {
        let failed: Vec<_> = (failed.iter())
            .map(|(path, error)| json!({ "path": text_of_bytes(path), "error": error.to_string() }))
            .collect();
        outln!(
            "{}",
            json!({ "files": files, "bytes": bytes, "directories": dirs, "links": links, "skipped": skipped,
                "being_written": paths(written), "short": paths(short), "special": paths(special), "failed": failed })
        );
    } else {
        for path in paths(written) {
            errln!("quell: {path}: is being written; it was taken as it was");
        }
        for path in paths(short) {
            errln!(
                "quell: {path}: a log of it has lost its end, and what is missing reads as what was there before; see quell log fsck"
            );
        }
        for path in paths(special) {
            errln!("quell: {path}: neither file, directory nor link; left out");
        }
        for (path, error) in failed.iter().take(FAILURES_SHOWN) {
            errln!("quell: {}: {error}", shown_bytes(path));
        }
        if failed.len() > FAILURES_SHOWN {
            errln!("quell: and {} more", failed.len() - FAILURES_SHOWN);
        }
        if !quiet {
            outln!(
                "{}: {done}: {files} files, {}, {dirs} directories, {links} links; {skipped} were there, {} failed",
                shown(place),
                HumanBytes(*bytes),
                failed.len()
            );
        }
    }
    ExitCode::from(if [short, special].iter().all(|paths| paths.is_empty()) && failed.is_empty() {
        YES
    } else {
        NO
    })
}
