//! `quell batch serve`: shares a store between processes and nodes, until it is ended.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_batch::{BatchStore, ServedPartitions, ServerProcess, StoreAccess};
use quell_batch_server::{Listener, PartitionServer, Protection, Server, ServerOptions, UserGroups};
use quell_vfs::ErrorKind;
use serde_json::json;

use super::batch_background;
use super::batch_store::WAIT;
use crate::arguments::BatchServeArgs;
use crate::failure::Failure;
use crate::inputs::{shown, text_of_bytes};
use crate::output::{self, errln, outln};
use crate::progress::interruption;
use crate::serving::{DRAIN_LIMIT, INTERVAL, advertised, resolve};

pub fn run(args: &BatchServeArgs, quiet: bool) -> Result<ExitCode, Failure> {
    if args.stop {
        match args.partitions {
            true => {
                ServerProcess::find_partition_servers(&args.store)?.iter().try_for_each(ServerProcess::end)?
            }
            false => ServerProcess::find(&args.store)?.end()?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.background {
        let line = batch_background::start(args)?;
        if args.json {
            outln!("{line}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.detached {
        batch_background::leave_session();
    }
    let interrupted = interruption();
    let listen = args.listen.as_deref().map(resolve).transpose()?;
    let public = listen.map(|listen| advertised(listen, args.advertise.as_deref())).transpose()?;
    let options = ServerOptions {
        clients_max: args.clients.into(),
        protection: if args.encrypt { Protection::Encryption } else { Protection::Integrity },
        has_key: listen.is_some(),
        verification_limit: Duration::from_secs(args.verification_limit),
        find_groups,
        ..ServerOptions::default()
    };
    let serve = |listener: &Listener| -> Result<(), Failure> {
        let address = accept(listener, listen, public)?;
        report(args, address.as_deref(), quiet)?;
        wait_for_end(listener, args.idle.map(Duration::from_secs), &interrupted);
        Ok(())
    };
    let (served, stopped) = if args.partitions {
        let server = PartitionServer::start(ServedPartitions::open_free(&args.store)?, &options)?;
        (serve(server.listener()), server.stop(DRAIN_LIMIT))
    } else {
        let server = Server::start(open(args)?, &options)?;
        (serve(server.listener()), server.stop(DRAIN_LIMIT))
    };
    served?;
    stopped?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the groups of a user in the databases of this node.
fn find_groups(uid: u32) -> std::io::Result<Option<UserGroups>> {
    let found = quell_supervisor::groups_of_user(uid)?;
    Ok(found.map(|found| UserGroups { gid: found.gid, groups: found.groups }))
}

/// Opens the store. A server in the background does not wait for the end of another server.
fn open(args: &BatchServeArgs) -> Result<BatchStore, Failure> {
    if !args.detached {
        return Ok(BatchStore::open_dividing(&args.store, WAIT, args.divide_after)?);
    }
    let end = Instant::now() + WAIT;
    loop {
        match BatchStore::open_dividing(&args.store, Duration::ZERO, args.divide_after) {
            Err(error) if error.kind == ErrorKind::Busy => {
                let access = StoreAccess::open_for_batches(&args.store, Duration::ZERO);
                if access.is_ok_and(|access| !access.is_exclusive()) {
                    return Err(Failure::cannot(format!("{} has a server already", shown(&args.store))));
                }
                if Instant::now() >= end {
                    return Err(error.into());
                }
                std::thread::sleep(INTERVAL);
            }
            opened => return Ok(opened?),
        }
    }
}

/// Waits until the process is interrupted, or until the server has had no client for `idle`.
fn wait_for_end(listener: &Listener, idle: Option<Duration>, interrupted: &AtomicBool) {
    let mut last_used = Instant::now();
    while !interrupted.load(Ordering::Relaxed) {
        if listener.clients() > 0 {
            last_used = Instant::now();
        }
        if idle.is_some_and(|idle| last_used.elapsed() >= idle) {
            return;
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Lets clients connect, and returns the address at which clients on other nodes connect.
fn accept(
    listener: &Listener,
    listen: Option<SocketAddr>,
    public: Option<(String, u16)>,
) -> Result<Option<String>, Failure> {
    let mut published = None;
    if let (Some(listen), Some((host, port))) = (listen, public) {
        let bound = listener.listen_tcp(listen)?;
        let address = format!("{host}:{}", if port == 0 { bound.port() } else { port });
        listener.publish(&address)?;
        published = Some(address);
    }
    // The socket is created last: a client that finds it can use the server.
    listener.listen_unix()?;
    Ok(published)
}

/// Reports that clients can connect.
///
/// # Errors
/// The command that has started this server in the background has ended.
fn report(args: &BatchServeArgs, address: Option<&str>, quiet: bool) -> Result<(), Failure> {
    let path = std::path::absolute(&args.store).unwrap_or_else(|_| args.store.clone());
    let line = json!({ "store": text_of_bytes(path.as_os_str().as_bytes()), "address": address });
    if args.detached {
        writeln!(std::io::stdout(), "{line}")
            .map_err(|error| Failure::cannot(format!("cannot report that the server is ready: {error}")))?;
    } else if args.json {
        outln!("{line}");
    } else if !quiet && output::is_terminal() {
        let at = address.map_or_else(String::new, |address| format!(", and at {address} for other nodes"));
        errln!("quell: serving {} on this node{at}", shown(&path));
    }
    Ok(())
}
