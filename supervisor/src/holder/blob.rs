//! A mount of blobs.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use quell_blob::{Error, Store};
use quell_blobfs::{BlobFs, Owner};
use quell_fuse::LockKeeper;
use quell_vfs::{FileSystem, Result};
use rustix::process::{getegid, geteuid};

use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::holder::writable_mount::{Content, MountOptions, WritableMount, mountpoint};
use crate::protocol::plan::BlobPlan;
use crate::protocol::report::{BlobReport, HolderReport};

/// Opens the store and mounts its blobs.
pub fn create(context: &HolderContext, plan: &BlobPlan) -> Result<WritableMount, Failure> {
    let path = mountpoint(context, "blobs need a mount point: quell mount --blob STORE MOUNTPOINT")?;
    let options = MountOptions {
        source: Path::new(&plan.store),
        // A store keeps no locks. The kernel's locks hold between the programs of this mount.
        locks: LockKeeper::Kernel,
        description: format!("blobs of {}", plan.store),
    };
    WritableMount::create(context, path, &options, || {
        let store = Store::open(&plan.store).map_err(|error| match error {
            Error::Store(error) => Failure::from(error),
            refused => Failure::cannot(refused.to_string()),
        })?;
        let owner = Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        let mount = RandomState::new().hash_one(std::process::id());
        let fs = Arc::new(BlobFs::new(store, plan.prefix.as_bytes(), owner, mount)?);
        fs.start_upkeep()?;
        Ok(Arc::new(Blobs { fs, plan: plan.clone() }))
    })
}

/// The blobs of a mount.
struct Blobs {
    fs: Arc<BlobFs>,
    plan: BlobPlan,
}

impl Content for Blobs {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as _
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn end(&self) -> Result<()> {
        self.fs.end()
    }

    fn describe(&self, path: &Path, mut counters: BTreeMap<String, u64>, report: &mut HolderReport) {
        counters.insert("hidden_blobs".to_owned(), self.fs.hidden_blobs());
        let BlobPlan { store, prefix } = self.plan.clone();
        report.blob = Some(BlobReport { store, prefix, path: path.to_owned(), counters });
    }
}
