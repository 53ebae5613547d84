//! Transactions that are ready to wait for their commit: their limits were checked, and their large
//! data was written as extents.

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    OPERATIONS_MAX, Operation, READS_MAX, Read, Refusal, Transaction, TransactionId, Version,
};

use crate::apply::PreparedOperation;
use crate::content::NewExtent;
use crate::extents::{EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, ExtentId, Extents};
use crate::joint::JointStep;

/// A transaction whose large data was written as extents.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) id: Option<TransactionId>,
    pub(crate) is_repeated: bool,
    pub(crate) snapshot: Option<Version>,
    pub(crate) reads: Vec<Read>,
    pub(crate) operations: Vec<PreparedOperation>,
    pub(crate) step: Step,
}

/// The purpose of an entry of the queue of commits.
#[derive(Default)]
pub(crate) enum Step {
    /// Commits a transaction.
    #[default]
    Commit,
    /// Removes stale content of a blob. The entry has no operations.
    RemoveStale(Vec<u8>),
    /// Executes a step of a joint transaction.
    Joint(JointStep),
}

impl Step {
    /// Returns an entry of the queue that has only this step, and no operations.
    pub(crate) fn alone(self) -> Prepared {
        Prepared { step: self, ..Prepared::default() }
    }
}

impl Prepared {
    /// Checks the limits of a transaction, and writes its large data. `written` are the extents
    /// that are written already, with the positions of their operations in ascending order. If the
    /// call fails, they are removed.
    pub(crate) fn new(
        transaction: Transaction,
        written: Vec<(u32, NewExtent)>,
        extents: &dyn Extents,
        new_extent: &dyn Fn() -> ExtentId,
    ) -> std::result::Result<Prepared, Refusal> {
        let Transaction { id, is_repeated, snapshot, reads, operations } = transaction;
        let mut prepared = Prepared { id, is_repeated, snapshot, reads, ..Prepared::default() };
        match prepared.add(operations, &written, extents, new_extent) {
            Ok(()) => Ok(prepared),
            Err(error) => {
                prepared.discard(extents);
                written.iter().for_each(|(_, extent)| discard(extents, *extent));
                Err(error.into())
            }
        }
    }

    fn add(
        &mut self,
        operations: Vec<Operation>,
        written: &[(u32, NewExtent)],
        extents: &dyn Extents,
        new_extent: &dyn Fn() -> ExtentId,
    ) -> Result<()> {
        if operations.len() > OPERATIONS_MAX || self.reads.len() > READS_MAX {
            return Err(invalid("it has more than 16,384 operations or reads; divide it"));
        }
        if self.snapshot.is_none() && !self.reads.is_empty() {
            return Err(invalid("it has reads, but not the version of the state that was read"));
        }
        let mut written = written.iter().copied().peekable();
        for (position, operation) in (0..).zip(operations) {
            let operation = match (written.next_if(|(of, _)| *of == position), &operation) {
                (None, _) => prepare_operation(operation, extents, new_extent)?,
                (Some((_, extent)), Operation::Write { data, .. } | Operation::Append { data, .. })
                    if data.is_empty() =>
                {
                    PreparedOperation { operation, extent: Some(extent) }
                }
                (Some(_), _) => return Err(invalid("an operation with an extent has other data")),
            };
            self.operations.push(operation);
        }
        match written.next() {
            Some(_) => Err(invalid("an extent belongs to no operation")),
            None => Ok(()),
        }
    }

    /// Removes the extents, because the transaction is not committed. If the removal fails, the
    /// next opening of the store removes them.
    pub(crate) fn discard(&self, extents: &dyn Extents) {
        for extent in self.operations.iter().filter_map(|operation| operation.extent) {
            discard(extents, extent);
        }
    }
}

fn discard(extents: &dyn Extents, extent: NewExtent) {
    let _ = extents.remove_all(&[(extent.id, extent.length_bytes)]);
}

fn prepare_operation(
    mut operation: Operation,
    extents: &dyn Extents,
    new_extent: &dyn Fn() -> ExtentId,
) -> Result<PreparedOperation> {
    let (Operation::Write { data, .. } | Operation::Append { data, .. }) = &mut operation else {
        return Ok(PreparedOperation::inline(operation));
    };
    if data.len() < EXTENT_BYTES_MIN {
        return Ok(PreparedOperation::inline(operation));
    }
    if data.len() > EXTENT_BYTES_MAX {
        return Err(invalid("an operation has more than 64 MiB of data; divide it into several operations"));
    }
    let data = std::mem::take(data);
    let new = NewExtent { id: new_extent(), length_bytes: data.len() as u64 };
    if let Err(error) = extents.write(new.id, &data) {
        // If the part that was written cannot be removed either, the next opening of the store
        // removes it.
        discard(extents, new);
        return Err(error);
    }
    Ok(PreparedOperation { operation, extent: Some(new) })
}

fn invalid(reason: &str) -> Error {
    let source = Some(reason.to_string().into());
    Error { source, ..Error::new(ErrorKind::InvalidInput, "commit", "transaction") }
}
