//! A mount of a store for batches.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quell_batch::{BatchFs, OpenBatch, StoreAccess};
use quell_fuse::LockKeeper;
use quell_vfs::{FileSystem, Result};

use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::holder::writable_mount::{Content, MountOptions, WritableMount, mountpoint};
use crate::protocol::plan::{BatchMode, BatchPlan};
use crate::protocol::report::{BatchReport, HolderReport};

/// How long a mount waits until other processes have closed the store.
const OPEN_WAIT: Duration = Duration::from_secs(10);
/// How long a commit waits until other processes have closed the store.
const COMMIT_WAIT: Duration = Duration::from_secs(60);

/// Opens the store, begins the batch, and mounts its files.
pub fn create(context: &HolderContext, plan: &BatchPlan) -> Result<WritableMount, Failure> {
    let path = mountpoint(context, "a batch needs a mount point: quell mount --batch STORE MOUNTPOINT")?;
    let options = MountOptions {
        source: &plan.store,
        // A name space keeps no locks; those of the kernel hold between the programs of this mount.
        locks: LockKeeper::Kernel,
        description: format!("the store {}", plan.store.display()),
    };
    WritableMount::create(context, path, &options, || {
        let store = StoreAccess::open(&plan.store, OPEN_WAIT)?;
        let subtree = plan.subtree.as_os_str().as_bytes();
        let content: Arc<dyn Content> = match &plan.mode {
            BatchMode::Synchronous => {
                let fs = Arc::new(store.file_system(subtree)?);
                Arc::new(Synchronous { fs, store, plan: plan.clone() })
            }
            BatchMode::Batch { name, is_atomic } => {
                let batch = OpenBatch::begin(store, subtree, name, *is_atomic)?;
                Arc::new(Batch { batch, plan: plan.clone() })
            }
        };
        Ok(content)
    })
}

/// The master image of a store.
struct Synchronous {
    fs: Arc<BatchFs>,
    store: StoreAccess,
    plan: BatchPlan,
}

impl Content for Synchronous {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as _
    }

    fn is_exclusive(&self) -> bool {
        self.store.is_exclusive()
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn end(&self) -> Result<()> {
        let ended = self.fs.end();
        self.store.name_space().sync()?;
        ended
    }

    fn describe(&self, path: &Path, counters: BTreeMap<String, u64>, report: &mut HolderReport) {
        let (store, path) = (self.plan.store.clone(), path.to_owned());
        report.batch = Some(BatchReport { store, batch: None, path, counters });
    }
}

/// The private name space of a batch.
struct Batch {
    batch: OpenBatch,
    plan: BatchPlan,
}

impl Content for Batch {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.batch.file_system() as _
    }

    /// Returns true: only this process has the private name space.
    fn is_exclusive(&self) -> bool {
        true
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn end(&self) -> Result<()> {
        self.batch.commit(COMMIT_WAIT).map(drop)
    }

    fn batch(&self) -> Option<(PathBuf, u64)> {
        Some((self.plan.store.clone(), self.batch.record().number))
    }

    /// Discards the batch, which is empty.
    fn abandon(&self) -> Result<()> {
        self.batch.abort(COMMIT_WAIT).map(drop)
    }

    fn describe(&self, path: &Path, counters: BTreeMap<String, u64>, report: &mut HolderReport) {
        let (store, path) = (self.plan.store.clone(), path.to_owned());
        let batch = Some(self.batch.record().number);
        report.batch = Some(BatchReport { store, batch, path, counters });
    }
}
