//! The directory of a member: its store and its chunks.

use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use quell_kv::{DiskOptions, DiskStore, KeyValue};
use quell_pool_service::{ChunkDir, Chunks};
use quell_posix::PosixDir;
use quell_vfs::{Error, ErrorKind, Result};

/// The storage of a member.
pub struct Storage {
    pub store: Arc<dyn KeyValue>,
    pub chunks: Arc<dyn Chunks>,
    /// The directory of the chunks, for clients.
    pub chunk_dir: OwnedFd,
}

/// Opens the storage in `directory`, which is created if it does not exist. It and the directory
/// `base` above it must belong to this user, and no other user may have access to them.
///
/// # Errors
///
/// `PermissionDenied` if others have access; `Busy` if another daemon uses it.
pub fn open(base: &Path, directory: &Path) -> Result<Storage> {
    check_private(base)?;
    make_private(directory)?;
    check_private(directory)?;
    let (store, chunks) = (directory.join("store"), directory.join("chunks"));
    // The store is locked by the daemon that has it open.
    let store: Arc<dyn KeyValue> = Arc::new(DiskStore::open(&store, &DiskOptions::default())?);
    make_private(&chunks)?;
    let opened = PosixDir::open(&chunks)?;
    let chunk_dir = opened.as_fd().try_clone_to_owned();
    let chunk_dir =
        chunk_dir.map_err(|e| Error::from_io(e, "open", chunks.as_os_str().as_encoded_bytes()))?;
    Ok(Storage { store, chunks: Arc::new(ChunkDir::new(Arc::new(opened))), chunk_dir })
}

fn make_private(directory: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::from_io(e, "create", directory.as_os_str().as_encoded_bytes()))
        }
        _ => Ok(()),
    }
}

fn check_private(directory: &Path) -> Result<()> {
    let subject = directory.as_os_str().as_encoded_bytes();
    let found = std::fs::symlink_metadata(directory).map_err(|e| Error::from_io(e, "open", subject))?;
    let uid = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 {
        let source = Some("it is not a directory of this user with mode 700".into());
        return Err(Error { source, ..Error::new(ErrorKind::PermissionDenied, "use", subject) });
    }
    Ok(())
}
