//! `quell blob backup`: copies one state of a store into a new store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_blob::{Location, Operation, Snapshot, Store};
use quell_mount_spec::directory_of;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::blob_copy::{Piece, copy_out, each, with_progress};
use crate::arguments::BlobBackupArgs;
use crate::failure::{Failure, of_blob as failure};
use crate::inputs::{random_text, shown};
use crate::output::errln;

/// A commit into the copy begins when its operations have at least this number of bytes of data, or
/// at least the number of operations below.
const COMMIT_BYTES: usize = 16 << 20;
const COMMIT_OPERATIONS: usize = 1000;

/// The copy has another name until it is complete, so that no interrupted copy is taken for a
/// backup.
pub(super) fn run(args: &BlobBackupArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let Location::Directory(path) = args.target.parse()? else {
        return Err(Failure::wrong_input(format!("{}: a backup is a directory", shown(&args.target))));
    };
    let exists = || Failure::wrong_input(format!("{} exists; name a new directory", path.display()));
    if path.symlink_metadata().is_ok() {
        return Err(exists());
    }
    let store = Store::open_existing(&args.store).map_err(failure)?;
    check_outside(&args.store, &path)?;
    let snapshot = store.snapshot().map_err(failure)?;
    let incomplete = incomplete_path(&path)?;
    let copied = Store::open(&format!("dir:{}", incomplete.display())).map_err(failure).and_then(|target| {
        with_progress("copying", quiet, |bytes, check| copy(&snapshot, &target, bytes, check))
    });
    let kept = copied.and_then(|()| {
        renameat_with(CWD, &incomplete, CWD, &path, RenameFlags::NOREPLACE).map_err(|error| match error {
            rustix::io::Errno::EXIST => exists(),
            error => Failure::cannot(format!("rename {}: {error}", incomplete.display())),
        })?;
        sync_parent(&path)
    });
    if kept.is_err()
        && let Err(error) = fs::remove_dir_all(&incomplete)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        errln!("quell: {}: an incomplete copy was left: {error}", incomplete.display());
    }
    kept.map(|()| ExitCode::SUCCESS)
}

/// Refuses a backup in the directory of the store, where its checks would find unknown files.
fn check_outside(store: &str, path: &Path) -> Result<(), Failure> {
    let directory = match store.parse()? {
        Location::Directory(directory) => directory,
        Location::Socket(socket) => socket.parent().map(Path::to_owned).unwrap_or_default(),
        Location::Server { .. } | Location::Rados { .. } => return Ok(()),
    };
    // A directory that cannot be examined fails the copy.
    let (Ok(directory), Ok(parent)) = (fs::canonicalize(directory), fs::canonicalize(directory_of(path)))
    else {
        return Ok(());
    };
    match parent.starts_with(&directory) {
        false => Ok(()),
        true => Err(Failure::wrong_input(format!(
            "{}: a backup cannot be in the directory of its store",
            path.display()
        ))),
    }
}

/// Returns the path of the copy until it is complete, in the directory of the backup.
fn incomplete_path(path: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = path.file_name() else {
        return Err(Failure::wrong_input(format!("{}: the backup needs a name", path.display())));
    };
    let mut incomplete = name.to_owned();
    incomplete.push(format!(".incomplete-{}", random_text()?));
    Ok(path.with_file_name(incomplete))
}

fn sync_parent(path: &Path) -> Result<(), Failure> {
    let parent = directory_of(path);
    let synced = fs::File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Failure::cannot(format!("sync {}: {error}", parent.display())))
}

fn copy(
    snapshot: &Snapshot,
    target: &Store,
    bytes: &AtomicU64,
    check: &dyn Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut commits = Commits { target, operations: Vec::new(), data_bytes: 0 };
    each(snapshot, b"", |name, stat| {
        let name = name.to_vec();
        commits.add(Operation::Create { name: name.clone(), may_exist: false })?;
        commits.add(Operation::Resize { name: name.clone(), size_bytes: stat.size_bytes })?;
        copy_out(snapshot, &name, (0, stat.size_bytes), &mut |piece| {
            check()?;
            if let Piece::Data(offset, data) = piece {
                bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                commits.add(Operation::Write { name: name.clone(), offset, data: data.to_vec() })?;
            }
            Ok(())
        })?;
        let modified_ns = Some(stat.modified_ns);
        commits.add(Operation::SetAttributes { name, file: stat.file, modified_ns })
    })?;
    commits.finish()
}

/// Operations on the copy, which are committed in groups.
struct Commits<'a> {
    target: &'a Store,
    operations: Vec<Operation>,
    data_bytes: usize,
}

impl Commits<'_> {
    fn add(&mut self, operation: Operation) -> Result<(), Failure> {
        if let Operation::Write { data, .. } = &operation {
            self.data_bytes += data.len();
        }
        self.operations.push(operation);
        match self.data_bytes >= COMMIT_BYTES || self.operations.len() >= COMMIT_OPERATIONS {
            true => self.finish(),
            false => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.data_bytes = 0;
        self.target.commit(std::mem::take(&mut self.operations)).map(drop).map_err(failure)
    }
}
