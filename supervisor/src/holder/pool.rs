//! A mount of a pool.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use quell_fuse::LockKeeper;
use quell_pool::PoolFs;
use quell_vfs::{FileSystem, Result};

use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::holder::writable_mount::{Content, MountOptions, WritableMount, mountpoint};
use crate::protocol::plan::PoolPlan;
use crate::protocol::report::{HolderReport, PoolReport};

/// Connects to the daemon and mounts the pool.
pub fn create(context: &HolderContext, plan: &PoolPlan) -> Result<WritableMount, Failure> {
    let path = mountpoint(context, "a pool needs a mount point: quell mount --pool NAME MOUNTPOINT")?;
    let options = MountOptions {
        source: &plan.socket,
        // A pool keeps no locks. The kernel's locks hold between the programs of this mount.
        locks: LockKeeper::Kernel,
        description: format!("pool {}", plan.name),
    };
    WritableMount::create(context, path, &options, || {
        let fs = quell_mount_spec::open_pool(&plan.socket, plan.chunk_bytes)?;
        Ok(Arc::new(Pool { fs: Arc::new(fs), name: plan.name.clone() }))
    })
}

/// The pool of a mount.
struct Pool {
    fs: Arc<PoolFs>,
    name: String,
}

impl Content for Pool {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as _
    }

    fn is_busy(&self) -> bool {
        false
    }

    /// Does nothing: a write is in the pool when it returns, and the daemon detects the end of this
    /// process.
    fn end(&self) -> Result<()> {
        Ok(())
    }

    fn describe(&self, path: &Path, counters: BTreeMap<String, u64>, report: &mut HolderReport) {
        report.pool = Some(PoolReport { name: self.name.clone(), path: path.to_owned(), counters });
    }
}
