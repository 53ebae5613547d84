//! The numbers of the parts of a batch, from the records of all batches.

use quell_batch_service::{BatchRecord, BatchState, PartState};

/// Returns the numbers of all parts of a batch, and the number of the batch.
pub(crate) fn with_parts(records: &[BatchRecord], batch: u64) -> Vec<u64> {
    let is_of = |record: &&BatchRecord| record.number == batch || record.part_of() == Some(batch);
    records.iter().filter(is_of).map(|record| record.number).collect()
}

/// Returns the numbers of the records whose files a commit of `batch` reads: the number of the
/// batch, or the numbers of its parts.
pub(crate) fn submitted_by(records: &[BatchRecord], batch: &BatchRecord) -> Vec<u64> {
    if !batch.has_parts() {
        return vec![batch.number];
    }
    let state = BatchState::Part { of: batch.number, state: PartState::Open };
    records.iter().filter(|record| record.state == state).map(|record| record.number).collect()
}
