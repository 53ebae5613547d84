//! The lock and the socket of a holder's key, as files in the runtime directory.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_vfs::{Error, Result};
use rustix::fs::FlockOperation;

/// Returns the path of the socket of a key.
pub fn socket_path(directory: &Path, key: &str) -> PathBuf {
    directory.join(format!("{key}.sock"))
}

/// Waits for the lock of `key`, which a caller holds while it creates the holder of a mount point.
/// Returns `None` after the timeout; the process should then end, because one of its threads still
/// waits for the lock.
pub fn lock_key_within(directory: &Path, key: &str, timeout: Duration) -> Result<Option<File>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (directory, key) = (directory.to_owned(), key.to_owned());
    // flock(2) has no timeout.
    std::thread::spawn(move || sender.send(lock_key(&directory, &key)));
    receiver.recv_timeout(timeout).ok().transpose()
}

/// Waits for the lock of `key`.
pub fn lock_key(directory: &Path, key: &str) -> Result<File> {
    loop {
        if let Some(file) = lock(directory, key, FlockOperation::LockExclusive)? {
            return Ok(file);
        }
    }
}

/// Locks the lock file of `key`. The lock is held while a process checks for a holder or creates
/// one, and while a holder leaves, so that only one process decides at a time.
pub fn lock(directory: &Path, key: &str, operation: FlockOperation) -> Result<Option<File>> {
    let path = directory.join(format!("{key}.lock"));
    let failed = |e| Error::from_io(e, "lock", path.as_os_str().as_bytes());
    loop {
        let file = File::options().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
        match rustix::fs::flock(&file, operation) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(failed(e.into())),
        }
        // The previous owner of the lock may have removed the file.
        let current = rustix::fs::stat(&path).ok();
        let ours = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
        if current.is_some_and(|current| (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino)) {
            return Ok(Some(file));
        }
    }
}

/// Returns the path of the socket through which the views of a node ask a job holder for shared
/// blocks.
pub fn blocks_socket_path(directory: &Path, key: &str) -> PathBuf {
    directory.join(format!("{key}.blocks"))
}

/// The suffixes of the files of a key. The lock file is removed last.
const SUFFIXES: [&str; 3] = ["sock", "blocks", "lock"];

/// Removes the files of `key`. The caller must hold the lock.
pub fn remove_files(directory: &Path, key: &str) {
    for suffix in SUFFIXES {
        let _ = std::fs::remove_file(directory.join(format!("{key}.{suffix}")));
    }
}
