//! `quell blob serve`: shares a store between processes and machines, until it is ended.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_blob::{
    Delay, Group, Location, OpenStore, OrphanRemoval, RadosGroups, RadosServer, ServingLease, Start,
    Takeover, create_key, open_for_server, open_rados_directory,
};
use quell_blob_server::{Protection, ReplyPermit, Server, ServerOptions, StoreKey};
use quell_vfs::{Error, ErrorKind};
use serde_json::json;

use crate::arguments::BlobServeArgs;
use crate::failure::Failure;
use crate::inputs::{shown, text_of_bytes};
use crate::output::{self, errln, outln};
use crate::progress::interruption;
use crate::serving::{DRAIN_LIMIT, INTERVAL, advertised, resolve};

/// The parts of a server that all groups of a store share.
struct Shared<'a> {
    args: &'a BlobServeArgs,
    path: &'a Path,
    key: [u8; 32],
    /// The path of the socket; `None` if there are several groups.
    socket: Option<PathBuf>,
    interrupted: &'a AtomicBool,
    quiet: bool,
}

/// A store, or a group of one, that is open.
struct Opened {
    store: OpenStore,
    lease: Option<Arc<ServingLease>>,
    group: Option<Group>,
    /// The number of the group, if there are several.
    number: Option<u32>,
    _removal: Option<OrphanRemoval>,
}

/// The addresses of a server: the one to listen at, and the one that clients find in RADOS.
type Addresses = (Option<SocketAddr>, Option<(String, u16)>);

pub fn run(args: &BlobServeArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let interrupted = interruption();
    let Location::Directory(path) = args.store.parse()? else {
        return Err(Failure::wrong_input(format!(
            "{}: a server opens a directory; pass dir:PATH, or PATH",
            shown(&args.store)
        )));
    };
    let listen = args.listen.as_deref().map(resolve).transpose()?;
    let addresses = (listen, public_address(args, listen)?);
    let shared = |directory: &OwnedFd, has_socket: bool| -> Result<Shared<'_>, Failure> {
        // All names are looked up from the descriptor, so the path may change meanwhile.
        let base = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let key = match listen {
            Some(_) => create_key(&base.join("key"))?,
            // Without TCP no client needs to prove a key.
            None => [0; 32],
        };
        let socket = has_socket.then(|| base.join("socket"));
        Ok(Shared { args, path: &path, key, socket, interrupted: &interrupted, quiet })
    };
    let Some(pool) = &args.rados else {
        let (store, directory) = open_for_server(&path)?;
        let opened = Opened { store, lease: None, group: None, number: None, _removal: None };
        return serve(&shared(&directory, true)?, opened, addresses);
    };
    let directory = open_rados_directory(&path)?;
    let is_interrupted = || interrupted.load(Ordering::Relaxed);
    let mut reported = false;
    let mut delayed = |delay: Delay<'_>| report_delay(args, &delay, quiet, &mut reported);
    let mut start =
        Start { takeover: takeover(args), delayed: &mut delayed, is_interrupted: &is_interrupted };
    let groups = match RadosGroups::open(pool, args.groups, &mut start) {
        Err(error) if error.kind == ErrorKind::Interrupted => return Ok(ExitCode::SUCCESS),
        groups => groups?,
    };
    let shared = shared(&directory, groups.count() == 1)?;
    if groups.count() == 1 && args.serve.iter().all(|group| *group == 0) {
        return serve_group(&shared, &groups, 0, addresses);
    }
    serve_groups(&shared, &groups, &addresses)
}

/// Serves groups of a store, each with threads of its own, until one of them ends.
fn serve_groups(
    shared: &Shared<'_>,
    groups: &RadosGroups,
    (listen, public): &Addresses,
) -> Result<ExitCode, Failure> {
    let all: Vec<u32> = (0..groups.count()).collect();
    let served = if shared.args.serve.is_empty() { &all } else { &shared.args.serve };
    let (Some(listen), Some((host, port))) = (listen, public) else {
        return Err(Failure::wrong_input("the store has several groups of servers: add --listen HOST:PORT"));
    };
    let of_group = |port: u16, group: u32| match port {
        0 => Ok(0),
        port => u16::try_from(u32::from(port) + group)
            .map_err(|_| Failure::wrong_input(format!("--listen: there is no port {port} + {group}"))),
    };
    let mut starts = Vec::new();
    for group in served {
        if *group >= groups.count() || served.iter().filter(|other| *other == group).count() > 1 {
            let count = groups.count();
            return Err(Failure::wrong_input(format!(
                "--serve {group}: the store has groups 0 to {}",
                count - 1
            )));
        }
        let mut listen = *listen;
        listen.set_port(of_group(listen.port(), *group)?);
        starts.push((*group, (Some(listen), Some((host.clone(), of_group(*port, *group)?)))));
    }
    std::thread::scope(|scope| {
        let serve = |(group, addresses)| {
            let run = move || {
                let served = serve_group(shared, groups, group, addresses);
                // The other groups end, too, so that another process can serve all groups of this
                // process.
                shared.interrupted.store(true, Ordering::Relaxed);
                served
            };
            std::thread::Builder::new()
                .name(format!("blob group {group}"))
                .spawn_scoped(scope, run)
                .map_err(|cause| Failure::from(Error::from_io(cause, "start a thread", "blob group")))
        };
        let threads: Vec<_> = starts.into_iter().map(serve).collect();
        let results = threads.into_iter().map(|thread| match thread?.join() {
            Ok(served) => served,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // All threads end before the first failure is returned.
        results.collect::<Vec<_>>().into_iter().find(Result::is_err).unwrap_or(Ok(ExitCode::SUCCESS))
    })
}

/// Serves a group of a store, or a store without groups, in RADOS.
fn serve_group(
    shared: &Shared<'_>,
    groups: &RadosGroups,
    number: u32,
    addresses: Addresses,
) -> Result<ExitCode, Failure> {
    let args = shared.args;
    let mut reported = false;
    let mut delayed = |delay: Delay<'_>| report_delay(args, &delay, shared.quiet, &mut reported);
    let is_interrupted = || shared.interrupted.load(Ordering::Relaxed);
    let mut start =
        Start { takeover: takeover(args), delayed: &mut delayed, is_interrupted: &is_interrupted };
    let opened = match groups.open_group(number, &mut start) {
        Err(error) if error.kind == ErrorKind::Interrupted => return Ok(ExitCode::SUCCESS),
        opened => opened?,
    };
    let RadosServer { store, lease, removal, group } = opened;
    let number = (groups.count() > 1).then_some(number);
    let opened = Opened { store, lease: Some(lease), group, number, _removal: Some(removal) };
    serve(shared, opened, addresses)
}

/// Serves a store, or one of its groups, until the end is requested.
fn serve(shared: &Shared<'_>, opened: Opened, addresses: Addresses) -> Result<ExitCode, Failure> {
    let Opened { store, lease, group, number, _removal } = opened;
    let args = shared.args;
    let protection = if args.encrypt { Protection::Encryption } else { Protection::Integrity };
    let permit = lease.clone().map(|lease| ReplyPermit(Arc::new(move || lease.may_reply())));
    let clients_max = args.clients.into();
    let options = ServerOptions { clients_max, protection, permit, group, ..ServerOptions::default() };
    let server = Server::start(store, StoreKey(shared.key), options)?;
    let served = accept(shared, &server, lease.as_deref(), addresses).map(|address| {
        report(shared, number, address);
        while !shared.interrupted.load(Ordering::Relaxed) {
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
    if let Some(socket) = &shared.socket {
        // If this fails, clients find the socket of a server that has ended, and get a clear error.
        let _ = std::fs::remove_file(socket);
    }
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

/// Lets clients connect, and returns the address for TCP.
fn accept(
    shared: &Shared<'_>,
    server: &Server,
    lease: Option<&ServingLease>,
    (listen, public): Addresses,
) -> Result<Option<SocketAddr>, Failure> {
    let address = listen.map(|address| server.listen_tcp(address)).transpose()?;
    // The socket is created last: a client that finds it can use the server.
    if let Some(socket) = &shared.socket {
        server.listen_unix(socket)?;
    }
    if let Some(lease) = lease {
        let public = match (public, address) {
            (Some((host, 0)), Some(address)) => format!("{host}:{}", address.port()),
            (Some((host, port)), _) => format!("{host}:{port}"),
            (None, _) => String::new(),
        };
        lease.publish(&public, shared.args.encrypt)?;
    }
    Ok(address)
}

/// Returns the host and port that clients find in RADOS. Port 0 stands for the port on which the
/// server listens.
fn public_address(
    args: &BlobServeArgs,
    listen: Option<SocketAddr>,
) -> Result<Option<(String, u16)>, Failure> {
    let Some(listen) = listen.filter(|_| args.rados.is_some()) else { return Ok(None) };
    advertised(listen, args.advertise.as_deref()).map(Some)
}

fn takeover(args: &BlobServeArgs) -> Takeover {
    match (args.standby, args.replace) {
        (true, _) => Takeover::Wait,
        (_, true) => Takeover::Always,
        _ => Takeover::IfDead,
    }
}

/// Prints why the start of a server takes longer. Of the operations that are repeated, only the
/// first is printed, and sets `reported`.
fn report_delay(args: &BlobServeArgs, delay: &Delay<'_>, quiet: bool, reported: &mut bool) {
    match delay {
        _ if quiet => {}
        Delay::OtherServer(address) => {
            if args.standby && !args.json && output::is_terminal() {
                let at = if address.is_empty() { String::new() } else { format!(" at {address}") };
                errln!("quell: waiting for the end of the server{at}");
            }
        }
        Delay::Cluster(error) => {
            if !std::mem::replace(reported, true) {
                errln!("quell: {error}; trying again until the cluster answers");
            }
        }
    }
}

/// Prints the locations by which clients open the store, or a group of it.
fn report(shared: &Shared<'_>, group: Option<u32>, address: Option<SocketAddr>) {
    use std::os::unix::ffi::OsStrExt;
    let args = shared.args;
    let path = std::path::absolute(shared.path).unwrap_or_else(|_| shared.path.to_owned());
    let encrypt = if args.encrypt { "&encrypt" } else { "" };
    if args.json {
        let text = |name: &str| text_of_bytes(path.join(name).as_os_str().as_bytes());
        let mut line = json!({
            "socket": shared.socket.as_ref().map(|_| text("socket")),
            "address": address.map(|address| address.to_string()),
            "key": address.map(|_| text("key")),
        });
        if let Some(group) = group {
            line["group"] = group.into();
        }
        outln!("{line}");
    } else if !shared.quiet && output::is_terminal() {
        if let (Some(group), Some(pool)) = (group, &args.rados) {
            let key = shown(path.join("key"));
            errln!("quell: serving group {group}; clients, with a copy of {key}: {pool}?key=FILE{encrypt}");
            return;
        }
        errln!("quell: serving {}; clients on this machine open the same directory", shown(&path));
        if let Some(address) = address {
            errln!(
                "quell: other machines, with a copy of {}: quell://{address}?key=FILE{encrypt}",
                shown(path.join("key"))
            );
        }
    }
}
