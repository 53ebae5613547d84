//! The locations of stores.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use quell_vfs::{Error, ErrorKind};

/// The location of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory that this process opens: `dir:PATH`, or a path with a slash or without a colon.
    Directory(PathBuf),
    /// A server on this machine, by its socket: `unix:PATH`.
    Socket(PathBuf),
    /// A server on any machine: `quell://HOST:PORT?key=FILE`. FILE is the file `key` in the
    /// directory of the store, or a copy of it. Without `key=FILE`, the environment variable
    /// `QUELL_BLOB_KEY` names the file. `?key=FILE&encrypt` or `?encrypt` is for a server with
    /// `--encrypt`.
    Server {
        /// The host and the port.
        address: String,
        /// The file with the key.
        key: PathBuf,
        /// Whether the connection is encrypted.
        is_encrypted: bool,
    },
}

/// The environment variable that names the file with the key of a server.
const KEY_VARIABLE: &str = "QUELL_BLOB_KEY";

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
            Some((scheme, _)) if !scheme.contains('/') => Err(invalid(
                text,
                "a location is dir:PATH, unix:PATH, quell://HOST:PORT, or the path of a directory",
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
        }
    }
}

fn server(text: &str, rest: &str) -> Result<Location, Error> {
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (query, is_encrypted) = match query.strip_suffix("encrypt") {
        Some(query) => (query.strip_suffix('&').unwrap_or(query), true),
        None => (query, false),
    };
    let key = match query {
        "" => std::env::var_os(KEY_VARIABLE).map(PathBuf::from),
        query => query.strip_prefix("key=").map(PathBuf::from),
    };
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    match key {
        _ if !has_port => Err(invalid(text, "the address of a server is HOST:PORT")),
        Some(key) if !key.as_os_str().is_empty() => {
            Ok(Location::Server { address: address.into(), key, is_encrypted })
        }
        _ => Err(invalid(
            text,
            "the key is missing: add ?key=FILE, or set QUELL_BLOB_KEY to a copy of the file key of the store",
        )),
    }
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
    fn a_path_is_a_directory_and_other_schemes_are_refused() {
        let directory = |path: &str| Location::Directory(path.into());
        let server = |is_encrypted| Location::Server {
            address: "host:7000".into(),
            key: "/a/key".into(),
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
        ] {
            assert_eq!(text.parse::<Location>().ok(), expected, "{text}");
        }
    }
}
