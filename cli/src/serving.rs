//! The parts that the commands of servers share.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::failure::Failure;
use crate::inputs::shown;

/// How long a server may take to answer the requests that it has begun, after its end was
/// requested.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// The time between two checks whether the command is to end.
pub const INTERVAL: Duration = Duration::from_millis(50);
/// The largest length of an address that clients find, in bytes.
const ADVERTISED_BYTES_MAX: usize = 250;

/// Returns the address of --listen.
pub fn resolve(address: &str) -> Result<SocketAddr, Failure> {
    let failed = |reason: String| Failure::wrong_input(format!("--listen {}: {reason}", shown(address)));
    let found = address.to_socket_addrs().map_err(|e| failed(e.to_string()))?.next();
    found.ok_or_else(|| failed("the host has no address".into()))
}

/// Returns the host and port that clients find. Port 0 stands for the port on which the server
/// listens.
pub fn advertised(listen: SocketAddr, advertise: Option<&str>) -> Result<(String, u16), Failure> {
    let Some(text) = advertise else {
        if listen.ip().is_unspecified() {
            return Err(Failure::wrong_input(format!(
                "--listen {listen} is not an address to which clients can connect; add --advertise HOST:PORT"
            )));
        }
        let host = if listen.is_ipv6() { format!("[{}]", listen.ip()) } else { listen.ip().to_string() };
        return Ok((host, listen.port()));
    };
    let parsed = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    match parsed {
        Some((host, port)) if !host.is_empty() && text.len() <= ADVERTISED_BYTES_MAX => {
            Ok((host.to_owned(), port))
        }
        _ => Err(Failure::wrong_input(format!(
            "--advertise {}: an address is HOST:PORT with at most {ADVERTISED_BYTES_MAX} bytes",
            shown(text)
        ))),
    }
}
