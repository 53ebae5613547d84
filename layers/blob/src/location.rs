//! The locations of stores.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use quell_vfs::{Error, ErrorKind};

/// The location of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory that this process opens: `dir:PATH`, or a path that has no colon before its
    /// first slash.
    Directory(PathBuf),
    /// A server on this machine, by its socket: `unix:PATH`.
    Socket(PathBuf),
    /// A server on any machine: `quell://HOST:PORT?key=FILE`. FILE is the file `key` in the
    /// directory of the store, a copy of it, or the file of a derived key. Without `key=FILE`, the
    /// environment variable `QUELL_BLOB_KEY` names the file. `?key=FILE&encrypt` or `?encrypt` is
    /// for a server with `--encrypt`.
    Server {
        /// The host and the port.
        address: String,
        /// The file with the key.
        key: PathBuf,
        /// Whether the connection is encrypted.
        is_encrypted: bool,
    },
    /// The present server of a store in RADOS: `rados://POOL[/NAMESPACE]?key=FILE`. Programs find
    /// its address in the pool, and find the next server when this server is replaced.
    /// `&client=NAME` names the client of the cluster; the other parts of the query are the same as
    /// for `quell://`.
    Rados {
        /// The pool and the name of the client, as `rados://POOL[/NAMESPACE][?client=NAME]`.
        pool: String,
        /// The file with the key. Only the check of a store needs no key.
        key: Option<PathBuf>,
        /// Whether servers that do not encrypt are refused.
        is_encrypted: bool,
    },
}

/// The environment variable that names the file with the key of a server.
const KEY_VARIABLE: &str = "QUELL_BLOB_KEY";

impl Location {
    /// Returns the file with the key of the store, if the location names one: the file that the
    /// server creates in the directory of the store, or the file of `key=FILE`.
    pub fn key_file(&self) -> Option<PathBuf> {
        match self {
            Location::Directory(path) => Some(path.join("key")),
            Location::Socket(path) => Some(path.with_file_name("key")),
            Location::Server { key, .. } => Some(key.clone()),
            Location::Rados { key, .. } => key.clone(),
        }
    }
}

impl Location {
    /// Returns the location with absolute paths, as text, for processes with another working
    /// directory.
    ///
    /// # Errors
    /// `InvalidInput` if the text of a path would not be the same path, for example because the
    /// path is not UTF-8; the errors of getcwd(2).
    pub fn to_absolute(&self) -> Result<String, Error> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path)
                .map_err(|cause| Error::from_io(cause, "find the path", path.as_os_str().as_bytes()))
        };
        let location = match self {
            Location::Directory(path) => Location::Directory(absolute(path)?),
            Location::Socket(path) => Location::Socket(absolute(path)?),
            Location::Server { address, key, is_encrypted } => Location::Server {
                address: address.clone(),
                key: absolute(key)?,
                is_encrypted: *is_encrypted,
            },
            Location::Rados { pool, key, is_encrypted } => Location::Rados {
                pool: pool.clone(),
                key: key.as_ref().map(absolute).transpose()?,
                is_encrypted: *is_encrypted,
            },
        };
        let text = location.to_string();
        match text.parse::<Location>().is_ok_and(|parsed| parsed == location) {
            true => Ok(text),
            false => {
                Err(invalid(&text, "a path of the location is not UTF-8, or has a character of the query"))
            }
        }
    }
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Location, Error> {
        let directory = |path: &str| match path.is_empty() {
            true => Err(invalid(text, "the path is empty")),
            false => Ok(Location::Directory(path.into())),
        };
        match text.split_once(':') {
            Some(("dir", path)) => directory(path),
            Some(("unix", path)) if !path.is_empty() => Ok(Location::Socket(path.into())),
            Some(("quell", rest)) if rest.starts_with("//") => server(text, &rest[2..]),
            Some(("rados", rest)) if rest.starts_with("//") => rados(text),
            Some((scheme, _)) if !scheme.contains('/') => Err(invalid(
                text,
                "a location is dir:PATH, unix:PATH, quell://HOST:PORT, rados://POOL, or a directory",
            )),
            _ => directory(text),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Directory(path) => write!(f, "dir:{}", path.display()),
            Location::Socket(path) => write!(f, "unix:{}", path.display()),
            Location::Server { address, key, is_encrypted } => {
                let encrypt = if *is_encrypted { "&encrypt" } else { "" };
                write!(f, "quell://{address}?key={}{encrypt}", key.display())
            }
            Location::Rados { pool, key, is_encrypted } => {
                let mut separator = if pool.contains('?') { '&' } else { '?' };
                f.write_str(pool)?;
                if let Some(key) = key {
                    write!(f, "{separator}key={}", key.display())?;
                    separator = '&';
                }
                if *is_encrypted { write!(f, "{separator}encrypt") } else { Ok(()) }
            }
        }
    }
}

/// The query of a location.
#[derive(Default)]
struct Query {
    key: Option<PathBuf>,
    client: Option<String>,
    is_encrypted: bool,
}

/// Returns the query of a location. If it has no key, the environment may name the file with the
/// key.
fn query(text: &str, query: &str) -> Result<Query, Error> {
    let mut found = Query::default();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("key", key)) if !key.is_empty() => found.key = Some(key.into()),
            Some(("client", client)) if !client.is_empty() => found.client = Some(client.to_owned()),
            None if part == "encrypt" => found.is_encrypted = true,
            _ => {
                return Err(invalid(
                    text,
                    "after ? a location has key=FILE, encrypt, and for rados:// client=NAME, with & between them",
                ));
            }
        }
    }
    let variable = || std::env::var_os(KEY_VARIABLE).filter(|key| !key.is_empty());
    found.key = found.key.or_else(|| variable().map(PathBuf::from));
    Ok(found)
}

fn server(text: &str, rest: &str) -> Result<Location, Error> {
    let (address, rest) = rest.split_once('?').unwrap_or((rest, ""));
    let Query { key, client, is_encrypted } = query(text, rest)?;
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    if !has_port || client.is_some() {
        return Err(invalid(text, "the location of a server is quell://HOST:PORT?key=FILE"));
    }
    match key {
        Some(key) => Ok(Location::Server { address: address.into(), key, is_encrypted }),
        None => Err(no_key(text)),
    }
}

fn rados(text: &str) -> Result<Location, Error> {
    let (pool, rest) = text.split_once('?').unwrap_or((text, ""));
    let Query { key, client, is_encrypted } = query(text, rest)?;
    let client = client.map_or(String::new(), |client| format!("?client={client}"));
    Ok(Location::Rados { pool: format!("{pool}{client}"), key, is_encrypted })
}

/// Returns the error of a location of a server without a key.
pub(crate) fn no_key(location: &str) -> Error {
    invalid(
        location,
        "the key is missing: add key=FILE, or set QUELL_BLOB_KEY to a copy of the file key of the store",
    )
}

/// Returns the address of a host and port.
pub(crate) fn resolve(address: &str) -> Result<SocketAddr, Error> {
    let failed = |cause| Error::from_io(cause, "find the server", address);
    let found = address.to_socket_addrs().map_err(failed)?.next();
    found.ok_or_else(|| invalid(address, "the host has no address"))
}

fn invalid(text: &str, reason: &str) -> Error {
    let source = Some(reason.to_string().into());
    Error { source, ..Error::new(ErrorKind::InvalidInput, "open the store", text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absolute_location_is_the_same_store_in_another_directory() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().expect("paths of tests are UTF-8");
        for (text, expected) in [
            ("a/b", format!("dir:{here}/a/b")),
            ("unix:a/socket", format!("unix:{here}/a/socket")),
            ("quell://host:7000?key=k&encrypt", format!("quell://host:7000?key={here}/k&encrypt")),
            ("rados://pool/name?key=/k", "rados://pool/name?key=/k".to_owned()),
        ] {
            assert_eq!(text.parse::<Location>().unwrap().to_absolute().unwrap(), expected);
        }
        let path = std::ffi::OsStr::from_bytes(b"/a\xff");
        let refused = Location::Directory(path.into()).to_absolute().unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidInput);
        // The text would have another key.
        let key = Location::Server { address: "host:1".into(), key: "/a&b".into(), is_encrypted: false };
        assert_eq!(key.to_absolute().unwrap_err().kind, ErrorKind::InvalidInput);
    }

    #[test]
    fn a_path_is_a_directory_and_other_schemes_are_refused() {
        let directory = |path: &str| Location::Directory(path.into());
        let server = |is_encrypted| Location::Server {
            address: "host:7000".into(),
            key: "/a/key".into(),
            is_encrypted,
        };
        let rados = |pool: &str, is_encrypted| Location::Rados {
            pool: pool.into(),
            key: Some("/a/key".into()),
            is_encrypted,
        };
        for (text, expected) in [
            ("dir:/a/b", Some(directory("/a/b"))),
            ("dir:a:b", Some(directory("a:b"))),
            ("a/b", Some(directory("a/b"))),
            ("./a:b", Some(directory("./a:b"))),
            ("", None),
            ("dir:", None),
            ("http://host", None),
            ("unix:/a/socket", Some(Location::Socket("/a/socket".into()))),
            ("unix:", None),
            ("quell://host:7000?key=/a/key", Some(server(false))),
            ("quell://host:7000?key=/a/key&encrypt", Some(server(true))),
            ("quell://host?key=/a/key", None),
            ("quell://host:7000?key=", None),
            ("quell://host:7000?other=1", None),
            ("quell://host:7000?key=/a/key&client=client.a", None),
            (
                "rados://pool/a?client=client.a&key=/a/key",
                Some(rados("rados://pool/a?client=client.a", false)),
            ),
            ("rados://pool?encrypt&key=/a/key", Some(rados("rados://pool", true))),
        ] {
            assert_eq!(text.parse::<Location>().ok(), expected, "{text}");
            if let Some(location) = expected {
                assert_eq!(location.to_string().parse::<Location>().ok(), Some(location));
            }
        }
    }
}
