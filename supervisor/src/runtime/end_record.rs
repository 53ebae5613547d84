//! The end record of a mount: a file in the runtime directory for `quell umount`. It contains the
//! batch of the mount and, after a failure, the reason why data could not be saved. The process
//! that serves a mount with a batch writes it at the start, and removes it when all data was saved.
//! If the process was killed, the file remains.

use std::fs::{File, remove_file};
use std::io::{Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::protocol::transfer::Address;
use crate::runtime::directory::runtime_directory;
use crate::runtime::key::mount_key;

/// The batch of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedBatch {
    /// The path of the store.
    pub store: PathBuf,
    /// The number of the batch.
    pub number: u64,
    /// The users who may own the store, besides the caller.
    pub trust_owners: Vec<u32>,
}

/// The end record of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    /// The process that served the mount.
    pub process: u32,
    /// The mount's batch.
    pub batch: Option<MountedBatch>,
    /// The reason why data could not be saved. `None` while the mount is served, and if its process
    /// was killed.
    pub failure: Option<String>,
}

impl EndRecord {
    /// Writes the first record of a mount. It replaces the record of an earlier mount at the same
    /// mount point.
    pub(crate) fn begin(&self, address: &Address) -> Result<()> {
        remove(address);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path_of(address))?;
        file.write_all(&serde_json::to_vec(self)?)
    }

    /// Replaces the record of the mount of this process. While a process commits the batch of a
    /// mount that was removed, another process may serve a new mount at the same mount point: then
    /// the record of the new mount remains.
    pub(crate) fn write(&self, address: &Address) -> Result<()> {
        match read(&path_of(address)).is_some_and(|record| record.process != self.process) {
            true => Ok(()),
            false => self.begin(address),
        }
    }
}

/// Removes the record of the mount of this process, if there is one.
pub(crate) fn remove_own(address: &Address) {
    if read(&path_of(address)).is_some_and(|record| record.process == std::process::id()) {
        remove(address);
    }
}

/// Removes the record of a mount, if there is one.
pub(crate) fn remove(address: &Address) {
    // After an error, `quell umount` still reads the state of the batch from the store.
    let _ = remove_file(path_of(address));
}

/// Returns the record of the mount that is, or was, at a mount point, if there is one.
pub fn end_record_of(mountpoint: &Path) -> Option<EndRecord> {
    read(&path_of(&address_of(mountpoint)?))
}

fn read(path: &Path) -> Option<EndRecord> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
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

/// Returns the path of the record.
pub(crate) fn path_of(address: &Address) -> PathBuf {
    address.directory.join(format!("{}.end", address.key))
}
