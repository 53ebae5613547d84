//! A store in a directory or on a server, and its snapshots.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quell_blob_service::BlobStat;
use quell_rados::{Objects, read_groups};
use quell_transport::peer::ClientKey;
use quell_vfs::{Error, ErrorKind};
use quell_wire::blob::{
    Committed, Operation, PROTOCOL, StoreCounters, Transaction as WireTransaction, Transform, Version,
};

use crate::backend::{Backend, TransactionState};
use crate::directory;
use crate::embedded::Embedded;
use crate::error::Result;
use crate::finder::Finder;
use crate::future::CommitFuture;
use crate::grouped::Grouped;
use crate::location::{self, Location};
use crate::rados::{NAME, open_pool};
use crate::remote::Remote;
use crate::retries::Retries;
use crate::transaction::Transaction;

/// The largest number of bytes of a read that is submitted.
pub const SUBMITTED_READ_BYTES_MAX: usize = 64 << 20;

/// A store of blobs. Any number of threads may use it. A clone refers to the same store.
///
/// A method that changes one blob is a separate transaction, which never conflicts with others.
#[derive(Clone)]
pub struct Store {
    backend: Arc<dyn Backend>,
    location: Location,
}

impl Store {
    /// Opens the store at a location: see [`Location`]. If a server has the directory open, the
    /// program becomes a client of the server. A directory that does not exist is created, with
    /// mode 0700. Commits survive a power failure.
    ///
    /// # Errors
    /// `Busy` if another process has the store open and is not a server, or if the directory
    /// belongs to a server of a store in RADOS that does not run; `Unavailable` if no server
    /// answers; `NotFound` if a pool of RADOS has no store; `PermissionDenied` if the directory
    /// belongs to another user, or has any permission for group and others; `Exists` if it has
    /// files that do not belong to a store; `Damaged` if the store does not have its format.
    pub fn open(location: &str) -> Result<Store> {
        Store::open_location(location, true)
    }

    /// Opens the store at a location as [`open`](Store::open) does, but never creates a store.
    ///
    /// # Errors
    /// `NotFound` if there is no store; the errors of [`open`](Store::open).
    pub fn open_existing(location: &str) -> Result<Store> {
        Store::open_location(location, false)
    }

    fn open_location(location: &str, may_create: bool) -> Result<Store> {
        let location: Location = location.parse()?;
        let backend: Arc<dyn Backend> = match &location {
            Location::Directory(path) => match directory::open(path, may_create) {
                Err(busy) if busy.kind == ErrorKind::Busy => match directory::connect(path) {
                    Ok(remote) => Arc::new(remote),
                    Err(_) => return Err(busy.into()),
                },
                opened => Arc::new(Embedded::new(opened?)),
            },
            Location::Socket(path) => Arc::new(Remote::by_socket(path.clone(), None)?),
            Location::Server { address, key, is_encrypted } => {
                let key = ClientKey::read(key)?;
                Arc::new(Remote::by_tcp(location::resolve(address)?, key, *is_encrypted)?)
            }
            Location::Rados { pool, key, is_encrypted } => {
                let Some(key) = key else { return Err(location::no_key(&location.to_string()).into()) };
                open_rados(pool, ClientKey::read(key)?, *is_encrypted)?
            }
        };
        Ok(Store { backend, location })
    }

    /// Returns the location.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns whether a server has the store open, and not this process.
    pub fn is_remote(&self) -> bool {
        self.backend.is_remote()
    }

    /// Returns the number of groups of servers among which the blobs are divided: 1, unless the
    /// store is in RADOS and was created with several groups. With several groups, a rename fails
    /// with `Unsupported` if the new name belongs to another group.
    pub fn groups(&self) -> u32 {
        self.backend.groups()
    }

    /// Returns the number of the group of servers that has the blob of a name: from 0, and less
    /// than [`groups`](Store::groups).
    pub fn group_of(&self, name: impl AsRef<[u8]>) -> u32 {
        quell_wire::blob::group_of(name.as_ref(), self.groups())
    }

    /// Begins a transaction, which reads the latest state.
    ///
    /// # Errors
    /// The errors of the connection to a server.
    pub fn begin(&self) -> Result<Transaction> {
        Ok(Transaction::new(self.backend.clone(), self.backend.begin()?))
    }

    /// Begins a snapshot of the latest state.
    ///
    /// # Errors
    /// The errors of the connection to a server.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot { state: self.backend.begin()? })
    }

    /// Runs `body` with a transaction and commits it, and repeats both after a conflict.
    ///
    /// # Errors
    /// The first error of `body` or of the commit for which [`Error::is_repeatable`] returns false;
    /// after [`Retries::attempts_max`] attempts, the error of the last attempt.
    ///
    /// [`Error::is_repeatable`]: crate::Error::is_repeatable
    pub fn transact<T>(
        &self,
        retries: &Retries,
        mut body: impl FnMut(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        retries.repeat(|| {
            let mut transaction = self.begin()?;
            let value = body(&mut transaction)?;
            transaction.commit()?;
            Ok(value)
        })
    }

    /// Commits operations that do not depend on reads.
    ///
    /// # Errors
    /// The reason for which the operations were refused: see [`Refusal`](crate::Refusal).
    pub fn commit(&self, operations: Vec<Operation>) -> Result<Committed> {
        Ok(self.backend.commit(WireTransaction { operations, ..WireTransaction::default() })?)
    }

    /// Commits operations as [`commit`](Store::commit) does, without waiting: `done` receives the
    /// result on another thread, and must not block. Data of 32 KiB and more is written before the
    /// call returns.
    pub fn submit(&self, operations: Vec<Operation>, done: impl FnOnce(Result<Committed>) + Send + 'static) {
        let commit = WireTransaction { operations, ..WireTransaction::default() };
        self.backend.submit(commit, Box::new(|result| done(result.map_err(Into::into))));
    }

    /// Commits operations as [`submit`](Store::submit) does, and returns a future of the result.
    /// The commit proceeds even if the future is not polled.
    pub fn commit_async(&self, operations: Vec<Operation>) -> CommitFuture {
        let (completion, future) = CommitFuture::pair();
        self.submit(operations, move |result| completion.complete(result));
        future
    }

    /// Creates an empty blob.
    ///
    /// # Errors
    /// `Exists` if there is a blob of this name.
    pub fn create(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.change(Operation::Create { name: name.as_ref().to_vec(), may_exist: false })
    }

    /// Deletes a blob.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name.
    pub fn delete(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.change(Operation::Delete { name: name.as_ref().to_vec() })
    }

    /// Gives a blob another name, without a copy of its content.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name; `Exists` if there is a blob of the other name.
    pub fn rename(&self, name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.change(Operation::Rename { name: name.as_ref().to_vec(), to: to.as_ref().to_vec() })
    }

    /// Writes bytes of a blob. A blob that ends before `offset` is extended with zeros.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name.
    pub fn write(&self, name: impl AsRef<[u8]>, offset: u64, data: &[u8]) -> Result<()> {
        self.change(Operation::Write { name: name.as_ref().to_vec(), offset, data: data.to_vec() })
    }

    /// Writes bytes at the end of a blob, and returns their offset.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name.
    pub fn append(&self, name: impl AsRef<[u8]>, data: &[u8]) -> Result<u64> {
        let operation = Operation::Append { name: name.as_ref().to_vec(), data: data.to_vec() };
        let committed = self.commit(vec![operation])?;
        match committed.results.first() {
            Some(crate::OperationResult::Appended(offset)) => Ok(*offset),
            _ => Err(crate::transaction::wrong_result().into()),
        }
    }

    /// Sets the size of a blob.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name.
    pub fn resize(&self, name: impl AsRef<[u8]>, size_bytes: u64) -> Result<()> {
        self.change(Operation::Resize { name: name.as_ref().to_vec(), size_bytes })
    }

    /// Replaces numbers in a blob, in one commit and without reading them.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name; `InvalidInput` for a transform that is not
    /// defined, and for a result outside the range of the type with `Overflow::Check`; `Conflict`
    /// if a compare-and-set found another number.
    pub fn transform(&self, name: impl AsRef<[u8]>, offset: u64, transform: Transform) -> Result<()> {
        self.change(Operation::Transform { name: name.as_ref().to_vec(), offset, transform })
    }

    fn change(&self, operation: Operation) -> Result<()> {
        self.commit(vec![operation]).map(|_| ())
    }

    /// Reads bytes of the latest state of a blob, and returns their number. The number is less than
    /// requested only at the end of the blob.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name; `Damaged` if data does not have its checksum.
    pub fn read(&self, name: impl AsRef<[u8]>, offset: u64, into: &mut [u8]) -> Result<usize> {
        Ok(self.backend.latest()?.read(name.as_ref(), offset, into)?)
    }

    /// Reads bytes as [`read`](Store::read) does, without waiting: `done` receives them on another
    /// thread, and must neither block nor panic. At most [`SUBMITTED_READ_BYTES_MAX`] can be
    /// requested.
    pub fn submit_read(
        &self,
        name: impl AsRef<[u8]>,
        offset: u64,
        length_bytes: usize,
        done: impl FnOnce(Result<Vec<u8>>) + Send + 'static,
    ) {
        let name = name.as_ref();
        if length_bytes > SUBMITTED_READ_BYTES_MAX {
            let source = Some("a submitted read has at most 64 MiB".into());
            let error = Error { source, ..Error::new(ErrorKind::InvalidInput, "read", name) };
            return done(Err(error.into()));
        }
        let done = Box::new(|result: quell_vfs::Result<_>| done(result.map_err(Into::into)));
        self.backend.submit_read(name.to_vec(), offset, length_bytes, done);
    }

    /// Returns the attributes of a blob, or `None` if there is no blob of this name.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn stat(&self, name: impl AsRef<[u8]>) -> Result<Option<BlobStat>> {
        Ok(self.backend.latest()?.stat(name.as_ref())?)
    }

    /// Removes all data that neither the latest state nor a snapshot needs. Commits also remove
    /// such data, after some of it has accumulated.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn collect(&self) -> Result<()> {
        Ok(self.backend.collect()?)
    }

    /// Returns the counters of the server of the store. Waits at most for `limit`.
    ///
    /// # Errors
    /// `Unsupported` if this process has the store open itself; `PermissionDenied` if the key of
    /// the client does not give all rights; the errors of the connection.
    pub fn server_counters(&self, limit: Duration) -> Result<StoreCounters> {
        Ok(self.backend.server_counters(limit)?)
    }
}

/// Connects to the server of a store in RADOS, or to the servers of its groups.
fn open_rados(pool: &str, key: ClientKey, is_encrypted: bool) -> quell_vfs::Result<Arc<dyn Backend>> {
    let objects: Arc<dyn Objects> = Arc::new(open_pool(pool)?);
    match read_groups(&*objects, NAME)? {
        Some(groups) if groups > 1 => {
            Ok(Arc::new(Grouped::open(&objects, pool, groups, &key, is_encrypted)?))
        }
        _ => {
            let finder = Finder::new(objects, (pool, NAME), key, is_encrypted);
            Ok(Arc::new(Remote::by_rados(finder, PROTOCOL)?))
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("location", &self.location).finish_non_exhaustive()
    }
}

/// One state of a store: later commits do not change it. Reads never wait for commits.
///
/// All methods fail with `Stale` if later commits have changed so much that the store no longer
/// keeps the state, or if the server of the store was restarted.
pub struct Snapshot {
    state: Box<dyn TransactionState>,
}

impl Snapshot {
    /// Returns the version of the state.
    pub fn version(&self) -> Version {
        self.state.version()
    }

    /// Reads as [`Store::read`] does.
    ///
    /// # Errors
    /// As for [`Store::read`].
    pub fn read(&self, name: impl AsRef<[u8]>, offset: u64, into: &mut [u8]) -> Result<usize> {
        Ok(self.state.read(name.as_ref(), offset, into)?)
    }

    /// Returns the attributes of a blob, or `None` if there is no blob of this name.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn stat(&self, name: impl AsRef<[u8]>) -> Result<Option<BlobStat>> {
        Ok(self.state.stat(name.as_ref())?)
    }

    /// Returns the first position from `offset` on at which a blob has data. The bytes before it
    /// are zeros. `None` if there is no data up to the end.
    ///
    /// # Errors
    /// As for [`Store::read`].
    pub fn next_data(&self, name: impl AsRef<[u8]>, offset: u64) -> Result<Option<u64>> {
        Ok(self.state.next_data(name.as_ref(), offset)?)
    }

    /// Returns at most `limit` blobs whose names begin with `prefix` and are after `after`, in the
    /// order of their names. Pass the last name of one call as `after` to the next call.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn list(
        &self,
        prefix: impl AsRef<[u8]>,
        after: impl AsRef<[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, BlobStat)>> {
        Ok(self.state.list(prefix.as_ref(), after.as_ref(), limit)?)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("version", &self.version()).finish_non_exhaustive()
    }
}
