//! The interface of stores in this process and on a server.

use std::time::Duration;

use quell_blob_service::{BlobStat, CommitResult};
use quell_vfs::Result;
use quell_wire::blob::{Operation, OperationResult, Refusal, StoreCounters, Transaction, Version};

/// Receives the bytes of a read.
pub(crate) type ReadDone = Box<dyn FnOnce(Result<Vec<u8>>) + Send>;

/// A store in this process or on a server. Any number of threads may use it.
pub(crate) trait Backend: Send + Sync {
    /// Returns whether a server has the store open.
    fn is_remote(&self) -> bool;

    /// Returns the number of groups of servers.
    fn groups(&self) -> u32 {
        1
    }

    /// Begins a snapshot of the latest state.
    fn begin(&self) -> Result<Box<dyn TransactionState>>;

    /// Returns the latest state, for one read.
    fn latest(&self) -> Result<Box<dyn TransactionState>> {
        self.begin()
    }

    /// Commits a transaction.
    fn commit(&self, transaction: Transaction) -> CommitResult;

    /// Commits a transaction, and passes the result to `done`, in most cases on another thread.
    fn submit(&self, transaction: Transaction, done: Box<dyn FnOnce(CommitResult) + Send>);

    /// Commits a transaction as [`commit`](Backend::commit) does. `versions` are the versions of
    /// the state that the transaction has read.
    fn commit_at(&self, _versions: &[Version], transaction: Transaction) -> CommitResult {
        self.commit(transaction)
    }

    /// Commits a transaction as [`submit`](Backend::submit) does. `versions` are the versions of
    /// the state that the transaction has read.
    fn submit_at(
        &self,
        _versions: Vec<Version>,
        transaction: Transaction,
        done: Box<dyn FnOnce(CommitResult) + Send>,
    ) {
        self.submit(transaction, done);
    }

    /// Reads bytes of the latest state, and passes them to `done` on another thread.
    fn submit_read(&self, name: Vec<u8>, offset: u64, length_bytes: usize, done: ReadDone);

    /// Removes all data that no state needs.
    fn collect(&self) -> Result<()>;

    /// Returns the counters of the server. Waits at most for `limit`.
    fn server_counters(&self, limit: Duration) -> Result<StoreCounters>;
}

/// Reads bytes of a state into new memory.
pub(crate) fn read_bytes(
    state: &dyn TransactionState,
    name: &[u8],
    offset: u64,
    length_bytes: usize,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length_bytes];
    let count = state.read(name, offset, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// The state that a transaction or a single read sees: a snapshot or the latest state, and a draft.
pub(crate) trait TransactionState: Send + Sync {
    /// Returns the version of the state without the draft.
    fn version(&self) -> Version;

    /// Returns the versions of the groups of servers, if there are several.
    fn versions(&self) -> Vec<Version> {
        Vec::new()
    }

    /// Adds an operation to the draft. Later reads see its effect.
    fn apply(&mut self, operation: &Operation) -> std::result::Result<OperationResult, Refusal>;

    /// Returns the attributes of a blob, if it exists.
    fn stat(&self, name: &[u8]) -> Result<Option<BlobStat>>;

    /// Reads bytes of a blob, and returns their number.
    fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Returns the first position from `offset` on at which a blob has data.
    fn next_data(&self, name: &[u8], offset: u64) -> Result<Option<u64>>;

    /// Returns at most `limit` names that begin with `prefix` and are after `after`, ascending.
    fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, BlobStat)>>;
}
