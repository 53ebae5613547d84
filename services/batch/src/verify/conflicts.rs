//! The conflicts that a verification finds, which it writes to tables.

use std::sync::Arc;

use quell_vfs::Result;

use super::output::Output;
use crate::batch::{Conflict, Conflicts};
use crate::conflict_list::{encode, key};
use crate::files::TableFiles;
use crate::table_ref::first_conflicts_of_batch;

/// The conflicts that were found.
pub(super) struct ConflictOutput {
    count: u64,
    out: Output,
}

impl ConflictOutput {
    /// Returns an output for the conflicts of a batch, or of a part. Earlier parts have `count`
    /// conflicts.
    pub(super) fn new(files: Arc<dyn TableFiles>, batch: u64, count: u64) -> ConflictOutput {
        ConflictOutput { count, out: Output::new(files, first_conflicts_of_batch(batch)) }
    }

    /// Returns the number of conflicts, including the conflicts of earlier parts.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn add(&mut self, conflict: &Conflict) -> Result<()> {
        self.out.add(&key(self.count), &encode(conflict))?;
        self.count += 1;
        Ok(())
    }

    /// Removes the tables.
    pub(super) fn discard(self) -> Result<()> {
        self.out.discard()
    }

    pub(super) fn finish(&mut self) -> Result<Conflicts> {
        let mut tables = self.out.finish()?;
        tables.reverse();
        Ok(Conflicts { count: self.count, tables })
    }
}
