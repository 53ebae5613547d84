//! A store for batches that this process has open for a mount or for a program.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use quell_batch::{OpenBatch, StoreAccess};

use crate::failure::Failure;
use crate::protocol::plan::{BatchMode, BatchPlan};

/// How long a process waits until other processes have closed the store.
const OPEN_WAIT: Duration = Duration::from_secs(10);
/// How long a part waits until other processes have closed the store, or have joined its batch.
const JOIN_WAIT: Duration = Duration::from_secs(60);
/// How long a commit waits until other processes have closed the store.
pub const COMMIT_WAIT: Duration = Duration::from_secs(60);

/// The end of a batch with its mount or its program.
#[derive(Debug, Clone, Copy)]
pub enum BatchEnd {
    /// The batch is verified and committed.
    Commit,
    /// The batch is submitted, and verified later.
    CommitLater,
    /// The session is a part of a batch, and the part is closed.
    Close,
}

/// An open store.
#[derive(Debug)]
pub enum BatchSession {
    /// Changes are visible in the store immediately.
    Synchronous(Box<StoreAccess>),
    /// Changes belong to a batch, or to a part of a batch, that has begun.
    Batch(Arc<OpenBatch>, BatchEnd),
}

/// Opens the store, and begins the batch or joins it as a part.
///
/// # Errors
/// The errors of [`StoreAccess::open_of`], [`OpenBatch::begin`] and [`OpenBatch::join`];
/// `wrong_input` if the plan only watches a batch.
pub fn open_batch_session(plan: &BatchPlan) -> Result<BatchSession, Failure> {
    // Many parts may join at the same time.
    let wait = if let BatchMode::Part { .. } = plan.mode { JOIN_WAIT } else { OPEN_WAIT };
    let open = || StoreAccess::open_of(&plan.store, &plan.trust_owners, wait);
    let subtree = plan.subtree.as_os_str().as_bytes();
    let (batch, end) = match &plan.mode {
        BatchMode::Synchronous => return Ok(BatchSession::Synchronous(Box::new(open()?))),
        BatchMode::Batch { name, is_atomic, is_lazy, proof } => {
            let end = if *is_lazy { BatchEnd::CommitLater } else { BatchEnd::Commit };
            (OpenBatch::begin(open()?, subtree, name, *is_atomic)?.with_proof(*proof), end)
        }
        BatchMode::Part { batch, name, proof } => {
            let part = OpenBatch::join(open()?, subtree, *batch, name, JOIN_WAIT)?;
            (part.with_proof(*proof), BatchEnd::Close)
        }
        BatchMode::Watch { .. } => {
            return Err(Failure::wrong_input("a batch can be watched only in a mount"));
        }
    };
    Ok(BatchSession::Batch(Arc::new(batch), end))
}
