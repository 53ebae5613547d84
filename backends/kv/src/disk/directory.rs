//! The directory of a store: its lock, and the creation of the engine's files.
//!
//! docs/formats/kv.md describes the files. A process can be killed while it creates a store; the
//! engine cannot open the incomplete files. So the file `format` is written last: without it, the
//! store has never accepted a commit, and the engine's files are removed and created again.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use quell_vfs::{Error, ErrorKind, Result};

const LOCK: &str = "lock";
const ENGINE: &str = "engine";
const FORMAT: &str = "format";
const BALLAST: &str = "ballast";
/// Content of the file `format`.
const MAGIC: &[u8] = b"QUELLKV1\n";

/// A directory whose lock this value holds.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Whether the file `format` existed when the directory was locked.
    is_complete: bool,
    /// The lock ends when this file is closed.
    _lock: File,
}

impl Directory {
    /// Creates the directory if it does not exist, locks it, and removes the files that an
    /// interrupted creation has left.
    pub(super) fn lock(path: &Path) -> Result<Directory> {
        let failed = |cause| error(cause, path);
        match DirBuilder::new().mode(0o700).create(path) {
            Err(cause) if cause.kind() != IoErrorKind::AlreadyExists => return Err(failed(cause)),
            _ => {}
        }
        // The names are examined before the lock file is created in a directory of other files.
        check_names(path)?;
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true).mode(0o600).open(path.join(LOCK));
        let lock = lock.map_err(failed)?;
        lock.try_lock().map_err(|cause| match cause {
            TryLockError::WouldBlock => Error::new(ErrorKind::Busy, "open", path.as_os_str().as_bytes()),
            TryLockError::Error(cause) => failed(cause),
        })?;
        let is_complete = match fs::read(path.join(FORMAT)) {
            Ok(content) if content == MAGIC => true,
            Ok(_) => return Err(damaged(path, "the file `format` has an unknown content")),
            Err(cause) if cause.kind() == IoErrorKind::NotFound => false,
            Err(cause) => return Err(failed(cause)),
        };
        let directory = Directory { path: path.to_owned(), is_complete, _lock: lock };
        match (is_complete, directory.engine().try_exists().map_err(failed)?) {
            (true, false) => return Err(damaged(path, "there is no directory `engine`")),
            (false, true) => fs::remove_dir_all(directory.engine()).map_err(failed)?,
            _ => {}
        }
        Ok(directory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the engine's files were created before this open.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the directory of the engine's files.
    pub(super) fn engine(&self) -> PathBuf {
        self.path.join(ENGINE)
    }

    /// Returns the path of the file that occupies space.
    pub(super) fn ballast(&self) -> PathBuf {
        self.path.join(BALLAST)
    }

    /// Records that the engine's files have been created. Afterwards they are never removed.
    pub(super) fn mark_complete(&self) -> Result<()> {
        if self.is_complete {
            return Ok(());
        }
        let write = || -> io::Result<()> {
            let temporary = self.path.join(format!("{FORMAT}.new"));
            let mut file =
                File::options().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
            file.write_all(MAGIC)?;
            file.sync_all()?;
            fs::rename(&temporary, self.path.join(FORMAT))?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|cause| error(cause, &self.path))
    }

    /// Returns the space of the disk that all files occupy, in bytes.
    pub(super) fn size_bytes(&self) -> Result<u64> {
        size_bytes(&self.path).map_err(|cause| error(cause, &self.path))
    }
}

/// Returns `Exists` if a directory has files that do not belong to a store.
fn check_names(path: &Path) -> Result<()> {
    let format_new = format!("{FORMAT}.new");
    for entry in fs::read_dir(path).map_err(|cause| error(cause, path))? {
        let name = entry.map_err(|cause| error(cause, path))?.file_name();
        if ![LOCK, ENGINE, FORMAT, BALLAST, &format_new].iter().any(|known| name == *known) {
            let source = Some(format!("{} does not belong to a store", name.display()).into());
            return Err(Error {
                source,
                ..Error::new(ErrorKind::Exists, "open", path.as_os_str().as_bytes())
            });
        }
    }
    Ok(())
}

/// Returns the space of all files below a directory. The engine removes files at any time.
fn size_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Err(cause) if cause.kind() == IoErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        bytes += metadata.blocks() * 512;
        if metadata.is_dir() {
            bytes += size_bytes(&entry.path())?;
        }
    }
    Ok(bytes)
}

fn error(cause: io::Error, path: &Path) -> Error {
    Error::from_io(cause, "open", path.as_os_str().as_bytes())
}

fn damaged(path: &Path, reason: &'static str) -> Error {
    let source = Some(reason.into());
    Error { source, ..Error::new(ErrorKind::Damaged, "open", path.as_os_str().as_bytes()) }
}
