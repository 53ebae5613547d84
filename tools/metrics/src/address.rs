//! The address of an endpoint.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The address on which an endpoint listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A port of a loopback address. All users of the node can connect to it.
    Loopback(SocketAddr),
    /// A Unix socket, to which only the user of the endpoint can connect.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    /// Reads `unix:PATH`, or an IP address of the loopback network with a port, such as
    /// `127.0.0.1:9469` or `[::1]:9469`.
    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path of the Unix socket is missing".into()),
            Some(path) => Ok(Address::Unix(path.into())),
            None => match text.parse::<SocketAddr>() {
                Ok(address) if address.ip().is_loopback() => Ok(Address::Loopback(address)),
                Ok(_) => Err("the address is not a loopback address, such as 127.0.0.1".into()),
                Err(_) => Err("an address has the form 127.0.0.1:PORT or unix:PATH".into()),
            },
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Loopback(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_and_unix_sockets_are_addresses() {
        for text in ["127.0.0.1:9469", "127.9.0.1:0", "[::1]:9469", "unix:/run/x", "unix:relative"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "9469", "127.0.0.1", "0.0.0.0:9469", "10.0.0.1:1", "[::]:1", "host:1", "unix:"] {
            text.parse::<Address>().unwrap_err();
        }
    }
}
