//! The end record of a mount: a file in the runtime directory, from which `quell umount` learns
//! after the end of the process that served the mount which batch it had, and whether data could
//! not be saved. The process removes the file if it has saved everything.

use std::fs::{File, remove_file};
use std::io::{Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::protocol::transfer::Address;
use crate::runtime::directory::runtime_directory;
use crate::runtime::key::mount_key;

/// The end record of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EndRecord {
    /// The store and the number of the mount's batch.
    pub batch: Option<(PathBuf, u64)>,
    /// Why data could not be saved. `None` while the mount is served, and if its process was
    /// killed.
    pub failure: Option<String>,
}

impl EndRecord {
    /// Writes the record of the mount of a holder.
    pub(crate) fn write(&self, address: &Address) -> Result<()> {
        let path = path_of(address);
        remove(address);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&serde_json::to_vec(self)?)
    }
}

/// Removes the record of a mount, if there is one.
pub(crate) fn remove(address: &Address) {
    // If it cannot be removed, `quell umount` reports a batch as it is in the store.
    let _ = remove_file(path_of(address));
}

/// Returns the record of the mount that is, or was, at a mount point, if there is one.
pub fn end_record_of(mountpoint: &Path) -> Option<EndRecord> {
    let bytes = std::fs::read(path_of(&address_of(mountpoint)?)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Removes the record of the mount that was at a mount point.
pub fn forget_end_record(mountpoint: &Path) {
    if let Some(address) = address_of(mountpoint) {
        remove(&address);
    }
}

fn address_of(mountpoint: &Path) -> Option<Address> {
    Some(Address { directory: runtime_directory().ok()?, key: mount_key(mountpoint) })
}

fn path_of(address: &Address) -> PathBuf {
    address.directory.join(format!("{}.end", address.key))
}
