//! The names of data files and of their directories.

use quell_batch_service::{DataFile, FILES_OF_USERS};

/// The number of directories of the data files of a batch.
pub(crate) const DIRS: usize = 256;

pub(crate) fn batch_name(batch: u64) -> String {
    batch.to_string()
}

pub(crate) fn dir_name(inode: u64) -> String {
    format!("{:02x}", inode as usize % DIRS)
}

pub(crate) fn file_name(DataFile { inode, version, .. }: DataFile) -> String {
    match version {
        0 => format!("{inode:x}"),
        version => format!("{inode:x}.{version}"),
    }
}

/// Returns the name of the directory with the data files of a batch, or of a user's synchronous
/// mode.
pub(crate) fn incoming_name(batch: u64) -> String {
    match batch.checked_sub(FILES_OF_USERS) {
        Some(user) => format!("user-{user}"),
        None => batch_name(batch),
    }
}
