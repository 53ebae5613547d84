//! The start of the daemon: it receives its settings through standard input, reports its address
//! through standard output, and serves until the end of its input, a signal, or the command of a
//! client ends it. A clean end removes all its files.

use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use quell_pool_service::PoolMap;
use quell_transport::peer::{Compression, PeerNetwork, PoolId, PoolKey, Protection, Settings, Transport};
use quell_wire::pool::{
    self as wire, Complete, DaemonSettings, Listening, MemberId, PoolDaemon, PoolSettings, Ready,
};
use rustix::stdio::dup2_stderr;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing_subscriber::fmt::format::FmtSpan;

use crate::address;
use crate::backups::Backups;
use crate::clock::machine;
use crate::control::{Daemon, write_line};
use crate::event::Event;
use crate::failure::Failure;
use crate::input;
use crate::node_files::NodeFiles;
use crate::placement::{Placement, number};
use crate::router::Router;
use crate::service::Shared;
use crate::storage::DaemonStorage;

/// The purpose of the messages of the start, in errors.
const REPORT: &str = "report the start";

/// The largest number of threads that compress.
const THREADS_MAX: usize = 4;

/// Runs the daemon until its end.
pub fn run() -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|e| Failure::cannot(format!("cannot handle signals: {e}")))?;
    }
    // A file system in which a process has its working directory cannot be unmounted.
    std::env::set_current_dir("/").map_err(|e| Failure::cannot(format!("/: {e}")))?;
    let (sender, events) = channel();
    input::start(sender.clone())?;
    let settings: DaemonSettings = input::receive(&events, &stop)?;
    trace(settings.log_filter.as_deref())?;
    let files = NodeFiles::create(&settings, machine()?)?;
    let served = serve(&settings, &files, (sender, &events), &stop);
    // The daemon has removed the files, unless its start has failed.
    let removed = files.remove(&[]);
    served.and(removed)
}

fn serve(
    settings: &DaemonSettings,
    files: &NodeFiles,
    (sender, events): (Sender<Event>, &Receiver<Event>),
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let listen = address::choose(&settings.listen)?;
    let storage = Arc::new(match settings.memory_bytes {
        Some(bytes) => DaemonStorage::in_memory(bytes)?,
        None => DaemonStorage::on_disk(files.base(), &files.data())?,
    });
    let is_new = settings.storage == settings.daemon;
    let open = |member| if is_new { storage.open(member) } else { storage.take_over(member) };
    let opened = settings.members.iter().map(|member| Ok((*member, open(*member)?)));
    let opened = opened.collect::<Result<Vec<_>, Failure>>()?;
    let (jobs, receiver) = channel();
    let router = Arc::new(Router::new(jobs.clone()));
    let network: Arc<dyn Transport> = Arc::new(start_network(settings, listen, Arc::clone(&router))?);
    let backups = Backups::start((jobs, receiver), Arc::clone(&storage))?;
    let own = PoolDaemon {
        id: settings.daemon,
        host: settings.host.clone(),
        node: files.node().to_owned(),
        pid: std::process::id(),
        directory: files.data(),
        memory_bytes: settings.memory_bytes,
        sockets: files.sockets().to_owned(),
        address: network.address().to_string(),
    };
    write_line(&Listening::At(own), REPORT)?;
    let pool: PoolSettings = input::receive(events, stop)?;
    let ids: Vec<MemberId> = pool.members.iter().map(|member| member.id).collect();
    let map = PoolMap::new(pool.partitions, &ids, pool.chunk_bytes)?.with_consistency(pool.consistency);
    let placement = Arc::new(Placement::new(pool.replicas > 1));
    placement.set(&*network, &pool.members, &pool.daemons)?;
    router.connect(&network, &placement, settings.daemon);
    let shared = Shared { daemon: settings.daemon, router, network, placement, events: sender };
    let mut daemon = Daemon::new(pool.clone(), map, shared, (backups, storage));
    let started = opened.into_iter().try_for_each(|(member, storage)| {
        let serves_clients = Some(&member) == settings.members.first();
        daemon.start_member(member, storage, serves_clients)
    });
    let served = started.and_then(|()| {
        // The messages of the start go to the starting program, later ones to a file on the node.
        let log = std::fs::File::create(files.log());
        let log = log.map_err(|e| Failure::cannot(format!("{}: {e}", files.log().display())))?;
        files.register(&pool)?;
        write_line(&Ready::Serving, REPORT)?;
        let Complete = input::receive(events, stop)?;
        dup2_stderr(&log).map_err(|e| Failure::cannot(format!("cannot write messages to a file: {e}")))?;
        daemon.run(events, files, &|| stop.load(Ordering::Relaxed))
    });
    let ended = daemon.end(files);
    served.and(ended)
}

/// Begins to listen for other daemons.
fn start_network(
    settings: &DaemonSettings,
    listen: SocketAddr,
    router: Arc<Router>,
) -> Result<PeerNetwork, Failure> {
    let (pool, key) = (PoolId(settings.pool.to_le_bytes()), PoolKey(settings.key));
    let network = Settings::new(pool, key, number(settings.daemon), listen);
    let protection = if settings.encrypts { Protection::Encryption } else { Protection::Integrity };
    let compression = match settings.compression {
        wire::Compression::None => Compression::None,
        wire::Compression::Lz4 => Compression::Lz4,
        wire::Compression::Zstd => Compression::Zstd,
    };
    // Compression takes more time than everything else, so connections share the processors.
    let threads = match compression {
        Compression::None => network.threads,
        _ => std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX),
    };
    Ok(PeerNetwork::start(Settings { protection, compression, threads, ..network }, router)?)
}

/// Writes events to standard error, which the starting program has opened: warnings, or the events
/// that `filter` or QUELL_LOG selects. An event that cannot be written is lost.
fn trace(filter: Option<&str>) -> Result<(), Failure> {
    let filter = filter.map(str::to_owned).or_else(|| std::env::var("QUELL_LOG").ok());
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::Level::WARN.into())
        .parse(filter.unwrap_or_default())
        .map_err(|e| Failure::wrong_input(format!("QUELL_LOG: {e}; for example: QUELL_LOG=debug")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_thread_names(true)
        .with_span_events(FmtSpan::CLOSE)
        // The library would print the error to standard error, and panic because that fails, too.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

/// Reports a failed start to the program that has started the daemon, which learns it from the exit
/// code if it does not read any more.
pub fn report(failure: &Failure) {
    let message = failure.to_string();
    let _ = write_line(&Listening::Failed { code: failure.code(), message }, REPORT);
}
