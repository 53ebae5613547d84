//! Walks the tree in the stores and checks each container.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Kind, Result};

use super::container_check::check_container;
use super::context::{Check, CheckOptions, CheckResult};
use super::own_data::{check_own_data, check_parts};
use super::problem::Problem;
use super::repair::repair_container;
use crate::container::{Container, OwnerChange};
use crate::format::{HEAD_BYTES, container_name, joined};
use crate::fs::{Entry, NameProblem, NameProblemKind, ResolvedPath, StoredDir, find};
use crate::stores::Stores;
use crate::tools::progress::{ToolProgress, run_tasks};

/// Number of attempts to check a file that changes during the check.
const ATTEMPTS_MAX: usize = 3;

enum CheckTask {
    Dir(Vec<u8>),
    File(Arc<StoredDir>, Entry, Vec<u8>),
}

/// Checks the file or directory at `path`. For the root, the `.quell` directories of the stores are
/// checked, too.
pub fn check(
    stores: &Arc<Stores>,
    path: &[u8],
    options: &CheckOptions<'_>,
    progress: &ToolProgress,
) -> Result<CheckResult> {
    let (first, is_root, is_file) = match find(stores, path)? {
        ResolvedPath::Dir(dir) => (CheckTask::Dir(normalize(path)), dir.is_root(), false),
        ResolvedPath::Entry(dir, entry) if entry.kind == Kind::File => {
            (CheckTask::File(Arc::new(dir), entry, normalize(path)), false, true)
        }
        ResolvedPath::Entry(..) => return Ok(CheckResult::default()),
    };
    let check = Check::new(stores, options, progress, if is_file { options.threads } else { 1 });
    run_tasks(options.threads, vec![first], progress, &|task, added| match task {
        CheckTask::Dir(path) => {
            if let Err(error) = list_dir(&check, &path, added) {
                check.report(&path, Problem::not_checked(error));
            }
        }
        CheckTask::File(dir, entry, path) => check_file(&check, &dir, &entry, &path),
    });
    if is_root && !progress.is_stopped() {
        // All containers must be known before log directories in `parts` are reported as orphaned.
        let stores = 0..stores.count();
        let own_data = stores.clone().map(|store| check_own_data(&check, store));
        for checked in own_data.chain(stores.map(|store| check_parts(&check, store))) {
            if let Err(error) = checked {
                check.report(b"", Problem::not_checked(error));
            }
        }
    }
    Ok(check.into_result())
}

/// Removes empty and `.` components of a path.
fn normalize(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.collect::<Vec<_>>().join(&b'/')
}

/// Adds a task for each file and directory in a directory.
fn list_dir(check: &Check<'_>, path: &[u8], added: &mut Vec<CheckTask>) -> Result<()> {
    let ResolvedPath::Dir(dir) = find(check.stores, path)? else { return Ok(()) };
    let listing = dir.list()?;
    for problem in &listing.problems {
        check.report(&joined(path, &problem.stored), problem_of(check, problem));
    }
    let dir = Arc::new(dir);
    for entry in listing.entries.into_iter().rev() {
        let path = joined(path, &entry.name);
        match entry.kind {
            Kind::File => added.push(CheckTask::File(Arc::clone(&dir), entry, path)),
            Kind::Dir => added.push(CheckTask::Dir(path)),
            _ => {}
        }
    }
    Ok(())
}

fn problem_of(check: &Check<'_>, found: &NameProblem) -> Problem {
    let store = check.store_text(found.store);
    match found.kind {
        NameProblemKind::Foreign => Problem::foreign_entry(&store),
        NameProblemKind::SeveralStores => Problem::file_in_several_stores(&store),
        NameProblemKind::FileAndOther => Problem::hidden_by_file(),
        NameProblemKind::NotInFirst => Problem::not_in_first_store(&store, &check.store_text(0)),
        NameProblemKind::Missing => Problem::directory_missing(&store),
    }
}

fn check_file(check: &Check<'_>, dir: &StoredDir, entry: &Entry, path: &[u8]) {
    let exists = || dir.lookup(&entry.name).is_ok_and(|now| now.as_ref() == Some(entry));
    let container = match dir.open(entry) {
        Ok(container) => container,
        Err(error) if error.kind == ErrorKind::NotFound => {
            // The container was removed meanwhile, or the directory never was a container.
            if exists() {
                check.report(path, Problem::not_a_container());
            }
            return;
        }
        Err(error) => {
            match error.kind == ErrorKind::Damaged && is_without_header(dir, entry).is_ok_and(|is| is) {
                true => {
                    let problem = Problem::object_without_header();
                    check.report_and_repair(path, problem, || remove_object(dir, entry));
                }
                false => check.report(path, Problem::not_checked(error)),
            }
            return;
        }
    };
    check.add_container(container.number());
    if container.object().is_some() && !check.add_object(container.number(), container.identity()) {
        check.report(path, Problem::same_number());
    }
    if let Err(error) = check_object(check, dir, entry, path, &container)
        && (error.kind != ErrorKind::NotFound || exists())
    {
        check.report(path, Problem::not_checked(error));
    }
    for _ in 0..ATTEMPTS_MAX {
        let checked = check_container(check, &container);
        if check.progress.is_stopped() {
            return; // the check is incomplete, so nothing may be repaired
        }
        match checked {
            // A concurrent writer can cause apparent problems.
            Ok(checked) if checked.is_clean() || !checked.has_changed(&container) => {
                check.add_file(checked.open_writers, checked.kept_writers);
                return repair_container(check, &container, path, checked);
            }
            Ok(_) => {}
            Err(error) if error.kind != ErrorKind::NotFound || exists() => {
                return check.report(path, Problem::not_checked(error));
            }
            Err(_) => return, // removed meanwhile
        }
    }
    check.report(path, Problem::not_checked("it changes during every attempt"));
}

/// Checks the names and the owners of a file that began as an object.
fn check_object(
    check: &Check<'_>,
    dir: &StoredDir,
    entry: &Entry,
    path: &[u8],
    container: &Container,
) -> Result<()> {
    let Some(object) = container.object() else { return Ok(()) };
    if object.stat()?.nlink > 1 {
        check.report(path, Problem::several_names());
    }
    match container.owner_change()? {
        OwnerChange::None => {}
        OwnerChange::CanBeFinished => check.report_and_repair(path, Problem::several_owners(), || {
            container.finish_owner_change(parent_of(dir, entry)?)
        }),
        OwnerChange::MustBeRepeated => check.report(path, Problem::several_owners()),
    }
    Ok(())
}

fn parent_of<'a>(dir: &'a StoredDir, entry: &Entry) -> Result<&'a dyn WritableDir> {
    dir.in_store(entry.store).ok_or_else(|| Error::new(ErrorKind::NotFound, "open", &entry.name))
}

/// Returns true if a file began as an object whose header was never written, because the mount was
/// killed or the power failed.
fn is_without_header(dir: &StoredDir, entry: &Entry) -> Result<bool> {
    let (stored, Some(parent)) = (container_name(&entry.name)?, dir.in_store(entry.store)) else {
        return Ok(false);
    };
    let (file, mut bytes) = (parent.open_file(&stored)?, [0; HEAD_BYTES]);
    Ok(file.stat_from_server()?.size_bytes < HEAD_BYTES as u64
        || file.read_at(&mut bytes, 0).is_ok_and(|_| bytes == [0; HEAD_BYTES]))
}

fn remove_object(dir: &StoredDir, entry: &Entry) -> Result<()> {
    parent_of(dir, entry)?.remove(&container_name(&entry.name)?)
}

#[cfg(test)]
#[path = "check_test.rs"]
mod tests;
