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
    /// Passes a batch, or a part of one, to an auxiliary server, and returns its verdict. The
    /// tables of the verdict are then in the directory of the image. `None` if there is no
    /// auxiliary server, or if it could not complete the verification: then the primary server
    /// verifies the batch itself.
    ///
    /// # Errors
    /// `InvalidInput` if the batch is refused; the errors of files.
    fn verify(&self, task: &VerificationTask) -> Result<Option<Verdict>>;
}

/// Verifies a batch, or a part of one, in an auxiliary server. `submitted` has the tables of the
/// batch, which no user other than the owner of the store can change, and `image` has the tables of
/// the image. The new tables are written to `output`, which no other verification uses.
///
/// # Errors
/// `InvalidInput` if the batch is refused; `Damaged`; the errors of files. Then `output` has no
/// tables.
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
        tables: open_submitted(&task.record, task.reads, certificate, &snapshot, submitted, &cache)?,
        snapshot: &snapshot,
        current: TableSet::open(image, &cache, &task.current)?,
        store: task.store,
        now: task.now,
        reads: task.reads,
        files: output.clone(),
    })?;
    output.sync()?;
    Ok(verdict)
}
