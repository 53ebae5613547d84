//! The key of a store: 32 random bytes in a file that only its owner can read. Clients over TCP
//! prove that they know it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};

/// The length of a key, in bytes.
const KEY_BYTES: usize = 32;

fn failed(cause: std::io::Error, operation: &'static str, path: &Path) -> Error {
    Error::from_io(cause, operation, path.as_os_str().as_bytes())
}

/// Reads the key in a file.
///
/// # Errors
/// `PermissionDenied` if the file belongs neither to this user nor to root, or if other users have
/// access to it; `Damaged` if it is not a regular file of 32 bytes; the errors of open(2) and
/// read(2).
pub fn read_key(path: &Path) -> Result<[u8; KEY_BYTES]> {
    const OPERATION: &str = "read the key in";
    let subject = path.as_os_str().as_bytes();
    let refuse = |kind, reason: &str| {
        let source = Some(reason.to_string().into());
        Err(Error { source, ..Error::new(kind, OPERATION, subject) })
    };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let mut file = opened.map_err(|cause| failed(cause, OPERATION, path))?;
    let found = file.metadata().map_err(|cause| failed(cause, OPERATION, path))?;
    if found.uid() != rustix::process::geteuid().as_raw() && found.uid() != 0 {
        return refuse(ErrorKind::PermissionDenied, "it belongs to another user");
    }
    if found.mode() & 0o077 != 0 {
        return refuse(
            ErrorKind::PermissionDenied,
            "other users have access to it; withdraw their permissions: chmod go= FILE",
        );
    }
    if found.len() != KEY_BYTES as u64 || !found.is_file() {
        return refuse(ErrorKind::Damaged, "it is not a regular file of 32 bytes");
    }
    let mut key = [0; KEY_BYTES];
    file.read_exact(&mut key).map_err(|cause| failed(cause, OPERATION, path))?;
    Ok(key)
}

/// Reads the key in a file, which is created with a random key if it does not exist. No other
/// process may create it at the same time.
///
/// # Errors
/// As for [`read_key`]; the errors of write(2), fsync(2) and rename(2).
pub fn create_key(path: &Path) -> Result<[u8; KEY_BYTES]> {
    const OPERATION: &str = "create the key in";
    match read_key(path) {
        Err(error) if error.kind == ErrorKind::NotFound => {}
        found => return found,
    }
    let mut key = [0; KEY_BYTES];
    getrandom(&mut key, GetRandomFlags::empty()).map_err(|e| failed(e.into(), OPERATION, path))?;
    let temporary = path.with_extension("new");
    let created = || {
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&key)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    created().map_err(|cause| failed(cause, OPERATION, path))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_created_once_and_refused_if_others_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert_eq!(read_key(&path).unwrap_err().kind, ErrorKind::NotFound);
        let key = create_key(&path).unwrap();
        assert_ne!(key, [0; KEY_BYTES]);
        assert_eq!((create_key(&path).unwrap(), read_key(&path).unwrap()), (key, key));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(create_key(&path).unwrap_err().kind, ErrorKind::PermissionDenied);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(read_key(&path).unwrap_err().kind, ErrorKind::Damaged);
    }
}
