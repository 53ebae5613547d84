//! A transaction: reads and changes that are committed together, or not at all.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use quell_blob_service::{BlobStat, CommitResult};
use quell_vfs::ErrorKind;
use quell_wire::blob::{
    Committed, Operation, Part, Read, Transaction as WireTransaction, Transform, Version,
};

use crate::backend::{Backend, TransactionState};
use crate::error::Result;

/// A transaction. It reads one state of the store and its own changes. Other programs see its
/// changes after [`commit`](Transaction::commit), all at once. The commit is refused if another
/// transaction has changed a part that this one has read. A transaction that is dropped has changed
/// nothing.
///
/// Transactions are strictly serializable: their effect is as if they were executed one after the
/// other, in an order in which each transaction follows all transactions that were committed before
/// it began.
pub struct Transaction {
    backend: Arc<dyn Backend>,
    state: Box<dyn TransactionState>,
    reads: HashSet<Read>,
    operations: Vec<Operation>,
    /// The number of operations that `state` has applied. A read first applies the others.
    applied: usize,
}

impl Transaction {
    pub(crate) fn new(backend: Arc<dyn Backend>, state: Box<dyn TransactionState>) -> Transaction {
        Transaction { backend, state, reads: HashSet::new(), operations: Vec::new(), applied: 0 }
    }

    /// Returns the version of the state that the transaction reads.
    pub fn version(&self) -> Version {
        self.state.version()
    }

    /// Creates an empty blob, unless it exists.
    ///
    /// # Errors
    /// None. If the operation fails, the commit returns the error.
    pub fn create(&mut self, name: impl AsRef<[u8]>) -> Result<()> {
        self.add(Operation::Create { name: name.as_ref().to_vec(), may_exist: true })
    }

    /// Creates an empty blob. The commit fails if it exists.
    ///
    /// # Errors
    /// None. If the operation fails, the commit returns the error.
    pub fn create_new(&mut self, name: impl AsRef<[u8]>) -> Result<()> {
        self.add(Operation::Create { name: name.as_ref().to_vec(), may_exist: false })
    }

    /// Deletes a blob. The commit fails if it does not exist.
    ///
    /// # Errors
    /// None. If the operation fails, the commit returns the error.
    pub fn delete(&mut self, name: impl AsRef<[u8]>) -> Result<()> {
        self.add(Operation::Delete { name: name.as_ref().to_vec() })
    }

    /// Writes bytes of a blob.
    ///
    /// # Errors
    /// None. If the operation fails, the commit returns the error.
    pub fn write(&mut self, name: impl AsRef<[u8]>, offset: u64, data: &[u8]) -> Result<()> {
        self.add(Operation::Write { name: name.as_ref().to_vec(), offset, data: data.to_vec() })
    }

    /// Writes bytes at the end of a blob. The result of the commit has their offset. Appends of
    /// several transactions do not conflict.
    ///
    /// # Errors
    /// None. If the operation fails, the commit returns the error.
    pub fn append(&mut self, name: impl AsRef<[u8]>, data: &[u8]) -> Result<()> {
        self.add(Operation::Append { name: name.as_ref().to_vec(), data: data.to_vec() })
    }

    /// Sets the size of a blob.
    ///
    /// # Errors
    /// None. If the operation fails, the commit returns the error.
    pub fn resize(&mut self, name: impl AsRef<[u8]>, size_bytes: u64) -> Result<()> {
        self.add(Operation::Resize { name: name.as_ref().to_vec(), size_bytes })
    }

    /// Replaces numbers in a blob. Transforms of several transactions do not conflict: each is
    /// applied to the numbers at its commit.
    ///
    /// # Errors
    /// None. If the operation fails, the commit returns the error.
    pub fn transform(&mut self, name: impl AsRef<[u8]>, offset: u64, transform: Transform) -> Result<()> {
        self.add(Operation::Transform { name: name.as_ref().to_vec(), offset, transform })
    }

    /// Gives a blob another name, without a copy of its content. The commit fails if the other name
    /// is in use.
    ///
    /// # Errors
    /// None. If the operation fails, the commit returns the error.
    pub fn rename(&mut self, name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.add(Operation::Rename { name: name.as_ref().to_vec(), to: to.as_ref().to_vec() })
    }

    /// Adds an operation.
    ///
    /// # Errors
    /// None. If the operation fails, the commit returns the error.
    pub fn add(&mut self, operation: Operation) -> Result<()> {
        self.operations.push(operation);
        Ok(())
    }

    /// Reads bytes, including the changes of this transaction, and returns their number. The number
    /// is less than requested only at the end of the blob.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name; the reason for which an earlier operation of
    /// the transaction cannot be applied; `Stale` if the state is no longer kept.
    pub fn read(&mut self, name: impl AsRef<[u8]>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let name = name.as_ref();
        self.apply()?;
        // The read is recorded even if it fails, because a program may depend on the failure.
        let end = offset.saturating_add(into.len() as u64);
        for name in self.names_of(name) {
            self.note(&name, Part::Existence);
            self.note(&name, Part::Range { start: offset, end });
            // The offset of this transaction's append changes if another transaction appends first.
            let appends = |operation: &Operation| matches!(operation, Operation::Append { .. });
            if self.operations.iter().any(|operation| operation.name() == name && appends(operation)) {
                self.note(&name, Part::Size);
            }
        }
        let result = self.state.read(name, offset, into);
        self.take(result)
    }

    /// Returns the first position from `offset` on at which a blob has data. The bytes before it
    /// are zeros. `None` if there is no data up to the end. The commit is refused if bytes before
    /// the position have changed.
    ///
    /// # Errors
    /// As for [`read`](Transaction::read).
    pub fn next_data(&mut self, name: impl AsRef<[u8]>, offset: u64) -> Result<Option<u64>> {
        let name = name.as_ref();
        self.apply()?;
        let result = self.state.next_data(name, offset);
        let end = result.as_ref().ok().copied().flatten().unwrap_or(u64::MAX);
        for name in self.names_of(name) {
            self.note(&name, Part::Existence);
            self.note(&name, Part::Range { start: offset, end });
        }
        self.take(result)
    }

    /// Returns the attributes of a blob, or `None` if there is no blob of this name. The commit is
    /// refused if the size or existence has changed; a change of the time is not a conflict.
    ///
    /// # Errors
    /// As for [`read`](Transaction::read).
    pub fn stat(&mut self, name: impl AsRef<[u8]>) -> Result<Option<BlobStat>> {
        let name = name.as_ref();
        self.apply()?;
        for name in self.names_of(name) {
            self.note(&name, Part::Existence);
            self.note(&name, Part::Size);
        }
        let result = self.state.stat(name);
        self.take(result)
    }

    /// Returns the size of a blob, in bytes.
    ///
    /// # Errors
    /// `NotFound` if there is no blob of this name; as for [`read`](Transaction::read).
    pub fn size(&mut self, name: impl AsRef<[u8]>) -> Result<u64> {
        let name = name.as_ref();
        match self.stat(name)? {
            Some(stat) => Ok(stat.size_bytes),
            None => Err(quell_vfs::Error::new(ErrorKind::NotFound, "read the size", name).into()),
        }
    }

    /// Returns at most `limit` blobs whose names begin with `prefix` and are after `after`, in the
    /// order of their names. The commit is refused if a blob whose name begins with `prefix` was
    /// created or deleted. A change of a size is not a conflict.
    ///
    /// # Errors
    /// As for [`read`](Transaction::read).
    pub fn list(
        &mut self,
        prefix: impl AsRef<[u8]>,
        after: impl AsRef<[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, BlobStat)>> {
        self.apply()?;
        self.note(prefix.as_ref(), Part::NamesWithPrefix);
        let result = self.state.list(prefix.as_ref(), after.as_ref(), limit);
        self.take(result)
    }

    /// Commits the transaction. When the call returns, all readers see it, and it survives a power
    /// failure. A transaction without changes is also compared with other transactions: if the
    /// commit succeeds, all reads of the transaction show the state at one time during the call.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) with the reason: see [`Refusal`](crate::Refusal).
    pub fn commit(self) -> Result<Committed> {
        let (backend, state, transaction) = self.into_parts();
        Ok(backend.commit_at(&state.versions(), transaction)?)
    }

    /// Commits the transaction as [`commit`](Transaction::commit) does, without waiting: `done`
    /// receives the result, as with [`Store::submit`](crate::Store::submit).
    pub fn submit(self, done: impl FnOnce(Result<Committed>) + Send + 'static) {
        let (backend, state, transaction) = self.into_parts();
        let versions = state.versions();
        let decided = move |result: CommitResult| {
            drop(state);
            done(result.map_err(Into::into));
        };
        backend.submit_at(versions, transaction, Box::new(decided));
    }

    /// Returns the transaction, and the state that it has read. As long as the state is open, the
    /// store keeps the changes since then, with which it compares the reads.
    fn into_parts(self) -> (Arc<dyn Backend>, Box<dyn TransactionState>, WireTransaction) {
        let snapshot = (!self.reads.is_empty()).then(|| self.state.version());
        let reads = self.reads.into_iter().collect();
        let commit =
            WireTransaction { snapshot, reads, operations: self.operations, ..WireTransaction::default() };
        (self.backend, self.state, commit)
    }

    /// Applies the operations to the state that later reads see.
    fn apply(&mut self) -> Result<()> {
        while let Some(operation) = self.operations.get(self.applied) {
            // Later reads show whether the operation had an effect.
            let noted = operation.names().map(|name| Read { name: name.to_vec(), part: Part::Existence });
            self.reads.extend(noted);
            if let Err(refusal) = self.state.apply(operation) {
                self.note_transforms();
                return Err(refusal.into());
            }
            self.applied += 1;
        }
        Ok(())
    }

    /// Returns the result of a read. A server applies earlier operations only when it executes a
    /// read, so the read can fail because of one of them.
    fn take<T>(&mut self, result: quell_vfs::Result<T>) -> Result<T> {
        if result.is_err() {
            self.note_transforms();
        }
        Ok(result?)
    }

    /// Records the numbers of the transforms as reads, because a program may depend on the failure
    /// of a transform.
    fn note_transforms(&mut self) {
        for operation in &self.operations {
            if let Operation::Transform { name, offset, transform } = operation {
                let end = offset.saturating_add(transform.length_bytes());
                self.reads.insert(Read { name: name.clone(), part: Part::Range { start: *offset, end } });
            }
        }
    }

    /// Returns a name, and the names that its blob had before it was renamed by this transaction.
    fn names_of(&self, name: &[u8]) -> Vec<Vec<u8>> {
        let mut names = vec![name.to_vec()];
        for operation in self.operations.iter().rev() {
            if let Operation::Rename { name: before, to } = operation
                && names.last() == Some(to)
            {
                names.push(before.clone());
            }
        }
        names
    }

    fn note(&mut self, name: &[u8], part: Part) {
        self.reads.insert(Read { name: name.to_vec(), part });
    }
}

/// Returns the error for a result of a server that does not belong to the operation.
pub(crate) fn wrong_result() -> quell_vfs::Error {
    let source = Some("the result does not belong to the operation".into());
    quell_vfs::Error { source, ..quell_vfs::Error::new(ErrorKind::Damaged, "commit", "transaction") }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("version", &self.version())
            .field("operations", &self.operations.len())
            .finish_non_exhaustive()
    }
}
