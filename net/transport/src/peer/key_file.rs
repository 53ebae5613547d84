//! The files with the keys of servers, which only their owner can read.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};

/// Reads a file that has a key, and to which no other user has access. Of a longer file, the first
/// `bytes_max` bytes and one more are returned.
///
/// # Errors
/// `PermissionDenied` if the file belongs neither to this user nor to root, or if other users have
/// access to it; `Damaged` if it is not a regular file; the errors of open(2) and read(2).
pub fn read_key_file(path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
    const OPERATION: &str = "read the key in";
    let failed = |cause| Error::from_io(cause, OPERATION, path.as_os_str().as_bytes());
    let refuse = |kind, reason: &str| {
        let source = Some(reason.to_string().into());
        Err(Error { source, ..Error::new(kind, OPERATION, path.as_os_str().as_bytes()) })
    };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file =
        File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.uid() != rustix::process::geteuid().as_raw() && found.uid() != 0 {
        return refuse(ErrorKind::PermissionDenied, "it belongs to another user");
    }
    if found.mode() & 0o077 != 0 {
        return refuse(
            ErrorKind::PermissionDenied,
            "other users have access to it; withdraw their permissions: chmod go= FILE",
        );
    }
    if !found.is_file() {
        return refuse(ErrorKind::Damaged, "it is not a regular file");
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Creates a file with a random key of 32 bytes, and returns the key. A file of this name is
/// replaced. No other process may create it at the same time.
///
/// # Errors
/// The errors of open(2), write(2), fsync(2) and rename(2).
pub fn create_key_file(path: &Path) -> Result<[u8; 32]> {
    let failed = |cause| Error::from_io(cause, "create the key in", path.as_os_str().as_bytes());
    let mut key = [0; 32];
    getrandom(&mut key, GetRandomFlags::empty()).map_err(|error| failed(error.into()))?;
    let temporary = path.with_extension("new");
    let created = || {
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&key)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    created().map_err(failed)?;
    Ok(key)
}
