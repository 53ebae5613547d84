//! The verification of a batch by an auxiliary server: a trusted process on the resources of the
//! client (BatchFS, section II-F).

use std::sync::Arc;

use quell_vfs::Result;

use crate::certificate::Certificate;
use crate::files::TableFiles;
use crate::submitted::open_submitted;
use crate::table::BlockCache;
use crate::table_set::TableSet;
use crate::task::VerificationTask;
use crate::verdict::Verdict;
use crate::verify::{Submission, verify};

/// The auxiliary servers of a primary server.
pub trait Auxiliary: Send + Sync {
    /// Has a batch, or a part of one, verified. The tables of the verdict are in the directory of
    /// the image then. `None` if there is no auxiliary server, or if it could not complete the
    /// verification: then the primary server verifies the batch itself.
    ///
    /// # Errors
    /// `InvalidInput` if the batch is refused; those of files.
    fn verify(&self, task: &VerificationTask) -> Result<Option<Verdict>>;
}

/// Verifies a batch, or a part of one, in an auxiliary server. `submitted` has its tables, which no
/// user other than the owner of the store can change, and `image` those of the image. The new
/// tables are written to `output`, which no other verification uses.
///
/// # Errors
/// `InvalidInput` if the batch is refused; `Damaged`; those of files. Then `output` has no tables.
pub fn verify_task(
    task: &VerificationTask,
    certificate: &Certificate,
    submitted: &dyn TableFiles,
    image: &dyn TableFiles,
    output: Arc<dyn TableFiles>,
) -> Result<Verdict> {
    let cache = Arc::new(BlockCache::default());
    let snapshot = TableSet::open(image, &cache, &task.record.snapshot)?;
    let verdict = verify(Submission {
        record: &task.record,
        batch: task.batch,
        earlier: &task.earlier,
        conflicts: task.conflicts,
        certificate,
        tables: open_submitted(certificate, submitted, &cache)?,
        snapshot: &snapshot,
        current: TableSet::open(image, &cache, &task.current)?,
        store: task.store,
        files: output.clone(),
    })?;
    output.sync()?;
    Ok(verdict)
}
