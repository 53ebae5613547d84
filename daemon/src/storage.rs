//! The storage of the members and backups of a daemon: a store and chunks for each, in a directory
//! or in memory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_kv::{DiskOptions, DiskStore, KeyValue, MemoryLimit, MemoryStore};
use quell_pool_service::{ChunkDir, Chunks};
use quell_posix::PosixDir;
use quell_runtime::{is_private, make_private};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{INLINE_BYTES_MAX, MemberId};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, unlinkat};

use crate::failure::Failure;
use crate::memory;

/// Names and attributes may use the memory divided by this number.
const NAMES_PART: u64 = 8;
/// The space that each store on a disk occupies, so that files can be removed after data has filled
/// the disk: clients write data without the daemon.
const BALLAST_BYTES: u64 = 8 << 20;

/// The storage of a member.
pub struct Storage {
    pub store: Arc<dyn KeyValue>,
    pub chunks: Arc<dyn Chunks>,
    /// The directory of the chunks, for clients.
    pub chunk_dir: OwnedFd,
    /// The largest length of the inline data of a file, in bytes.
    pub inline_bytes_max: usize,
}

impl Storage {
    /// Returns another handle of the same storage.
    pub fn duplicate(&self) -> std::result::Result<Storage, Failure> {
        let chunk_dir = self.chunk_dir.try_clone();
        let chunk_dir = chunk_dir.map_err(|e| Failure::cannot(format!("cannot copy a descriptor: {e}")))?;
        Ok(Storage {
            store: Arc::clone(&self.store),
            chunks: Arc::clone(&self.chunks),
            chunk_dir,
            inline_bytes_max: self.inline_bytes_max,
        })
    }
}

/// The storage of a daemon. Members and backups have directories with their numbers.
pub struct DaemonStorage(Location);

enum Location {
    /// The directory `directory` in `base`. Other users have no access to either.
    Disk { base: PathBuf, directory: PathBuf },
    /// The directory of a tmpfs with the chunks, and the limit of the names and attributes.
    Memory { chunks: OwnedFd, names: Arc<MemoryLimit> },
}

impl DaemonStorage {
    /// Opens the directory `directory` in `base`, and creates it if it does not exist. Both must
    /// belong to this user, and no other user may have access to them.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if others have access.
    pub fn on_disk(base: &Path, directory: &Path) -> Result<DaemonStorage> {
        check_private(base)?;
        create_private(directory)?;
        check_private(directory)?;
        Ok(DaemonStorage(Location::Disk { base: base.to_owned(), directory: directory.to_owned() }))
    }

    /// Creates storage in memory for all members and backups together, with at most this number of
    /// bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`memory::directory`].
    pub fn in_memory(bytes_max: u64) -> std::result::Result<DaemonStorage, Failure> {
        let names_bytes_max = bytes_max / NAMES_PART;
        let chunks = memory::directory(bytes_max - names_bytes_max)?;
        let names = Arc::new(MemoryLimit::new(names_bytes_max));
        Ok(DaemonStorage(Location::Memory { chunks, names }))
    }

    /// Opens the storage of a member, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// `Busy` if another daemon uses it; `Exists` if it is in memory and exists.
    pub fn open(&self, member: MemberId) -> Result<Storage> {
        let name = member.0.to_string();
        match &self.0 {
            Location::Disk { base, directory } => open_directory(base, &directory.join(name)),
            Location::Memory { chunks, names } => {
                let failed = |e: rustix::io::Errno| Error::from_io(e.into(), "create in memory", &name);
                mkdirat(chunks, &name, Mode::RWXU).map_err(failed)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let chunk_dir = openat(chunks, &name, flags, Mode::empty()).map_err(failed)?;
                let opened = chunk_dir.try_clone().map_err(|e| Error::from_io(e, "open", &name))?;
                Ok(Storage {
                    store: Arc::new(MemoryStore::with_limit(Arc::clone(names))),
                    chunks: Arc::new(ChunkDir::new(Arc::new(PosixDir::of_descriptor(opened)))),
                    chunk_dir,
                    // Names have only a part of the memory, and a tmpfs creates files quickly.
                    inline_bytes_max: 0,
                })
            }
        }
    }

    /// Opens the storage of a member that an earlier daemon has left.
    ///
    /// # Errors
    ///
    /// `NotFound` if it does not exist; `Busy` if that daemon runs.
    pub fn take_over(&self, member: MemberId) -> Result<Storage> {
        let name = member.0.to_string();
        match &self.0 {
            Location::Disk { directory, .. } if directory.join(&name).exists() => self.open(member),
            _ => Err(Error::new(ErrorKind::NotFound, "take over the data of member", name)),
        }
    }

    /// Creates the storage of a backup.
    ///
    /// # Errors
    ///
    /// `Stale` if it exists, because this daemon runs the member, or has run it.
    pub fn create(&self, member: MemberId) -> Result<Storage> {
        let stale = || Error::new(ErrorKind::Stale, "create a backup of member", member.0.to_string());
        match &self.0 {
            Location::Disk { directory, .. } if directory.join(member.0.to_string()).exists() => Err(stale()),
            _ => self.open(member).map_err(|error| match error.kind {
                ErrorKind::Exists => stale(),
                _ => error,
            }),
        }
    }

    /// Removes the storage of a member that does not run here any more, or of a backup.
    pub fn remove(&self, member: MemberId) -> Result<()> {
        let name = member.0.to_string();
        match &self.0 {
            Location::Disk { directory, .. } => match std::fs::remove_dir_all(directory.join(&name)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::from_io(e, "remove the storage of member", &name))
                }
                _ => Ok(()),
            },
            Location::Memory { chunks, .. } => {
                let removed = remove_flat(chunks, &name);
                removed.map_err(|e| Error::from_io(e.into(), "remove the storage of member", &name))
            }
        }
    }
}

/// Removes a directory that contains only files.
fn remove_flat(parent: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = match openat(parent, name, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            unlinkat(&directory, entry.file_name(), AtFlags::empty())?;
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Opens the storage in `directory`, which is created if it does not exist. It and the directory
/// `base` above it must belong to this user, and no other user may have access to them.
fn open_directory(base: &Path, directory: &Path) -> Result<Storage> {
    check_private(base)?;
    create_private(directory)?;
    check_private(directory)?;
    let (store, chunks) = (directory.join("store"), directory.join("chunks"));
    // The store is locked by the daemon that has it open.
    let options = DiskOptions { ballast_bytes: BALLAST_BYTES, ..DiskOptions::default() };
    let store: Arc<dyn KeyValue> = Arc::new(DiskStore::open(&store, &options)?);
    create_private(&chunks)?;
    let opened = PosixDir::open(&chunks)?;
    let chunk_dir = opened.as_fd().try_clone_to_owned();
    let chunk_dir =
        chunk_dir.map_err(|e| Error::from_io(e, "open", chunks.as_os_str().as_encoded_bytes()))?;
    let chunks = Arc::new(ChunkDir::new(Arc::new(opened)));
    Ok(Storage { store, chunks, chunk_dir, inline_bytes_max: INLINE_BYTES_MAX })
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
