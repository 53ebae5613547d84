//! The store in a directory of a local disk.
//!
//! The engine (fjall, an LSM tree with a journal) has properties that this file works around;
//! docs/decisions/0019-key-value-store.md has the measurements:
//!
//! - The engine's thread blocks for ever if commits ask it for new write buffers faster than it
//!   flushes them. So commits in the engine never ask: [`DiskStore::start_flush`] asks, when the
//!   write buffer is full, and only while the engine has no backlog. The engine's own waits, which
//!   have no end if its thread has ended, are never reached: they begin at [`BACKLOG_MAX`] + 2
//!   buffers and [`LEVEL_0_TABLES_MAX`] + 8 tables.
//! - The engine compacts once after each flush, and at no other time. If it cannot keep up, the
//!   commit that would start the next flush compacts.
//! - A snapshot that is taken during a commit can contain a part of the batch, if a flush or a
//!   compaction ends at that time. So a scan takes its snapshot between commits.
//! - A write that fails ends all writes until the store is opened again. So a full disk is noticed
//!   before a write ([`space`]).
//! - The order of two operations on one key in one batch is not defined. So each key is passed
//!   once.

mod directory;
mod engine_error;
mod recent;
mod space;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use fjall::config::{HashRatioPolicy, RestartIntervalPolicy};
use fjall::{
    AbstractTree, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable,
};
use quell_vfs::{Error, ErrorKind, Result, errno};

use crate::{Batch, KEY_BYTES_MAX, KeyRange, KeyValue, Value};
use directory::Directory;
use engine_error::kind_of;
use recent::Recent;
use space::{Ballast, Space};

/// Number of full write buffers that may wait for the engine's thread.
const BACKLOG_MAX: usize = 2;
/// Number of tables that may wait for the first compaction.
const LEVEL_0_TABLES_MAX: usize = 12;
/// Time between two examinations of a backlog.
const BACKLOG_POLL: Duration = Duration::from_millis(1);
/// Smallest write buffer, in bytes.
const WRITE_BUFFER_BYTES_MIN: u64 = 64 << 10;
/// Number of descriptors that the engine keeps for tables. Two more are for the lock and the
/// journal.
const OPEN_TABLES: usize = 64;
/// The engine's smallest limit of the size of all journals, in bytes. It writes a new journal after
/// 64 MB.
const JOURNAL_BYTES: u64 = 64 << 20;
/// Name of the engine's only tree.
const TREE: &str = "entries";

/// The step after which a commit returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// write(2): the data survives the end of the process, but not a power failure.
    Process,
    /// fdatasync(2) of each commit: the data also survives a power failure.
    Power,
}

/// The options of a [`DiskStore`].
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// Size of the cache of table blocks, in bytes. Memory is used only for blocks that were read.
    pub cache_bytes: u64,
    /// Size of a write buffer, in bytes; at least 64 KiB are used. There are up to four of them,
    /// two of which wait for a flush. Memory is used only for entries that were written.
    pub write_buffer_bytes: u64,
    /// Free space of the file system, in bytes, below which commits return `NoSpace` instead of
    /// writing. Commits that contain a delete, and those with [`Batch::allow_reserve`], may use it
    /// up to the last 4 MiB, or up to a half of a smaller reserve.
    pub reserve_bytes: u64,
    /// Size of a file that occupies space until a commit that may use the reserve needs it; 0 for
    /// no file. With at least 8 MiB, entries can be deleted on a disk that other writers have
    /// filled to the last byte.
    pub ballast_bytes: u64,
    /// The step after which a commit returns.
    pub durability: Durability,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            cache_bytes: 16 << 20,
            write_buffer_bytes: 16 << 20,
            reserve_bytes: 128 << 20,
            ballast_bytes: 0,
            durability: Durability::Process,
        }
    }
}

/// A store in a directory of a local disk. The engine has one thread, which flushes write buffers
/// and compacts tables.
///
/// **A full disk.** If the file system has less free space than
/// [`reserve_bytes`](DiskOptions::reserve_bytes), a commit returns `NoSpace` and has written
/// nothing. The store continues to work, and accepts commits again as soon as there is more space.
/// The free space is examined after each 256 KiB of commits, and before each commit while it is
/// small. If [`ballast_bytes`](DiskOptions::ballast_bytes) is set, it is examined after 5 ms, too,
/// and a commit that may use the reserve is also possible after other writers have used up the free
/// space, once until there is more again. If other writers use up the reserve, or a quota or an I/O
/// error stops a write of a commit or of the background work, then the store has failed: see
/// [`KeyValue`].
///
/// **Waiting.** A commit waits while two full write buffers have not reached the disk, and while
/// the engine synchronizes its journal before a flush.
///
/// **Memory.** Besides the write buffers and the cache of blocks, the store keeps the 65,536
/// entries of at most 512 bytes that were committed or read last.
pub struct DiskStore {
    // The order of the fields is the order in which they are dropped: the lock is released last.
    entries: Keyspace,
    database: Database,
    directory: Directory,
    durability: PersistMode,
    write_buffer_bytes: u64,
    /// Size of the commits since the last start of a flush, in bytes.
    buffered_bytes: AtomicU64,
    /// Held while a flush is started.
    flushing: Mutex<()>,
    /// Held by a commit in the engine, and while a scan takes its snapshot.
    commits: Mutex<()>,
    recent: Recent,
    space: Space,
    /// The kind of the first failed write.
    failed: OnceLock<ErrorKind>,
}

impl DiskStore {
    /// Opens the store in a directory, or creates one if the directory does not exist or is empty.
    /// A directory that is created has mode 0700.
    ///
    /// # Errors
    /// `Busy` at once if the store is open, in this or another process; `Exists` if the directory
    /// has other files; `Damaged` if the store does not have its format; the errors of open(2),
    /// mkdir(2), read(2) and write(2).
    ///
    /// # Panics
    /// The process aborts for some damaged lists of tables: the engine panics, and its destructor
    /// panics again while the first panic is handled.
    pub fn open(path: &Path, options: &DiskOptions) -> Result<DiskStore> {
        let directory = Directory::lock(path)?;
        // The engine panics for some damaged files. If its destructor does not panic as well, the
        // panic ends here.
        let opened = catch_unwind(AssertUnwindSafe(|| open_engine(&directory, options)));
        let (database, entries) = match opened {
            Ok(opened) => opened.map_err(|cause| {
                let mut error = engine_error(cause, "open", path);
                // The directory exists, so one of the engine's own files is missing.
                if let ErrorKind::NotFound | ErrorKind::Exists = error.kind {
                    error.kind = ErrorKind::Damaged;
                }
                error
            })?,
            Err(_) => return Err(Error::new(ErrorKind::Damaged, "open", path.as_os_str().as_bytes())),
        };
        directory.mark_complete()?;
        let write_buffer_bytes = options.write_buffer_bytes.max(WRITE_BUFFER_BYTES_MIN);
        // Unflushed data of the last process may be a backlog, which the first commit examines.
        let buffered_bytes = match entries.sealed_memtable_count() {
            0 => 0,
            _ => write_buffer_bytes * 2,
        };
        let ballast = match options.ballast_bytes {
            0 => None,
            bytes => {
                let opened = Ballast::open(&directory.ballast(), bytes);
                let failed = |cause| Error::from_io(cause, "open", path.as_os_str().as_bytes());
                Some(opened.map_err(failed)?)
            }
        };
        Ok(DiskStore {
            entries,
            database,
            durability: match options.durability {
                Durability::Process => PersistMode::Buffer,
                Durability::Power => PersistMode::SyncData,
            },
            write_buffer_bytes,
            buffered_bytes: AtomicU64::new(buffered_bytes),
            flushing: Mutex::new(()),
            commits: Mutex::new(()),
            recent: Recent::new(),
            space: Space::new(options.reserve_bytes, ballast),
            failed: OnceLock::new(),
            directory,
        })
    }

    /// Waits until all commits survive a power failure, and closes the store. Without this call,
    /// dropping the store closes it, and no commit is lost unless the power fails.
    ///
    /// # Errors
    /// As for [`KeyValue::sync`]. The store is closed in any case.
    pub fn close(self) -> Result<()> {
        self.sync()
    }

    /// Returns the error of the first failed write, if there was one.
    fn check_failed(&self, operation: &'static str) -> Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some(kind) => {
                let source = Some("an earlier write failed; close the store, and open it again".into());
                Err(Error { source, ..Error::new(*kind, operation, self.subject()) })
            }
        }
    }

    /// Marks the store as failed, and returns the error.
    fn fail(&self, cause: fjall::Error, operation: &'static str) -> Error {
        let mut error = engine_error(cause, operation, self.directory.path());
        if let Some(fjall::Error::Poisoned) = error.source.as_ref().and_then(|cause| cause.downcast_ref()) {
            // The engine's thread failed, and does not report the cause.
            let is_full = self.space.is_used_up(self.directory.path()).unwrap_or(false);
            error.kind = if is_full { ErrorKind::NoSpace } else { ErrorKind::Os(errno::EIO) };
        }
        error.kind = *self.failed.get_or_init(|| error.kind);
        error
    }

    /// Waits until the write buffer has space, unless the engine has failed.
    fn wait_for_buffer(&self) -> Result<()> {
        while self.buffered_bytes.load(Ordering::Relaxed) >= 2 * self.write_buffer_bytes {
            self.start_flush()?;
            if self.buffered_bytes.load(Ordering::Relaxed) < 2 * self.write_buffer_bytes {
                break;
            }
            // This only writes the journal's buffer, which is empty, and fails if the
            // engine's thread has failed.
            self.database.persist(PersistMode::Buffer).map_err(|cause| self.fail(cause, "commit"))?;
            std::thread::sleep(BACKLOG_POLL);
        }
        Ok(())
    }

    /// Passes the write buffer to the engine's thread, unless this thread has a backlog or another
    /// caller is passing the buffer. Compacts if there are too many tables and the engine's thread
    /// has no work.
    fn start_flush(&self) -> Result<()> {
        let _turn = match self.flushing.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
        };
        let bytes = self.buffered_bytes.load(Ordering::Relaxed);
        let waiting = self.entries.sealed_memtable_count();
        if self.entries.l0_table_count() >= LEVEL_0_TABLES_MAX {
            if waiting == 0 && self.database.active_compactions() == 0 {
                let strategy = self.entries.config.compaction_strategy.clone();
                // A scan may need any version of an entry.
                let oldest_scan = 0;
                let compacted = self.entries.tree.compact(strategy, oldest_scan);
                compacted.map_err(|cause| self.fail(cause.into(), "commit"))?;
            }
        } else if bytes >= self.write_buffer_bytes && waiting < BACKLOG_MAX {
            self.entries.rotate_memtable().map_err(|cause| self.fail(cause, "commit"))?;
            self.buffered_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn subject(&self) -> &[u8] {
        self.directory.path().as_os_str().as_bytes()
    }
}

fn open_engine(directory: &Directory, options: &DiskOptions) -> fjall::Result<(Database, Keyspace)> {
    let database = Database::builder(directory.engine())
        .cache_size(options.cache_bytes)
        .worker_threads(1)
        .max_cached_files(Some(OPEN_TABLES))
        .max_journaling_size(JOURNAL_BYTES)
        .open()?;
    // The engine removes a tree whose list of tables is missing, as if its creation had been
    // interrupted.
    if directory.is_complete() && !database.keyspace_exists(TREE) {
        return Err(fjall::Error::Unrecoverable);
    }
    let entries = database.keyspace(TREE, tree_options)?;
    Ok((database, entries))
}

/// Returns the options of the engine's tree. They are stored in it when it is created.
fn tree_options() -> KeyspaceCreateOptions {
    // The engine itself never starts a flush.
    let mut options = KeyspaceCreateOptions::default().max_memtable_size(u64::MAX);
    options.data_block_hash_ratio_policy = HashRatioPolicy::all(1.0);
    options.data_block_restart_interval_policy = RestartIntervalPolicy::all(10);
    options
}

fn engine_error(cause: fjall::Error, operation: &'static str, path: &Path) -> Error {
    let kind = kind_of(&cause);
    Error { source: Some(Box::new(cause)), ..Error::new(kind, operation, path.as_os_str().as_bytes()) }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path: PathBuf = self.directory.path().into();
        f.debug_struct("DiskStore").field("path", &path).field("failed", &self.failed.get()).finish()
    }
}

impl KeyValue for DiskStore {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        // The engine panics for keys that it cannot store.
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        let read = || {
            let value = self.entries.get(key);
            value.map_err(|cause| engine_error(cause, "get", self.directory.path()))
        };
        Ok(self.recent.get(key, read)?.map(Value))
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        batch.check(self.subject())?;
        if batch.is_empty() {
            return Ok(());
        }
        self.check_failed("commit")?;
        let bytes = batch.size_bytes();
        self.space.admit(self.directory.path(), bytes, batch.may_use_reserve())?;
        self.wait_for_buffer()?;
        let operations = batch.into_last_of_each_key();
        let mut engine_batch = OwnedWriteBatch::with_capacity(self.database.clone(), operations.len())
            .durability(Some(self.durability));
        let turn = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        self.recent.begin(&operations);
        let mut changed = Vec::with_capacity(operations.len());
        for operation in operations {
            changed.push((operation.key.clone(), operation.value.clone()));
            match operation.value {
                Some(value) => {
                    engine_batch.insert(&self.entries, operation.key, value);
                }
                None => engine_batch.remove(&self.entries, operation.key),
            }
        }
        engine_batch.commit().map_err(|cause| self.fail(cause, "commit"))?;
        self.recent.end(changed);
        drop(turn);
        let buffered = self.buffered_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // The commit is stored. If a flush cannot be started, the next commit returns the error.
        if buffered >= self.write_buffer_bytes {
            let _ = self.start_flush();
        }
        Ok(())
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let turn = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.database.snapshot();
        drop(turn);
        for entry in snapshot.range::<&[u8], _>(&self.entries, range.bounds()) {
            let entry = entry.into_inner();
            let (key, value) = entry.map_err(|cause| engine_error(cause, "scan", self.directory.path()))?;
            if !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.check_failed("sync")?;
        self.database.persist(PersistMode::SyncData).map_err(|cause| self.fail(cause, "sync"))
    }

    fn size_bytes(&self) -> Result<u64> {
        self.directory.size_bytes()
    }
}
