//! The files of a store by which clients find its server: a Unix socket, and for clients on other
//! nodes the address and the key. docs/formats/batch-protocol.md describes them.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use quell_posix::{Dir, WritableDir};
use quell_transport::peer::{
    ClientKey, ClientSettings, Endpoint, NamedKey, PoolKey, Protection, Role, UnixClients, create_key_file,
    read_key_file,
};
use quell_vfs::{Error, ErrorKind, Rename, Result};

use crate::store_dir::{StoreDir, remove_if_present};
use crate::user_key::read_user_key;

/// The names of the files.
pub(crate) const SOCKET: &str = "socket";
const KEY: &str = "key";
const COMMIT_KEY: &str = "commit-key";
const ADDRESS: &[u8] = b"address";
const NEW_ADDRESS: &[u8] = b"address.new";
/// The largest length of the file with the address, in bytes.
const ADDRESS_BYTES_MAX: usize = 300;
/// The words for the protection of messages over TCP.
const INTEGRITY: &str = "integrity";
const ENCRYPTION: &str = "encryption";
const KEY_BYTES: usize = 32;
/// The time for which a client waits until a server accepts the connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The name of the commit key, which an auxiliary server proves.
const AUXILIARY: &[u8] = b"auxiliary server";

/// The files by which clients find the server of a store.
#[derive(Debug)]
pub struct ServerFiles(StoreDir);

impl ServerFiles {
    pub(crate) fn new(dir: StoreDir) -> ServerFiles {
        ServerFiles(dir)
    }

    /// Returns the path of the socket. It is valid as long as this value exists.
    pub fn socket(&self) -> PathBuf {
        self.0.file(SOCKET)
    }

    /// Returns the users whose processes the server serves at the socket.
    pub fn clients(&self) -> UnixClients {
        if self.0.is_shared() { UnixClients::OfAllUsers } else { UnixClients::OfThisUser }
    }

    /// Returns the group of a store for a group.
    ///
    /// # Errors
    /// The errors of fstat(2).
    pub fn group(&self) -> Result<Option<u32>> {
        if self.0.is_shared() { self.0.gid().map(Some) } else { Ok(None) }
    }

    /// Returns the key of the store, and creates it if it does not exist. The caller has the store
    /// open.
    ///
    /// # Errors
    /// `PermissionDenied` or `Damaged` if the file is not as a server has created it; the errors of
    /// files.
    pub fn key(&self) -> Result<PoolKey> {
        match read_key(&self.0, KEY) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                create_key_file(&self.0.file(KEY)).map(PoolKey)
            }
            found => found,
        }
    }

    /// Returns the key of auxiliary servers, and creates it if it does not exist: stores of earlier
    /// versions have none. The caller has the store open.
    ///
    /// # Errors
    /// As for [`key`](Self::key).
    pub fn commit_key(&self) -> Result<NamedKey> {
        let key = match read_key(&self.0, COMMIT_KEY) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                create_key_file(&self.0.file(COMMIT_KEY)).map(PoolKey)
            }
            found => found,
        };
        Ok(NamedKey { name: AUXILIARY, key: key? })
    }

    /// Publishes the address of the server, `HOST:PORT`, for clients on other nodes.
    ///
    /// # Errors
    /// The errors of files.
    pub fn publish(&self, address: &str, protection: Protection) -> Result<()> {
        let files = self.0.files()?;
        remove_if_present(&files, NEW_ADDRESS)?;
        let word = if protection == Protection::Encryption { ENCRYPTION } else { INTEGRITY };
        // Members of the group connect to the address as well.
        let file = files.create_file(NEW_ADDRESS, self.0.file_permissions())?;
        file.write_at(format!("{address} {word}\n").as_bytes(), 0)?;
        // After a power failure, and on other nodes, the name must not have an empty file.
        file.sync()?;
        files.rename(NEW_ADDRESS, &files, ADDRESS, Rename::Replace)?;
        WritableDir::sync(&files)
    }

    /// Removes the socket and the address, so that clients do not look for a server that has ended.
    ///
    /// # Errors
    /// The errors of files.
    pub fn remove(&self) -> Result<()> {
        let files = self.0.files()?;
        remove_if_present(&files, ADDRESS)?;
        remove_if_present(&files, SOCKET.as_bytes())
    }
}

/// Finds the server of a store. Errors: `Unavailable` if no server accepts connections; for a
/// server over TCP, the errors of the file with the key, and `PermissionDenied` for a user without
/// a key, unless the user is the owner of the store.
pub(crate) fn find_server(dir: &StoreDir) -> Result<ClientSettings> {
    find_server_with(dir, &|| read_client_key(dir))
}

/// Reads the key with which this user connects to a server over TCP. Errors: those of the file, and
/// `PermissionDenied` for a user without a key, unless the user is the owner of the store.
pub(crate) fn read_client_key(dir: &StoreDir) -> Result<ClientKey> {
    match dir.owner() {
        Some(_) => read_user_key(dir),
        None => Ok(ClientKey { secret: read_key(dir, KEY)?, description: Vec::new() }),
    }
}

/// Finds the server of a store for an auxiliary server. Errors: as for [`find_server`]; the errors
/// of the file with the commit key.
pub(crate) fn find_primary(dir: &StoreDir) -> Result<ClientSettings> {
    let key = read_key(dir, COMMIT_KEY).map_err(|error| match error.kind {
        ErrorKind::NotFound => {
            let reason =
                "it has no commit key, which the server (`quell batch serve`) creates when it starts";
            let source = Some(reason.into());
            Error { source, ..Error::new(ErrorKind::NotFound, "read the key of", dir.subject()) }
        }
        _ => error,
    })?;
    let named = ClientKey { secret: key.clone(), description: AUXILIARY.to_vec() };
    let found = find_server_with(dir, &|| Ok(named.clone()))?;
    Ok(ClientSettings { key, description: named.description, has_named_key: true, ..found })
}

fn find_server_with(dir: &StoreDir, key: &dyn Fn() -> Result<ClientKey>) -> Result<ClientSettings> {
    let unavailable = |cause: &dyn std::fmt::Display| {
        let hint = match dir.owner() {
            Some(_) => {
                "ask the owner of the store to start: quell batch serve STORE (with --listen HOST:PORT for other nodes)"
            }
            None => "start a server with: quell batch serve STORE",
        };
        let reason = format!("{cause}; {hint}");
        Error {
            source: Some(reason.into()),
            ..Error::new(ErrorKind::Unavailable, "find the server of", dir.subject())
        }
    };
    let socket = dir.file(SOCKET);
    let by_socket = match UnixStream::connect(&socket) {
        Ok(_) => {
            let key = PoolKey([0; KEY_BYTES]);
            let settings = ClientSettings::new(Role::Batch, Endpoint::Unix(socket), key);
            return Ok(ClientSettings { server_user: dir.owner(), ..settings });
        }
        Err(cause) => cause,
    };
    // If the server runs on another node, its socket accepts no connections on this node.
    let Some((published, protection)) = read_address(dir)? else { return Err(unavailable(&by_socket)) };
    let address = match resolve(&published) {
        Ok(address) => address,
        // A name server that does not answer now may answer later.
        Err(cause) => {
            let reason = format!("cannot resolve the address of the server, `{published}`: {cause}");
            let error = Error::new(ErrorKind::Unavailable, "find the server of", dir.subject());
            return Err(Error { source: Some(reason.into()), ..error });
        }
    };
    TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(|cause| unavailable(&cause))?;
    let ClientKey { secret, description } = key()?;
    let settings = ClientSettings::new(Role::Batch, Endpoint::Tcp(address), secret);
    Ok(ClientSettings { protection, description, ..settings })
}

fn read_key(dir: &StoreDir, name: &str) -> Result<PoolKey> {
    let bytes = read_key_file(&dir.file(name), KEY_BYTES)?;
    match bytes.try_into() {
        Ok(key) => Ok(PoolKey(key)),
        Err(_) => Err(damaged(dir, &format!("the file `{name}` does not have 32 bytes"))),
    }
}

/// Returns the first address of a published `HOST:PORT`.
fn resolve(published: &str) -> std::io::Result<SocketAddr> {
    use std::net::ToSocketAddrs;
    published.to_socket_addrs()?.next().ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into())
}

/// Returns the published `HOST:PORT` and the protection in the file, if there is one.
fn read_address(dir: &StoreDir) -> Result<Option<(String, Protection)>> {
    let file = match dir.files()?.open_file(ADDRESS) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = [0; ADDRESS_BYTES_MAX + 1];
    let length = file.read_at(&mut bytes, 0)?;
    match parse_address(&bytes[..length]) {
        Some(found) => Ok(Some(found)),
        None => Err(damaged(dir, "the file `address` does not have its format")),
    }
}

fn parse_address(bytes: &[u8]) -> Option<(String, Protection)> {
    if bytes.len() > ADDRESS_BYTES_MAX {
        return None;
    }
    let (address, word) = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.split_once(' ')?;
    let protection = match word {
        INTEGRITY => Protection::Integrity,
        ENCRYPTION => Protection::Encryption,
        _ => return None,
    };
    let (host, port) = address.rsplit_once(':')?;
    // Messages contain the address, which another user may have written.
    let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
    (is_host && port.parse::<u16>().is_ok()).then(|| (address.to_owned(), protection))
}

fn damaged(dir: &StoreDir, reason: &str) -> Error {
    let source = Some(reason.to_owned().into());
    Error { source, ..Error::new(ErrorKind::Damaged, "find the server of", dir.subject()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_published_and_nothing_else_is() {
        for (text, expected) in [
            ("127.0.0.1:70 integrity\n", Some(Protection::Integrity)),
            ("[::1]:70 encryption\n", Some(Protection::Encryption)),
            ("no-such-host.invalid:70 integrity\n", Some(Protection::Integrity)),
            (":70 integrity\n", None),
            ("host\u{1b}[31m:70 integrity\n", None),
            ("h\u{f6}st:70 integrity\n", None),
            ("127.0.0.1:70000 integrity\n", None),
            ("127.0.0.1:70 integrity", None),
            ("127.0.0.1:70 none\n", None),
            ("127.0.0.1 integrity\n", None),
            ("127.0.0.1:70\n", None),
            ("", None),
        ] {
            let found = parse_address(text.as_bytes());
            let of_text = |protection| (text.split_once(' ').expect("a word").0.to_owned(), protection);
            assert_eq!(found, expected.map(of_text), "{text}");
        }
        assert_eq!(parse_address(&[b'1'; ADDRESS_BYTES_MAX + 1]), None);
    }
}
