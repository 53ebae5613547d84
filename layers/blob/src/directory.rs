//! The directory of a store: its files, and their owner and permissions. docs/formats/blob.md
//! describes the files.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_blob_service::{CheckedStore, ExtentDir, OpenStore, Options, Problem};
use quell_kv::{Batch, DiskOptions, DiskStore, Durability, KeyRange, KeyValue, Value};
use quell_posix::{Dir, PosixDir, WritableDir, open_private_dir};
use quell_vfs::{Error, ErrorKind, Rename, Result};
use rustix::fs::{FlockOperation, flock};

use crate::embedded::SystemClock;
use crate::remote::Remote;

/// The content of the file `format`.
const FORMAT: &[u8] = b"QUELLBLOB1\n";
/// The content of the file `format` in the directory of a server whose store is in RADOS.
const FORMAT_RADOS: &[u8] = b"QUELLBLOBR\n";
/// The names in the directory of a store.
const NAMES: [&[u8]; 6] = [b"format", b"format.new", b"tables", b"extents", b"key", b"socket"];
/// The memory for table blocks that were read, in bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// Opens the store in a directory. If `may_create` is set, creates the directory and the store if
/// they do not exist.
pub(crate) fn open(path: &Path, may_create: bool) -> Result<OpenStore> {
    let (tables, extents) = open_storage(path, may_create)?;
    OpenStore::open(Arc::new(tables), Arc::new(extents), Arc::new(SystemClock), Options::default())
}

/// Checks the store in a directory, and passes its problems to `report`.
pub(crate) fn check(path: &Path, repair: bool, report: &mut dyn FnMut(Problem)) -> Result<CheckedStore> {
    let (tables, extents) = open_storage(path, false)?;
    quell_blob_service::check(&tables, &extents, repair, report)
}

fn open_storage(path: &Path, may_create: bool) -> Result<(DirectoryTables, ExtentDir)> {
    let opened = open_private(path, may_create)?;
    // All names below are looked up from this descriptor, so the path may change meanwhile.
    let base = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let dir = PosixDir::of_descriptor(opened.try_clone().map_err(|e| failed_io(e, path))?);
    let kind = check_format(&dir, path)?;
    if kind == DirectoryKind::Rados {
        let source = Some("the store is in RADOS, and is used through its server: quell blob serve DIR --rados rados://POOL".into());
        return Err(Error { source, ..Error::new(ErrorKind::Busy, "open the store", subject(path)) });
    }
    let is_new = kind == DirectoryKind::NoStore;
    if is_new && !may_create {
        let source = Some("there is no store in this directory".into());
        return Err(Error { source, ..Error::new(ErrorKind::NotFound, "open the store", subject(path)) });
    }
    let options =
        DiskOptions { cache_bytes: CACHE_BYTES, durability: Durability::Power, ..Default::default() };
    // The tables are locked, so that only one process has the store open.
    let tables = DiskStore::open(&base.join("tables"), &options).map_err(|error| match error.kind {
        ErrorKind::Busy => {
            let source =
                "another process has it open; several processes can share it through: quell blob serve DIR";
            Error {
                source: Some(source.into()),
                ..Error::new(ErrorKind::Busy, "open the store", subject(path))
            }
        }
        _ => Error { subject: subject(path).to_vec(), ..error },
    })?;
    match dir.make_dir(b"extents", 0o700) {
        Err(error) if error.kind != ErrorKind::Exists => return Err(error),
        _ => {}
    }
    if is_new {
        create_format(&dir, FORMAT)?;
    }
    let extents = ExtentDir::new(dir.open_writable_dir(b"extents")?, Durability::Power);
    let tables = DirectoryTables { store: tables, _directory: opened };
    Ok((tables, extents))
}

/// Connects to the server that has the store in a directory open.
pub(crate) fn connect(path: &Path) -> Result<Remote> {
    let opened = open_private(path, false)?;
    // The path of a socket has at most 107 bytes, so it is looked up from the descriptor.
    let socket = PathBuf::from(format!("/proc/self/fd/{}/socket", opened.as_raw_fd()));
    Remote::by_socket(socket, Some(opened))
}

/// Opens the store in a directory for a server, or creates one. Also returns the descriptor of the
/// directory, in which the server creates its socket.
///
/// # Errors
/// As for [`Store::open`](crate::Store::open).
pub fn open_for_server(path: &Path) -> Result<(OpenStore, OwnedFd)> {
    let store = open(path, true)?;
    Ok((store, open_private(path, false)?))
}

/// Opens the directory with the socket and the key of a server of a store in RADOS. The directory
/// is created if it does not exist. No other server on this machine can use it while it is open.
///
/// # Errors
/// `Busy` if another server on this machine uses the directory; `Exists` if it has a store;
/// `PermissionDenied` as for [`Store::open`](crate::Store::open).
pub fn open_rados_directory(path: &Path) -> Result<OwnedFd> {
    let opened = open_private(path, true)?;
    let fail = |kind, reason: &str| {
        let source = Some(reason.to_string().into());
        Err(Error { source, ..Error::new(kind, "open the store", subject(path)) })
    };
    // The lock ends with the process. RADOS excludes a server on another machine.
    if flock(&opened, FlockOperation::NonBlockingLockExclusive).is_err() {
        return fail(ErrorKind::Busy, "another server uses this directory");
    }
    let dir = PosixDir::of_descriptor(opened.try_clone().map_err(|e| failed_io(e, path))?);
    match check_format(&dir, path)? {
        DirectoryKind::Store => {
            return fail(ErrorKind::Exists, "it has a store of its own; pass another directory");
        }
        DirectoryKind::NoStore => create_format(&dir, FORMAT_RADOS)?,
        DirectoryKind::Rados => {}
    }
    Ok(opened)
}

/// The tables, with the descriptor of the directory to which their path refers.
struct DirectoryTables {
    store: DiskStore,
    _directory: OwnedFd,
}

impl KeyValue for DirectoryTables {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.store.get(key)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.store.commit(batch)
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.store.scan(range, visit)
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    fn size_bytes(&self) -> Result<u64> {
        self.store.size_bytes()
    }
}

fn open_private(path: &Path, may_create: bool) -> Result<OwnedFd> {
    open_private_dir(path, may_create, "open the store")
}

/// The use of a directory, which its file `format` states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectoryKind {
    /// The directory has no complete store.
    NoStore,
    /// The directory has a store.
    Store,
    /// The directory has the socket and the key of a server whose store is in RADOS.
    Rados,
}

/// Returns the use of a directory. A directory without the file `format` must not have other files.
fn check_format(dir: &PosixDir, path: &Path) -> Result<DirectoryKind> {
    let refuse = |kind, reason: String| {
        let source = Some(reason.into());
        Err(Error { source, ..Error::new(kind, "open the store", subject(path)) })
    };
    let file = match dir.open_file(b"format") {
        Ok(file) => file,
        Err(error) if error.kind == ErrorKind::NotFound => {
            let other = dir.names()?.into_iter().find(|name| !NAMES.contains(&&name[..]));
            return match other {
                Some(name) => refuse(
                    ErrorKind::Exists,
                    format!("it is not a store, and has other files: {}", name.escape_ascii()),
                ),
                None => Ok(DirectoryKind::NoStore),
            };
        }
        Err(error) => return Err(error),
    };
    let mut content = [0; FORMAT.len() + 1];
    let length = file.read_at(&mut content, 0)?;
    match &content[..length] {
        FORMAT => Ok(DirectoryKind::Store),
        FORMAT_RADOS => Ok(DirectoryKind::Rados),
        _ => refuse(
            ErrorKind::Damaged,
            "its file `format` does not have the format of a store of this version".into(),
        ),
    }
}

/// Writes the file `format`, which marks the directory as complete.
fn create_format(dir: &PosixDir, content: &[u8]) -> Result<()> {
    match dir.remove(b"format.new") {
        Err(error) if error.kind != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = dir.create_file(b"format.new", 0o600)?;
    file.write_at(content, 0)?;
    file.sync()?;
    dir.rename(b"format.new", dir, b"format", Rename::Replace)?;
    WritableDir::sync(dir)
}

fn subject(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn failed_io(error: std::io::Error, path: &Path) -> Error {
    Error::from_io(error, "open the store", subject(path))
}
