//! `quell batch serve`: shares a store between processes and nodes, until it is ended.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quell_batch::BatchStore;
use quell_batch_server::{Protection, Server, ServerOptions};
use serde_json::json;

use super::batch_store::WAIT;
use crate::arguments::BatchServeArgs;
use crate::failure::Failure;
use crate::inputs::{shown, text_of_bytes};
use crate::output::{self, errln, outln};
use crate::progress::interruption;
use crate::serving::{DRAIN_LIMIT, INTERVAL, advertised, resolve};

pub fn run(args: &BatchServeArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let interrupted = interruption();
    let listen = args.listen.as_deref().map(resolve).transpose()?;
    let public = listen.map(|listen| advertised(listen, args.advertise.as_deref())).transpose()?;
    let store = BatchStore::open(&args.store, WAIT)?;
    let options = ServerOptions {
        clients_max: args.clients.into(),
        protection: if args.encrypt { Protection::Encryption } else { Protection::Integrity },
        has_key: listen.is_some(),
        verification_limit: Duration::from_secs(args.verification_limit),
        ..ServerOptions::default()
    };
    let server = Server::start(store, &options)?;
    let accepted = accept(&server, listen, public);
    if let Ok(address) = &accepted {
        report(args, address.as_deref(), quiet);
        while !interrupted.load(Ordering::Relaxed) {
            std::thread::sleep(INTERVAL);
        }
    }
    let stopped = server.stop(DRAIN_LIMIT);
    accepted?;
    stopped?;
    Ok(ExitCode::SUCCESS)
}

/// Lets clients connect, and returns the address at which clients on other nodes connect.
fn accept(
    server: &Server,
    listen: Option<SocketAddr>,
    public: Option<(String, u16)>,
) -> Result<Option<String>, Failure> {
    let mut published = None;
    if let (Some(listen), Some((host, port))) = (listen, public) {
        let bound = server.listen_tcp(listen)?;
        let address = format!("{host}:{}", if port == 0 { bound.port() } else { port });
        server.publish(&address)?;
        published = Some(address);
    }
    // The socket is created last: a client that finds it can use the server.
    server.listen_unix()?;
    Ok(published)
}

fn report(args: &BatchServeArgs, address: Option<&str>, quiet: bool) {
    let path = std::path::absolute(&args.store).unwrap_or_else(|_| args.store.clone());
    if args.json {
        outln!("{}", json!({ "store": text_of_bytes(path.as_os_str().as_bytes()), "address": address }));
    } else if !quiet && output::is_terminal() {
        let at = address.map_or_else(String::new, |address| format!(", and at {address} for other nodes"));
        errln!("quell: serving {} on this node{at}", shown(&path));
    }
}
