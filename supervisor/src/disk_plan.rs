//! Creates the plan of a disk image. Opens the files of its backing chain before a holder serves
//! them.

use std::path::Path;

use quell_mount_spec::{ChainFile, Trusted, disk_chain};
use quell_vfs::FileIdentity;

use crate::display::shown;
use crate::failure::Failure;
use crate::protocol::plan::{BootPlan, DiskPlan, ImageFormat, Target};

/// Returns the plan of a disk image. `trust_owners`: further users whose files may belong to its
/// backing chain. Fails if a file of the chain cannot be opened, or belongs to another user and the
/// view serves other users.
pub fn disk_plan(
    path: &Path,
    format: Option<ImageFormat>,
    boot: BootPlan,
    rechecks_per_second: f64,
    target: &Target,
    trust_owners: &[u32],
) -> Result<DiskPlan, Failure> {
    let chain = disk_chain(path, format.map(Into::into), trusted_owners(target, trust_owners).as_ref())?;
    let state = chain_state(&chain);
    let files = chain.into_iter().map(|file| file.path).collect();
    let path =
        std::path::absolute(path).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))?;
    Ok(DiskPlan { path, format, files, state, boot, rechecks_per_second })
}

/// Checks that a disk image and its backing chain can be opened for a view in a namespace.
pub fn check_disk_image(
    path: &Path,
    format: Option<ImageFormat>,
    trust_owners: &[u32],
) -> Result<(), Failure> {
    disk_chain(path, format.map(Into::into), trusted_owners(&Target::Namespace, trust_owners).as_ref())?;
    Ok(())
}

/// Returns the users whose files may belong to a backing chain. `None`: every user. The caller is
/// then an ordinary user, and the view gives access to this user alone, with this user's
/// permissions.
pub fn trusted_owners(target: &Target, trust_owners: &[u32]) -> Option<Trusted> {
    let allows_others = matches!(target, Target::Mountpoint { allow_other: true, .. });
    (allows_others || rustix::process::geteuid().is_root()).then(|| Trusted::by_caller(trust_owners))
}

/// Returns a text that identifies the state of the files. Machines whose files are in the same
/// state share one view.
pub fn chain_state(chain: &[ChainFile]) -> String {
    let file_state = |ChainFile { stat, .. }: &ChainFile| {
        let modified = stat.modified;
        let FileIdentity { device, inode } = stat.identity();
        format!("{device}.{inode}.{}.{}.{}", stat.size_bytes, modified.seconds, modified.nanoseconds)
    };
    chain.iter().map(file_state).collect::<Vec<_>>().join(" ")
}
