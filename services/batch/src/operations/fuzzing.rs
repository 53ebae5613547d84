//! Entry points of tests and of the fuzz target for single blocks of operations.

use quell_vfs::Result;

use super::block::OperationBlock;
use super::execution::Execution;
use crate::table::BlockDecoder;
use crate::table_set::TableSet;

/// The number of the batch whose operations the blocks have.
const BATCH: u64 = 3;

/// A key, the value that a batch leaves, and the value in the snapshot.
pub(crate) type Change = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

/// Returns the block of the operations that make these changes.
pub(crate) fn block_of(changes: &[Change]) -> Result<Vec<u8>> {
    let mut block = OperationBlock::new(BATCH);
    changes.iter().try_for_each(|(key, value, before)| block.add(key, value, before.as_deref()))?;
    let mut bytes = Vec::new();
    block.finish(&mut bytes);
    Ok(bytes)
}

/// Executes a block of operations on a snapshot, and returns the block of a table with the entries.
pub(crate) fn execute(block: &[u8], snapshot: &TableSet) -> Result<Vec<u8>> {
    Execution::new(snapshot.clone(), BATCH).decode(block)
}
