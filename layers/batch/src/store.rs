//! A store for batches in a directory of the shared file system: its files, and the batches of this
//! process. docs/formats/batch.md draws the files.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use quell_batch_service::{
    BatchCaller, BatchRecord, BatchState, Certificate, Image, MEMORY_BYTES, NameSpace, Names, NewBatch,
    Primary, PrivateEntries, ROOT, TableDir, TableFiles,
};
use quell_kv::{DiskOptions, DiskStore, Durability};
use quell_posix::{Dir, PosixDir, WritableDir, open_private_dir};
use quell_threads::read_lock;
use quell_vfs::{Error, ErrorKind, Kind, NewEntry, Rename, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat, syncfs};
use rustix::io::Errno;

use crate::file_system::BatchFs;
use crate::shared::now;
use crate::subtree::Subtree;

/// The content of the file `format`.
const FORMAT: &[u8] = b"QUELLBATCH1\n";
/// The directories of a store.
pub(crate) const KEYS: &str = "keys";
const TABLES: &str = "tables";
const DATA: &str = "data";
const BATCHES: &str = "batches";
/// The file with the certificate of a batch, in its directory.
const CERTIFICATE: &[u8] = b"certificate";
const NEW_CERTIFICATE: &[u8] = b"certificate.new";
/// The largest certificate that is read, in bytes.
const CERTIFICATE_BYTES_MAX: usize = 64 << 20;
/// The time between two attempts to open a store that another process has open.
const RETRY: Duration = Duration::from_millis(20);
/// The memory for blocks of the key-value store, in bytes.
const CACHE_BYTES: u64 = 16 << 20;

/// An open store. One process at a time has it open.
#[derive(Debug)]
pub struct BatchStore {
    // The order of the fields is the order in which they are dropped: the key-value store is below
    // the directory.
    primary: Primary,
    dir: StoreDir,
}

/// The directory of a store.
#[derive(Debug)]
pub(crate) struct StoreDir {
    path: PathBuf,
    fd: OwnedFd,
}

/// The private name space of a batch. The store is not open meanwhile, so other processes can use
/// it.
pub struct OpenBatch {
    dir: StoreDir,
    store_number: u128,
    record: BatchRecord,
    names: Arc<RwLock<Names<PrivateEntries>>>,
    tables: Arc<TableDir>,
    fs: Arc<BatchFs>,
    /// The number of attempts to commit.
    attempts: AtomicU64,
    /// Held while this process uses the batch.
    _lock: OwnedFd,
}

impl std::fmt::Debug for OpenBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenBatch").field("store", &self.dir.path).field("record", &self.record).finish()
    }
}

impl BatchStore {
    /// Creates a store in a directory that does not exist or is empty. Its root directory belongs
    /// to the user of this process.
    ///
    /// # Errors
    /// `Exists` if the directory has files; `PermissionDenied` if other users have access to it;
    /// those of files.
    pub fn create(path: &Path) -> Result<()> {
        const OPERATION: &str = "create the store";
        let dir = StoreDir { path: path.to_owned(), fd: open_private_dir(path, true, OPERATION)? };
        let files = dir.files()?;
        if let Some(other) = files.names()?.first() {
            let reason = format!("the directory has other files: {}", other.escape_ascii());
            return Err(Error {
                source: Some(reason.into()),
                ..Error::new(ErrorKind::Exists, OPERATION, dir.subject())
            });
        }
        for name in [TABLES, DATA, BATCHES] {
            files.make_dir(name.as_bytes(), 0o700)?;
        }
        let keys = dir.open_keys()?;
        let owner = rustix::process::geteuid().as_raw();
        let root = NewEntry { permissions: 0o755, uid: owner, gid: rustix::process::getegid().as_raw() };
        Image::create(&keys, random_number(), root, now())?;
        keys.close()?;
        // The file `format` marks the store as complete.
        let format = files.create_file(b"format.new", 0o600)?;
        format.write_at(FORMAT, 0)?;
        format.sync()?;
        files.rename(b"format.new", &files, b"format", Rename::Replace)?;
        WritableDir::sync(&files)
    }

    /// Opens a store. While another process has it open, this waits, at most for `wait`.
    ///
    /// # Errors
    /// `NotFound` if there is no store; `Busy` if another process has it open; `PermissionDenied`
    /// if it belongs to another user; `Damaged`; those of files.
    pub fn open(path: &Path, wait: Duration) -> Result<BatchStore> {
        BatchStore::open_dir(StoreDir::open(path)?, wait)
    }

    fn open_dir(dir: StoreDir, wait: Duration) -> Result<BatchStore> {
        dir.check_format()?;
        let keys = dir.open_keys_within(wait)?;
        BatchStore::with_keys(dir, keys)
    }

    pub(crate) fn with_keys(dir: StoreDir, keys: DiskStore) -> Result<BatchStore> {
        let tables = Arc::new(TableDir::new(dir.open_dir(TABLES)?));
        let primary = Primary::open(Arc::new(keys), tables)?;
        Ok(BatchStore { primary, dir })
    }

    /// Returns the primary server, which has the master image.
    pub fn primary(&self) -> &Primary {
        &self.primary
    }

    /// Returns the directory with the data files.
    pub(crate) fn data_dir(&self) -> Result<Arc<dyn WritableDir>> {
        self.dir.data()
    }

    /// Returns the directory with the directories of batches.
    pub(crate) fn batches_dir(&self) -> Result<PosixDir> {
        Ok(PosixDir::of_descriptor(self.dir.open_dir(BATCHES)?))
    }

    /// Returns the directory of the tables.
    pub(crate) fn tables_dir(&self) -> Result<PosixDir> {
        Ok(PosixDir::of_descriptor(self.dir.tables()?))
    }

    /// Reads the certificate of a batch and opens its tables. `None` if it has none.
    pub(crate) fn certificate(&self, number: u64) -> Result<Option<(Certificate, TableDir)>> {
        let batch = match self.dir.batch(number) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            batch => batch?,
        };
        match batch.certificate() {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            certificate => Ok(Some((certificate?, batch.tables))),
        }
    }

    /// Removes the files that a batch which has ended has left in its directory.
    pub(crate) fn remove_files_of_batch(&self, number: u64) -> Result<()> {
        let _lock = self.dir.lock_batch(number)?;
        self.dir.remove_batch(number)
    }

    /// Returns the path of a directory of the master image, which begins with a slash unless it is
    /// the root directory, whose path is empty.
    ///
    /// # Errors
    /// `Stale` if the directory was removed.
    pub fn path_of(&self, dir: u64) -> Result<Vec<u8>> {
        let names = self.primary.name_space();
        let (mut path, mut dir) = (Vec::new(), dir);
        while dir != ROOT {
            let (above, name) = names.parent(dir)?;
            path.splice(0..0, [b"/", &name[..]].concat());
            dir = above;
        }
        Ok(path)
    }

    /// Returns the tree below the directory at `path` of the master image as a file system. It must
    /// not be used after the store is dropped.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` if there is no such directory; those of files.
    pub fn file_system(&self, path: &[u8]) -> Result<BatchFs> {
        let top = self.dir_at(path)?;
        Ok(BatchFs::new(tree_below(self.primary.name_space(), top), self.dir.data()?, 0))
    }

    /// Begins a batch of the user of this process in the tree below the directory at `path`, and
    /// closes the store.
    ///
    /// # Errors
    /// `Busy` if another open batch changes a part of this tree, or a tree that contains it;
    /// `NotFound` or `NotADirectory` if there is no such directory; those of files.
    pub fn begin(self, path: &[u8], name: &str, is_atomic: bool) -> Result<OpenBatch> {
        let subtree = self.dir_at(path)?;
        let new = NewBatch { name: name.to_owned(), caller: caller()?, subtree, is_atomic };
        let record = self.primary.begin(new)?;
        let batches = PosixDir::of_descriptor(self.dir.open_dir(BATCHES)?);
        batches.make_dir(record.number.to_string().as_bytes(), 0o700)?;
        let tables = Arc::new(TableDir::new(self.dir.open_dir(&format!("{BATCHES}/{}", record.number))?));
        let names = Arc::new(RwLock::new(self.primary.private(&record, tables.clone(), MEMORY_BYTES)?));
        let fs = Arc::new(BatchFs::new(tree_below(names.clone(), subtree), self.dir.data()?, record.number));
        let store_number = self.primary.store_number();
        let lock = self.dir.lock_batch(record.number)?;
        let attempts = AtomicU64::new(0);
        Ok(OpenBatch { dir: self.dir, store_number, record, names, tables, fs, attempts, _lock: lock })
    }

    /// Returns the inode number of the directory at a path of the master image.
    pub(crate) fn dir_at(&self, path: &[u8]) -> Result<u64> {
        let names = self.primary.name_space();
        let mut dir = ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            let failed = |kind| Error::new(kind, "find the directory in the store", path);
            let found = names.lookup(dir, name)?.ok_or_else(|| failed(ErrorKind::NotFound))?;
            if found.inode.kind()? != Kind::Dir {
                return Err(failed(ErrorKind::NotADirectory));
            }
            dir = found.inode.number;
        }
        Ok(dir)
    }

    /// Returns the length of the part of a path that names an existing directory of the master
    /// image.
    ///
    /// # Errors
    /// Those of files.
    pub fn existing_part(&self, path: &[u8]) -> Result<usize> {
        let names = self.primary.name_space();
        let (mut dir, mut at) = (ROOT, 0);
        for name in path.split(|byte| *byte == b'/') {
            if !name.is_empty() && name != b"." {
                match names.lookup(dir, name)? {
                    Some(found) if found.inode.kind()? == Kind::Dir => dir = found.inode.number,
                    _ => break,
                }
            }
            at += name.len() + 1;
        }
        Ok(at.min(path.len()))
    }

    /// Publishes a batch whose process has ended after it had written the certificate. A batch that
    /// is committed already is returned as it is.
    ///
    /// # Errors
    /// `Busy` if a process uses the batch; `NotFound` if there is no certificate: then the changes
    /// of the batch are lost, and it can be aborted; as for [`Primary::commit`].
    pub fn commit(&self, number: u64) -> Result<BatchRecord> {
        let _lock = self.dir.lock_batch(number)?;
        self.commit_locked(number)
    }

    fn commit_locked(&self, number: u64) -> Result<BatchRecord> {
        let record = self.record(number)?;
        if let BatchState::Committed { .. } = record.state {
            self.dir.remove_batch(number)?;
            return Ok(record);
        }
        let batch = self.dir.batch(number)?;
        let certificate = batch.certificate().map_err(|error| match error.kind {
            ErrorKind::NotFound => {
                let source = "its process ended before it had written its changes; abort it";
                Error {
                    source: Some(source.into()),
                    ..Error::new(ErrorKind::NotFound, "commit batch", number.to_string())
                }
            }
            _ => error,
        })?;
        let record = self.primary.commit(number, &certificate, &batch.tables)?;
        // The batch is committed, also if files of it remain: a later `commit` removes them.
        let _ = self.dir.remove_batch(number);
        Ok(record)
    }

    /// Discards a batch that no process uses any more.
    ///
    /// # Errors
    /// `Busy` if a process uses it; `NotFound`; `InvalidInput` if the batch is not open; those of
    /// files.
    pub fn abort(&self, number: u64) -> Result<BatchRecord> {
        self.record(number)?;
        let _lock = self.dir.lock_batch(number)?;
        let record = self.primary.abort(number)?;
        self.dir.remove_batch(number)?;
        Ok(record)
    }

    /// Returns the record of a batch.
    fn record(&self, number: u64) -> Result<BatchRecord> {
        let found = self.primary.batches()?.into_iter().find(|record| record.number == number);
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, "find batch", number.to_string()))
    }
}

impl OpenBatch {
    /// Returns the private name space as a file system.
    pub fn file_system(&self) -> Arc<BatchFs> {
        self.fs.clone()
    }

    /// Returns the record of the batch as it was at its beginning.
    pub fn record(&self) -> &BatchRecord {
        &self.record
    }

    /// Publishes the changes of the batch. While another process has the store open, this waits, at
    /// most for `wait`. After an error it can be repeated. The file system is not used afterwards.
    ///
    /// # Errors
    /// As for [`Primary::commit`] and [`BatchStore::open`].
    pub fn commit(&self, wait: Duration) -> Result<BatchRecord> {
        let ended = self.fs.end();
        self.submit()?;
        let record = self.open_store(wait)?.commit_locked(self.record.number)?;
        // The other files are committed, and the error is returned then.
        ended.map(|()| record)
    }

    /// Writes the changes and their certificate, so that [`BatchStore::commit`] can publish them
    /// also after the end of this process. The file system is not used afterwards.
    ///
    /// # Errors
    /// Those of files. It can be repeated.
    pub fn prepare(&self) -> Result<()> {
        self.fs.end()?;
        self.submit()
    }

    fn submit(&self) -> Result<()> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let names = read_lock(&self.names);
        let certificate = names.0.submit(self.store_number, &self.record, &*self.tables, attempt)?;
        drop(names);
        self.dir.sync_data(self.record.number)?;
        // From here on another process can commit the batch if this one ends.
        let files = self.dir.batch(self.record.number)?.files;
        remove_if_present(&files, NEW_CERTIFICATE)?;
        let file = files.create_file(NEW_CERTIFICATE, 0o600)?;
        file.write_at(&certificate.encode(), 0)?;
        file.sync()?;
        files.rename(NEW_CERTIFICATE, &files, CERTIFICATE, Rename::Replace)?;
        WritableDir::sync(&files)
    }

    /// Discards the changes of the batch.
    ///
    /// # Errors
    /// As for [`BatchStore::open`].
    pub fn abort(&self, wait: Duration) -> Result<BatchRecord> {
        let store = self.open_store(wait)?;
        let record = store.primary.abort(self.record.number)?;
        store.dir.remove_batch(self.record.number)?;
        Ok(record)
    }

    fn open_store(&self, wait: Duration) -> Result<BatchStore> {
        let dir = StoreDir { path: self.dir.path.clone(), fd: self.dir.open_dir(".")? };
        BatchStore::open_dir(dir, wait)
    }
}

impl StoreDir {
    /// Opens a directory that belongs to the caller alone.
    pub(crate) fn open(path: &Path) -> Result<StoreDir> {
        Ok(StoreDir { path: path.to_owned(), fd: open_private_dir(path, false, "open the store")? })
    }

    pub(crate) fn subject(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    /// Returns the directory itself, with the operations on its files.
    pub(crate) fn files(&self) -> Result<PosixDir> {
        Ok(PosixDir::of_descriptor(self.open_dir(".")?))
    }

    fn data(&self) -> Result<Arc<dyn WritableDir>> {
        Ok(Arc::new(PosixDir::of_descriptor(self.open_dir(DATA)?)))
    }

    fn open_dir(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.fd, name, flags, Mode::empty())
            .map_err(|error| Error::from_io(error.into(), "open the store", self.subject()))
    }

    /// Returns the directory of the tables.
    pub(crate) fn tables(&self) -> Result<OwnedFd> {
        self.open_dir(TABLES)
    }

    /// Opens the key-value store. While another process has it open, this waits, at most for
    /// `wait`.
    pub(crate) fn open_keys_within(&self, wait: Duration) -> Result<DiskStore> {
        let end = Instant::now() + wait;
        loop {
            match self.open_keys() {
                Err(error) if error.kind == ErrorKind::Busy && Instant::now() < end => {
                    std::thread::sleep(RETRY)
                }
                opened => return opened,
            }
        }
    }

    pub(crate) fn open_keys(&self) -> Result<DiskStore> {
        let options =
            DiskOptions { cache_bytes: CACHE_BYTES, durability: Durability::Process, ..Default::default() };
        // All names are looked up from the descriptor, so the path may change meanwhile.
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd())).join(KEYS);
        DiskStore::open(&path, &options).map_err(|error| match error.kind {
            ErrorKind::Busy => {
                let source = Some("another process has it open".into());
                Error { source, ..Error::new(ErrorKind::Busy, "open the store", self.subject()) }
            }
            _ => Error { subject: self.subject().to_vec(), ..error },
        })
    }

    pub(crate) fn check_format(&self) -> Result<()> {
        let refuse = |kind, reason: &str| {
            let source = Some(reason.to_owned().into());
            Err(Error { source, ..Error::new(kind, "open the store", self.subject()) })
        };
        let file = match self.files()?.open_file(b"format") {
            Ok(file) => file,
            Err(error) if error.kind == ErrorKind::NotFound => {
                return refuse(
                    ErrorKind::NotFound,
                    "there is no store for batches in this directory; create one: quell batch init DIR",
                );
            }
            Err(error) => return Err(error),
        };
        let mut content = [0; FORMAT.len() + 1];
        let length = file.read_at(&mut content, 0)?;
        match &content[..length] == FORMAT {
            true => Ok(()),
            false => refuse(ErrorKind::Damaged, "its file `format` is not that of a store of this version"),
        }
    }

    /// Makes the data files of a batch survive a power failure, if it has any.
    fn sync_data(&self, number: u64) -> Result<()> {
        match self.open_dir(&format!("{DATA}/{number}")) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            opened => syncfs(opened?)
                .map_err(|error| Error::from_io(error.into(), "synchronize the data of", self.subject())),
        }
    }

    /// Locks the directory of a batch, until the descriptor is closed.
    ///
    /// # Errors
    /// `Busy` if a process uses the batch.
    fn lock_batch(&self, number: u64) -> Result<OwnedFd> {
        let dir = match self.open_dir(&format!("{BATCHES}/{number}")) {
            // Its files were removed already.
            Err(error) if error.kind == ErrorKind::NotFound => self.open_dir(".")?,
            opened => opened?,
        };
        match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(dir),
            Err(Errno::WOULDBLOCK) => {
                let source = Some("a process uses it".into());
                Err(Error { source, ..Error::new(ErrorKind::Busy, "use batch", number.to_string()) })
            }
            Err(error) => Err(Error::from_io(error.into(), "lock batch", number.to_string())),
        }
    }

    /// Returns the directory of a batch.
    fn batch(&self, number: u64) -> Result<BatchDir> {
        let open = || self.open_dir(&format!("{BATCHES}/{number}"));
        Ok(BatchDir { files: PosixDir::of_descriptor(open()?), tables: TableDir::new(open()?) })
    }

    /// Removes the files that a batch has written for itself.
    fn remove_batch(&self, number: u64) -> Result<()> {
        let batch = match self.batch(number) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        batch.tables.list()?.into_iter().try_for_each(|table| batch.tables.remove(table))?;
        remove_if_present(&batch.files, CERTIFICATE)?;
        remove_if_present(&batch.files, NEW_CERTIFICATE)?;
        let batches = PosixDir::of_descriptor(self.open_dir(BATCHES)?);
        batches.remove_dir(number.to_string().as_bytes())
    }
}

/// The directory of a batch, with the operations on its tables and on its other files.
struct BatchDir {
    files: PosixDir,
    tables: TableDir,
}

impl BatchDir {
    /// Reads the certificate. Errors: `NotFound` if there is none.
    fn certificate(&self) -> Result<Certificate> {
        let file = self.files.open_file(CERTIFICATE)?;
        let mut bytes = vec![0; CERTIFICATE_BYTES_MAX + 1];
        let length = file.read_at(&mut bytes, 0)?;
        Certificate::decode(&bytes[..length])
    }
}

fn remove_if_present(dir: &PosixDir, name: &[u8]) -> Result<()> {
    match dir.remove(name) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Divides a path into that of a store and that of a directory in its name space: the store is the
/// last directory on the path that is one. Without a store, the whole path is returned.
pub fn split_path(path: &Path) -> (&Path, &Path) {
    for above in path.ancestors() {
        let is_store = std::fs::symlink_metadata(above.join("format")).is_ok_and(|found| found.is_file());
        if is_store && let Ok(below) = path.strip_prefix(above) {
            return (above, below);
        }
    }
    (path, Path::new(""))
}

/// Returns the tree below a directory of a name space.
fn tree_below(whole: Arc<dyn NameSpace>, top: u64) -> Arc<dyn NameSpace> {
    match top {
        ROOT => whole,
        top => Arc::new(Subtree::new(whole, top)),
    }
}

/// Returns the user of this process.
fn caller() -> Result<BatchCaller> {
    let failed =
        |error: rustix::io::Errno| Error::from_io(error.into(), "find the groups of", "this process");
    let groups = rustix::process::getgroups().map_err(failed)?.iter().map(|gid| gid.as_raw()).collect();
    let uid = rustix::process::geteuid().as_raw();
    Ok(BatchCaller { uid, gid: rustix::process::getegid().as_raw(), groups })
}

fn random_number() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half = || u128::from(RandomState::new().hash_one(std::process::id()));
    half() << 64 | half()
}
