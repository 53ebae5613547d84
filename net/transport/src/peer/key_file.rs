//! The files with the keys of servers, which only their owner can read: a key of 32 random bytes,
//! or a key that was derived from it. docs/formats/peer-protocol.md describes the files.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};

use super::settings::{DESCRIPTION_BYTES_MAX, PoolKey};

/// The length of a key, in bytes.
const KEY_BYTES: usize = 32;
/// The first bytes of the file of a derived key, with the version of its format. The length of the
/// description follows, in 2 bytes, and then the description and the key.
const MAGIC: [u8; 10] = *b"QUELLKEY\x01\0";
const FILE_BYTES_MAX: usize = MAGIC.len() + 2 + DESCRIPTION_BYTES_MAX + KEY_BYTES;
/// The name of the operation in errors.
const READ: &str = "read the key in";

/// A key with which a client connects to a server.
#[derive(Debug, Clone)]
pub struct ClientKey {
    /// The key itself.
    pub secret: PoolKey,
    /// The description from which the key was derived; empty for the key of the server.
    pub description: Vec<u8>,
}

impl ClientKey {
    /// Reads the key of a server, or a key that was derived from it.
    ///
    /// # Errors
    /// As for [`read_key_file`]; `Damaged` also if the file does not have the format of a key.
    pub fn read(path: &Path) -> Result<ClientKey> {
        let bytes = read_key_file(path, FILE_BYTES_MAX)?;
        if let Ok(key) = bytes[..].try_into() {
            return Ok(ClientKey { secret: PoolKey(key), description: Vec::new() });
        }
        match decode(&bytes) {
            Some(key) => Ok(key),
            None => refuse(ErrorKind::Damaged, path, "it does not have the format of a key"),
        }
    }

    /// Reads the key of a server, from which other keys are derived.
    ///
    /// # Errors
    /// As for [`read_key_file`]; `InvalidInput` for a derived key; `Damaged` if the file does not
    /// have 32 bytes.
    pub fn read_underived(path: &Path) -> Result<PoolKey> {
        match ClientKey::read(path) {
            Ok(key) if key.description.is_empty() => Ok(key.secret),
            Ok(_) => {
                refuse(ErrorKind::InvalidInput, path, "it is a derived key; the key of the store is needed")
            }
            Err(error) if error.kind == ErrorKind::Damaged => {
                refuse(ErrorKind::Damaged, path, "it does not have 32 bytes")
            }
            Err(error) => Err(error),
        }
    }

    /// Derives a key from that of a server, as [`PoolKey::derived`] does. The description is not
    /// empty.
    pub fn derive(from: &PoolKey, description: Vec<u8>) -> ClientKey {
        ClientKey { secret: from.derived(&description), description }
    }

    /// Returns the content of the file for a derived key.
    pub fn file_content(&self) -> Vec<u8> {
        let length = (self.description.len() as u16).to_le_bytes();
        [&MAGIC[..], &length, &self.description, &self.secret.0].concat()
    }
}

/// Returns the derived key in a file with this content, if it has the format.
pub(super) fn decode(file: &[u8]) -> Option<ClientKey> {
    let (length, rest) = file.strip_prefix(&MAGIC)?.split_first_chunk()?;
    let (description, key) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    let is_valid = !description.is_empty() && description.len() <= DESCRIPTION_BYTES_MAX;
    let secret = PoolKey(key.try_into().ok()?);
    is_valid.then(|| ClientKey { secret, description: description.to_vec() })
}

fn refuse<T>(kind: ErrorKind, path: &Path, reason: &str) -> Result<T> {
    let source = Some(reason.to_string().into());
    Err(Error { source, ..Error::new(kind, READ, path.as_os_str().as_bytes()) })
}

/// Reads a file that has a key, and to which no other user has access. Of a longer file, the first
/// `bytes_max` bytes and one more are returned.
///
/// # Errors
/// `PermissionDenied` if the file belongs neither to this user nor to root, or if other users have
/// access to it; `Damaged` if it is not a regular file; the errors of open(2) and read(2).
pub fn read_key_file(path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
    let failed = |cause| Error::from_io(cause, READ, path.as_os_str().as_bytes());
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file =
        File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.uid() != rustix::process::geteuid().as_raw() && found.uid() != 0 {
        return refuse(ErrorKind::PermissionDenied, path, "it belongs to another user");
    }
    if found.mode() & 0o077 != 0 {
        return refuse(
            ErrorKind::PermissionDenied,
            path,
            "other users have access to it; withdraw their permissions: chmod go= FILE",
        );
    }
    if !found.is_file() {
        return refuse(ErrorKind::Damaged, path, "it is not a regular file");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_derived_key_has_its_format() {
        let key = ClientKey::derive(&PoolKey([7; 32]), b"read".to_vec());
        let file = key.file_content();
        assert_eq!(file, include_bytes!("../../../../fuzz/seeds/peer_handshake/key_file"));
        assert_eq!(file[..16], *b"QUELLKEY\x01\0\x04\0read");
        assert_eq!(decode(&file).expect("a key").secret.0, PoolKey([7; 32]).derived(b"read").0);
        for length in 0..file.len() {
            assert!(decode(&file[..length]).is_none(), "{length}");
        }
        assert!(decode(&[&file[..], &[0]].concat()).is_none());
    }
}
