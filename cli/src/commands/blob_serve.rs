//! `quell blob serve`: shares a store between processes and machines, until it is ended.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quell_blob::{Location, create_key, open_for_server, open_rados_for_server};
use quell_blob_server::{Protection, Server, ServerOptions, StoreKey};
use serde_json::json;

use crate::arguments::BlobServeArgs;
use crate::failure::Failure;
use crate::inputs::{shown, text_of_bytes};
use crate::output::{self, errln, outln};
use crate::progress::interruption;

/// The largest time for which requests that were begun are answered after the end was requested.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
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
    let (store, directory) = match &args.rados {
        Some(pool) => open_rados_for_server(&path, pool)?,
        None => open_for_server(&path)?,
    };
    // All names are looked up from the descriptor, so the path may change meanwhile.
    let base = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let key = match listen {
        Some(_) => create_key(&base.join("key"))?,
        // Without TCP no client needs to prove a key.
        None => [0; 32],
    };
    let protection = if args.encrypt { Protection::Encryption } else { Protection::Integrity };
    let options = ServerOptions { clients_max: args.clients.into(), protection, ..ServerOptions::default() };
    let server = Server::start(store, StoreKey(key), options)?;
    let address = listen.map(|address| server.listen_tcp(address)).transpose()?;
    // The socket last: a client that finds it can use the server.
    let socket = base.join("socket");
    server.listen_unix(&socket)?;
    report(args, &path, address, quiet);
    while !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(INTERVAL);
    }
    let stopped = server.stop(DRAIN_LIMIT);
    // If this fails, clients find the socket of a server that has ended, and get a clear error.
    let _ = std::fs::remove_file(&socket);
    stopped?;
    Ok(ExitCode::SUCCESS)
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
