//! `quell blob serve`: shares a store between processes and machines, until it is ended.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quell_blob::{
    Location, RadosServer, ServingLease, Takeover, create_key, open_for_server, open_rados_for_server,
};
use quell_blob_server::{Protection, ReplyPermit, Server, ServerOptions, StoreKey};
use quell_vfs::{Error, ErrorKind};
use serde_json::json;

use crate::arguments::BlobServeArgs;
use crate::failure::Failure;
use crate::inputs::{shown, text_of_bytes};
use crate::output::{self, errln, outln};
use crate::progress::interruption;

/// The largest time for which requests that were begun are answered after the end was requested.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// The largest length of an address that clients find in RADOS, in bytes.
const ADVERTISED_BYTES_MAX: usize = 250;
/// The time between two checks whether the command is to end.
const INTERVAL: Duration = Duration::from_millis(50);

pub fn run(args: &BlobServeArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let interrupted = interruption();
    let Location::Directory(path) = args.store.parse()? else {
        return Err(Failure::wrong_input(format!(
            "{}: a server opens a directory; pass dir:PATH, or PATH",
            shown(&args.store)
        )));
    };
    let listen = args.listen.as_deref().map(resolve).transpose()?;
    let public = public_address(args, listen)?;
    let (store, directory, lease, _removal) = match &args.rados {
        Some(pool) => {
            let takeover = match (args.standby, args.replace) {
                (true, _) => Takeover::Wait,
                (_, true) => Takeover::Always,
                _ => Takeover::IfDead,
            };
            let mut waits = |address: &str| report_standby(args, address, quiet);
            let is_interrupted = || interrupted.load(Ordering::Relaxed);
            match open_rados_for_server(&path, pool, takeover, &mut waits, &is_interrupted) {
                Err(error) if error.kind == ErrorKind::Interrupted => return Ok(ExitCode::SUCCESS),
                opened => {
                    let RadosServer { store, directory, lease, removal } = opened?;
                    (store, directory, Some(lease), Some(removal))
                }
            }
        }
        None => {
            let (store, directory) = open_for_server(&path)?;
            (store, directory, None, None)
        }
    };
    // All names are looked up from the descriptor, so the path may change meanwhile.
    let base = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let key = match listen {
        Some(_) => create_key(&base.join("key"))?,
        // Without TCP no client needs to prove a key.
        None => [0; 32],
    };
    let protection = if args.encrypt { Protection::Encryption } else { Protection::Integrity };
    let permit = lease.clone().map(|lease| ReplyPermit(Arc::new(move || lease.may_reply())));
    let options =
        ServerOptions { clients_max: args.clients.into(), protection, permit, ..ServerOptions::default() };
    let server = Server::start(store, StoreKey(key), options)?;
    let socket = base.join("socket");
    let served = serve(args, &server, lease.as_deref(), (listen, public), &socket, &|address| {
        report(args, &path, address, quiet);
        while !interrupted.load(Ordering::Relaxed) {
            if let Some(lost) = lease.as_ref().and_then(|lease| lease.lost()).or_else(|| server.failure()) {
                return Some(lost);
            }
            std::thread::sleep(INTERVAL);
        }
        None
    });
    let drain_limit = if matches!(served, Ok(None)) { DRAIN_LIMIT } else { Duration::ZERO };
    if let Some(lease) = &lease {
        // A cluster that hangs does not keep the server from ending.
        lease.limit_waits(drain_limit);
    }
    let stopped = server.stop(drain_limit);
    // If this fails, clients find the socket of a server that has ended, and get a clear error.
    let _ = std::fs::remove_file(&socket);
    if let Some(lease) = &lease {
        lease.end();
    }
    if let Some(lost) = served? {
        let reason = lost.source.as_ref().map_or_else(|| lost.to_string(), ToString::to_string);
        return Err(Failure::cannot(format!("the server of {} ends: {reason}", shown(&args.store))));
    }
    stopped?;
    Ok(ExitCode::SUCCESS)
}

/// Lets clients connect, and calls `wait` with the address for TCP. Returns the result of `wait`:
/// the reason for which the server can serve no longer, if there is one.
fn serve(
    args: &BlobServeArgs,
    server: &Server,
    lease: Option<&ServingLease>,
    (listen, public): (Option<SocketAddr>, Option<(String, u16)>),
    socket: &Path,
    wait: &dyn Fn(Option<SocketAddr>) -> Option<Error>,
) -> Result<Option<Error>, Failure> {
    let address = listen.map(|address| server.listen_tcp(address)).transpose()?;
    // The socket last: a client that finds it can use the server.
    server.listen_unix(socket)?;
    if let Some(lease) = lease {
        let public = match (public, address) {
            (Some((host, 0)), Some(address)) => format!("{host}:{}", address.port()),
            (Some((host, port)), _) => format!("{host}:{port}"),
            (None, _) => String::new(),
        };
        lease.publish(&public, args.encrypt)?;
    }
    Ok(wait(address))
}

/// Returns the host and port that clients find in RADOS. Port 0 is that of the socket.
fn public_address(
    args: &BlobServeArgs,
    listen: Option<SocketAddr>,
) -> Result<Option<(String, u16)>, Failure> {
    let Some(listen) = listen.filter(|_| args.rados.is_some()) else { return Ok(None) };
    let Some(text) = &args.advertise else {
        if listen.ip().is_unspecified() {
            return Err(Failure::wrong_input(format!(
                "--listen {listen} is not an address to which clients can connect; add --advertise HOST:PORT"
            )));
        }
        let host = if listen.is_ipv6() { format!("[{}]", listen.ip()) } else { listen.ip().to_string() };
        return Ok(Some((host, listen.port())));
    };
    let parsed = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    match parsed {
        Some((host, port)) if !host.is_empty() && text.len() <= ADVERTISED_BYTES_MAX => {
            Ok(Some((host.to_owned(), port)))
        }
        _ => Err(Failure::wrong_input(format!(
            "--advertise {}: an address is HOST:PORT with at most {ADVERTISED_BYTES_MAX} bytes",
            shown(text)
        ))),
    }
}

/// States that this server waits for the end of another one.
fn report_standby(args: &BlobServeArgs, address: &str, quiet: bool) {
    if args.standby && !args.json && !quiet && output::is_terminal() {
        let at = if address.is_empty() { String::new() } else { format!(" at {address}") };
        errln!("quell: waiting for the end of the server{at}");
    }
}

fn resolve(address: &str) -> Result<SocketAddr, Failure> {
    let failed = |reason: String| Failure::wrong_input(format!("--listen {}: {reason}", shown(address)));
    let found = address.to_socket_addrs().map_err(|e| failed(e.to_string()))?.next();
    found.ok_or_else(|| failed("the host has no address".into()))
}

/// Prints the locations by which clients open the store.
fn report(args: &BlobServeArgs, path: &Path, address: Option<SocketAddr>, quiet: bool) {
    use std::os::unix::ffi::OsStrExt;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if args.json {
        let text = |name: &str| text_of_bytes(path.join(name).as_os_str().as_bytes());
        let line = json!({
            "socket": text("socket"),
            "address": address.map(|address| address.to_string()),
            "key": address.map(|_| text("key")),
        });
        outln!("{line}");
    } else if !quiet && output::is_terminal() {
        errln!("quell: serving {}; clients on this machine open the same directory", shown(&path));
        if let Some(address) = address {
            let encrypt = if args.encrypt { "&encrypt" } else { "" };
            errln!(
                "quell: other machines, with a copy of {}: quell://{address}?key=FILE{encrypt}",
                shown(path.join("key"))
            );
        }
    }
}
