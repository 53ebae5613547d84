//! The keys of a store, in files that only their owner can read. The key of the store is 32 random
//! bytes; other keys are derived from it, and give only some rights. Clients over TCP prove that
//! they know one of these keys. docs/formats/blob-protocol.md describes the files.

use std::path::Path;

use quell_transport::peer::{ClientKey, create_key_file};
use quell_vfs::{ErrorKind, Result};
use quell_wire::blob::KeyDescription;

/// Derives a key from the key of a store, and returns the content of the file for it. `store_key`
/// is the file with the key of the store.
///
/// # Errors
/// `InvalidInput` if the description exceeds a limit, or for the file of a derived key. For the
/// file, the same errors as for `key=FILE` in a location of [`Store::open`](crate::Store::open).
pub fn derive_key(store_key: &Path, description: &KeyDescription) -> Result<Vec<u8>> {
    let description = description.encode()?;
    Ok(ClientKey::derive(&ClientKey::read_underived(store_key)?, description).file_content())
}

/// Reads the key in a file. If the file does not exist, it is created with a random key. No other
/// process may create it at the same time.
///
/// # Errors
/// `PermissionDenied` if the file belongs neither to this user nor to root, or if other users have
/// access to it; `Damaged` or `InvalidInput` if it does not have the key of a store; the errors of
/// open(2), read(2), write(2), fsync(2) and rename(2).
pub fn create_key(path: &Path) -> Result<[u8; 32]> {
    match ClientKey::read_underived(path) {
        Err(error) if error.kind == ErrorKind::NotFound => create_key_file(path),
        found => Ok(found?.0),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use quell_transport::peer::PoolKey;
    use quell_wire::blob::Access;

    use super::*;

    #[test]
    fn a_key_is_created_once_and_refused_if_others_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert_eq!(ClientKey::read(&path).unwrap_err().kind, ErrorKind::NotFound);
        let key = create_key(&path).unwrap();
        assert_ne!(key, [0; 32]);
        assert_eq!((create_key(&path).unwrap(), ClientKey::read(&path).unwrap().secret.0), (key, key));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(create_key(&path).unwrap_err().kind, ErrorKind::PermissionDenied);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(ClientKey::read(&path).unwrap_err().kind, ErrorKind::Damaged);
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
        let derived = ClientKey::read(&path("derived")).unwrap();
        assert_eq!(derived.description, description.encode().unwrap());
        assert_eq!(derived.secret.0, PoolKey(key).derived(&derived.description).0);
        assert_eq!(derive_key(&path("derived"), &description).unwrap_err().kind, ErrorKind::InvalidInput);
        assert_eq!(create_key(&path("derived")).unwrap_err().kind, ErrorKind::InvalidInput);
        for length in (0..file.len()).filter(|length| *length != 32) {
            write(&file[..length]);
            assert_eq!(ClientKey::read(&path("derived")).unwrap_err().kind, ErrorKind::Damaged, "{length}");
        }
        write(&[&file[..], &[0]].concat());
        assert_eq!(ClientKey::read(&path("derived")).unwrap_err().kind, ErrorKind::Damaged);
    }
}
