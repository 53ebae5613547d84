//! The storage of a member: its store and its chunks, in a directory or in memory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use quell_kv::{DiskOptions, DiskStore, KeyValue, MemoryStore};
use quell_pool_service::{ChunkDir, Chunks};
use quell_posix::PosixDir;
use quell_runtime::{is_private, make_private};
use quell_vfs::{Error, ErrorKind, Result};

use crate::failure::Failure;
use crate::memory;

/// The part of the memory that names and attributes may use: one of this number of equal parts.
const NAMES_PART: u64 = 8;

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
    create_private(directory)?;
    check_private(directory)?;
    let (store, chunks) = (directory.join("store"), directory.join("chunks"));
    // The store is locked by the daemon that has it open.
    let store: Arc<dyn KeyValue> = Arc::new(DiskStore::open(&store, &DiskOptions::default())?);
    create_private(&chunks)?;
    let opened = PosixDir::open(&chunks)?;
    let chunk_dir = opened.as_fd().try_clone_to_owned();
    let chunk_dir =
        chunk_dir.map_err(|e| Error::from_io(e, "open", chunks.as_os_str().as_encoded_bytes()))?;
    Ok(Storage { store, chunks: Arc::new(ChunkDir::new(Arc::new(opened))), chunk_dir })
}

/// Creates storage in memory, with at most this number of bytes.
///
/// # Errors
///
/// As [`memory::directory`].
pub fn in_memory(bytes_max: u64) -> std::result::Result<Storage, Failure> {
    let names_bytes_max = bytes_max / NAMES_PART;
    let chunk_dir = memory::directory(bytes_max - names_bytes_max)?;
    let opened = chunk_dir.try_clone().map_err(|e| Error::from_io(e, "open", "memory"))?;
    Ok(Storage {
        store: Arc::new(MemoryStore::with_limit(names_bytes_max)),
        chunks: Arc::new(ChunkDir::new(Arc::new(PosixDir::of_descriptor(opened)))),
        chunk_dir,
    })
}

fn create_private(directory: &Path) -> Result<()> {
    make_private(directory).map_err(|e| Error::from_io(e, "create", directory.as_os_str().as_encoded_bytes()))
}

fn check_private(directory: &Path) -> Result<()> {
    let subject = directory.as_os_str().as_encoded_bytes();
    let uid = rustix::process::geteuid().as_raw();
    let is_private = is_private(directory, uid).map_err(|e| Error::from_io(e, "open", subject))?;
    if !is_private {
        let source = Some("it is not a directory of this user with mode 700".into());
        return Err(Error { source, ..Error::new(ErrorKind::PermissionDenied, "use", subject) });
    }
    Ok(())
}
