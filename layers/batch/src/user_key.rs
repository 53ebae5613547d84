//! The keys with which users of a store for a group connect to its server over TCP. The owner of
//! the store derives them from the key of the store; each user has one in a file below `incoming`.
//! docs/formats/batch-protocol.md describes them.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use quell_batch_service::{FILES_OF_USERS, UserKey};
use quell_posix::PosixDir;
use quell_transport::peer::ClientKey;
use quell_vfs::{Error, ErrorKind, Rename, Result};
use rustix::process::geteuid;

use crate::data::{DIR_PERMISSIONS_OF_GROUP, check_own, made};
use crate::data_names::incoming_name;
use crate::incoming::open_user_dir;
use crate::store_dir::{INCOMING, StoreDir, remove_if_present};

const ROOT: u32 = 0;
/// The file with the key of a user, in the directory of the user below `incoming`.
const KEY: &str = "key";
const NEW_KEY: &str = "key.new";

/// Derives a key from the key of a store that belongs to this user, and returns the content of the
/// file for it.
///
/// # Errors
/// `InvalidInput` if the store is not one for a group, or the user is its owner, root or unknown to
/// the kernel; `NotFound` if the store has no key, because no server has accepted TCP connections;
/// the errors of the file with the key.
pub fn derive_user_key(store: &Path, key: UserKey) -> Result<Vec<u8>> {
    let dir = StoreDir::open(store)?;
    dir.check_format()?;
    let refuse = |kind, reason: &str| {
        let source = Some(reason.to_owned().into());
        Err(Error { source, ..Error::new(kind, "derive a key of", dir.subject()) })
    };
    if !dir.is_shared() {
        return refuse(
            ErrorKind::InvalidInput,
            "it is not a store for a group, so only its owner can use it",
        );
    }
    if key.uid == geteuid().as_raw() {
        return refuse(ErrorKind::InvalidInput, "the user owns the store, and uses its file `key`");
    }
    if UserKey::decode(&key.encode()) != Some(key) {
        return refuse(
            ErrorKind::InvalidInput,
            "no key is possible for root and for user 65534, the id of unknown users",
        );
    }
    match ClientKey::read_underived(&dir.file(KEY)) {
        Err(error) if error.kind == ErrorKind::NotFound => refuse(
            ErrorKind::NotFound,
            "it has no key yet: start its server with: quell batch serve STORE --listen HOST:PORT",
        ),
        Err(error) => {
            Err(Error { subject: dir.path.join(KEY).as_os_str().as_encoded_bytes().to_vec(), ..error })
        }
        Ok(secret) => Ok(ClientKey::derive(&secret, key.encode().to_vec()).file_content()),
    }
}

/// Stores the key in a file as the key with which this user connects to the server of a store of
/// another user. `trusted`: the users to one of which the store may belong.
///
/// # Errors
/// `InvalidInput` if the store belongs to this user, or if the key is not one of this user;
/// `PermissionDenied` if another user has created the directory for the key; the errors of the file
/// with the key, and of files.
pub fn install_user_key(store: &Path, trusted: &[u32], file: &Path) -> Result<()> {
    let dir = StoreDir::open_of(store, trusted)?;
    dir.check_format()?;
    if dir.owner().is_none() {
        let source = Some("it belongs to you: its owner needs no other key".into());
        return Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "store a key in", dir.subject()) });
    }
    let key = own_key(ClientKey::read(file)?, file)?;
    let name = incoming_name(FILES_OF_USERS + u64::from(geteuid().as_raw()));
    let incoming = PosixDir::of_descriptor(dir.open_dir(INCOMING)?);
    let own = made(&incoming, name.as_bytes(), DIR_PERMISSIONS_OF_GROUP)?;
    check_own(&*own, &name)?;
    remove_if_present(&*own, NEW_KEY.as_bytes())?;
    let file = own.create_file(NEW_KEY.as_bytes(), 0o600)?;
    file.write_at(&key.file_content(), 0)?;
    file.sync()?;
    own.rename(NEW_KEY.as_bytes(), &*own, KEY.as_bytes(), Rename::Replace)?;
    own.sync()
}

/// Reads the key with which this user connects to the server of a store of another user.
///
/// # Errors
/// `PermissionDenied` if the user has none; `InvalidInput` if it is not one of this user; the
/// errors of files.
pub(crate) fn read_user_key(dir: &StoreDir) -> Result<ClientKey> {
    let uid = geteuid().as_raw();
    let path = path_of_key(dir, uid);
    let opened = open_user_dir(&dir.open_dir(INCOMING)?, uid);
    let key = opened.and_then(|own| {
        // The path depends only on the descriptor that was checked.
        ClientKey::read(&PathBuf::from(format!("/proc/self/fd/{}/{KEY}", own.as_raw_fd())))
            .map_err(|error| Error { subject: path.as_os_str().as_encoded_bytes().to_vec(), ..error })
    });
    match key {
        Err(error) if error.kind == ErrorKind::NotFound => {
            let owner = dir.owner().unwrap_or_default();
            let reason = match uid {
                ROOT => "its server runs on another node; root can use it there only".to_owned(),
                _ => format!(
                    "its server runs on another node, for which you need a key: get one from its owner, and store it \
                     with: quell batch key STORE --trust-owner {owner} --install FILE"
                ),
            };
            let error = Error::new(ErrorKind::PermissionDenied, "find your key for", dir.subject());
            Err(Error { source: Some(reason.into()), ..error })
        }
        key => own_key(key?, &path),
    }
}

/// Returns the path of the key of a user, for messages.
pub(crate) fn path_of_key(dir: &StoreDir, uid: u32) -> PathBuf {
    dir.path.join(INCOMING).join(incoming_name(FILES_OF_USERS + u64::from(uid))).join(KEY)
}

/// Returns the key in a file if it is one of this user.
fn own_key(key: ClientKey, file: &Path) -> Result<ClientKey> {
    let own = geteuid().as_raw();
    let reason = match UserKey::decode(&key.description) {
        Some(UserKey { uid, .. }) if uid == own => return Ok(key),
        Some(UserKey { uid, .. }) => format!("it is a key of user {uid}, and not of user {own}"),
        None => "it is not the key of a user of a store for batches".to_owned(),
    };
    let error = Error::new(ErrorKind::InvalidInput, "use the key in", file.as_os_str().as_encoded_bytes());
    Err(Error { source: Some(reason.into()), ..error })
}
