//! The keys of a store, in files that only their owner can read. The key of the store is 32 random
//! bytes; other keys are derived from it, and give only some rights. Clients over TCP prove that
//! they know one of these keys. docs/formats/blob-protocol.md describes the files.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use quell_transport::peer::{PoolKey, create_key_file, read_key_file};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{KEY_DESCRIPTION_BYTES_MAX, KeyDescription};

/// The length of a key, in bytes.
const KEY_BYTES: usize = 32;
/// The first bytes of the file of a derived key, with the version of its format. The length of the
/// description follows, in 2 bytes, and then the description and the key.
const MAGIC: [u8; 10] = *b"QUELLKEY\x01\0";
const HEAD_BYTES: usize = MAGIC.len() + 2;
const FILE_BYTES_MAX: usize = HEAD_BYTES + KEY_DESCRIPTION_BYTES_MAX + KEY_BYTES;

/// A key with which a client connects to a server.
#[derive(Debug, Clone)]
pub(crate) struct ClientKey {
    pub(crate) secret: PoolKey,
    /// The bytes of the description from which the key was derived; empty for the key of the store.
    pub(crate) description: Vec<u8>,
}

const READ: &str = "read the key in";

fn refuse<T>(kind: ErrorKind, path: &Path, reason: &str) -> Result<T> {
    let source = Some(reason.to_string().into());
    Err(Error { source, ..Error::new(kind, READ, path.as_os_str().as_bytes()) })
}

/// Reads the key of a store, or a key that was derived from it.
///
/// # Errors
/// `PermissionDenied` if the file belongs neither to this user nor to root, or if other users have
/// access to it; `Damaged` if it is not a regular file with a key; the errors of open(2) and
/// read(2).
pub(crate) fn read_key(path: &Path) -> Result<ClientKey> {
    let bytes = read_key_file(path, FILE_BYTES_MAX)?;
    if let Ok(key) = bytes[..].try_into() {
        return Ok(ClientKey { secret: PoolKey(key), description: Vec::new() });
    }
    match decode(&bytes) {
        Some(key) => Ok(key),
        None => refuse(ErrorKind::Damaged, path, "it does not have the format of a key"),
    }
}

/// Reads the key of a store, from which other keys are derived. Errors: as for [`read_key`];
/// `InvalidInput` for a derived key.
fn read_store_key(path: &Path) -> Result<[u8; KEY_BYTES]> {
    let bytes = read_key_file(path, FILE_BYTES_MAX)?;
    match bytes[..].try_into() {
        Ok(key) => Ok(key),
        Err(_) if decode(&bytes).is_some() => {
            refuse(ErrorKind::InvalidInput, path, "it is a derived key; the key of the store is needed")
        }
        Err(_) => refuse(ErrorKind::Damaged, path, "it does not have 32 bytes"),
    }
}

/// Derives a key from the key of a store, and returns the content of the file for it. `store_key`
/// is the file with the key of the store.
///
/// # Errors
/// `InvalidInput` if the description exceeds a limit, or for the file of a derived key. For the
/// file, the same errors as for `key=FILE` in a location of [`Store::open`](crate::Store::open).
pub fn derive_key(store_key: &Path, description: &KeyDescription) -> Result<Vec<u8>> {
    let description = description.encode()?;
    let key = PoolKey(read_store_key(store_key)?).derived(&description);
    let length = (description.len() as u16).to_le_bytes();
    Ok([&MAGIC[..], &length, &description, &key.0].concat())
}

/// Returns the derived key in a file with this content, if it has the format.
fn decode(file: &[u8]) -> Option<ClientKey> {
    let (length, rest) = file.strip_prefix(&MAGIC)?.split_first_chunk()?;
    let (description, key) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    let is_valid = !description.is_empty() && description.len() <= KEY_DESCRIPTION_BYTES_MAX;
    let secret = PoolKey(key.try_into().ok()?);
    is_valid.then(|| ClientKey { secret, description: description.to_vec() })
}

/// Reads the key in a file. If the file does not exist, it is created with a random key. No other
/// process may create it at the same time.
///
/// # Errors
/// `PermissionDenied` if the file belongs neither to this user nor to root, or if other users have
/// access to it; `Damaged` or `InvalidInput` if it does not have the key of a store; the errors of
/// open(2), read(2), write(2), fsync(2) and rename(2).
pub fn create_key(path: &Path) -> Result<[u8; KEY_BYTES]> {
    match read_store_key(path) {
        Err(error) if error.kind == ErrorKind::NotFound => create_key_file(path),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use quell_wire::blob::Access;

    use super::*;

    #[test]
    fn a_key_is_created_once_and_refused_if_others_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert_eq!(read_key(&path).unwrap_err().kind, ErrorKind::NotFound);
        let key = create_key(&path).unwrap();
        assert_ne!(key, [0; KEY_BYTES]);
        assert_eq!((create_key(&path).unwrap(), read_key(&path).unwrap().secret.0), (key, key));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(create_key(&path).unwrap_err().kind, ErrorKind::PermissionDenied);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(read_key(&path).unwrap_err().kind, ErrorKind::Damaged);
    }

    #[test]
    fn a_derived_key_is_read_from_its_file_and_derives_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let key = create_key(&path("key")).unwrap();
        let description = KeyDescription { access: Access::Admin, expires_s: Some(5) };
        let write = |bytes: &[u8]| {
            std::fs::write(path("derived"), bytes).unwrap();
            std::fs::set_permissions(path("derived"), std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        let file = derive_key(&path("key"), &description).unwrap();
        write(&file);
        let derived = read_key(&path("derived")).unwrap();
        assert_eq!(derived.description, description.encode().unwrap());
        assert_eq!(derived.secret.0, PoolKey(key).derived(&derived.description).0);
        assert_eq!(derive_key(&path("derived"), &description).unwrap_err().kind, ErrorKind::InvalidInput);
        assert_eq!(create_key(&path("derived")).unwrap_err().kind, ErrorKind::InvalidInput);
        for length in (0..file.len()).filter(|length| *length != KEY_BYTES) {
            write(&file[..length]);
            assert_eq!(read_key(&path("derived")).unwrap_err().kind, ErrorKind::Damaged, "{length}");
        }
        write(&[&file[..], &[0]].concat());
        assert_eq!(read_key(&path("derived")).unwrap_err().kind, ErrorKind::Damaged);
    }
}
