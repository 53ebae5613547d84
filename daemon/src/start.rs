//! The start of the daemon: it receives its settings through standard input, reports its address
//! through standard output, and serves until the event that its settings name, a signal, or the
//! command of a client ends it. A clean end removes all its files.

use std::fs::File;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use quell_pool_service::PoolMap;
use quell_transport::peer::{Compression, PeerNetwork, PoolId, PoolKey, Protection, Settings, Transport};
use quell_wire::pool::{
    self as wire, Complete, Lifetime, Listening, MemberId, MemberSettings, PoolMember, PoolSettings, Ready,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing_subscriber::fmt::format::FmtSpan;

use crate::address;
use crate::backups::{BackupStorage, Backups};
use crate::clock::machine;
use crate::control::{Daemon, write_line};
use crate::event::Event;
use crate::failure::Failure;
use crate::input;
use crate::node_files::NodeFiles;
use crate::peers::{Placement, number};
use crate::router::Router;
use crate::service::Shared;
use crate::storage;

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
    // A working directory could not be unmounted.
    std::env::set_current_dir("/").map_err(|e| Failure::cannot(format!("/: {e}")))?;
    let (sender, events) = channel();
    input::start(sender.clone())?;
    let settings: MemberSettings = input::receive(&events, &stop)?;
    trace(settings.log_filter.as_deref())?;
    let files = NodeFiles::create(&settings, machine()?)?;
    let served = serve(&settings, &files, (sender, &events), &stop);
    // The daemon has removed the files, unless its start has failed.
    let removed = files.remove(&[]);
    served.and(removed)
}

fn serve(
    settings: &MemberSettings,
    files: &NodeFiles,
    (sender, events): (Sender<Event>, &Receiver<Event>),
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let listen = address::choose(&settings.listen)?;
    let storage = match settings.memory_bytes {
        Some(bytes) => storage::in_memory(bytes)?,
        None => storage::open(files.base(), &files.data())?,
    };
    let (jobs, receiver) = channel();
    let router = Arc::new(Router::new(jobs.clone()));
    let network: Arc<dyn Transport> = Arc::new(start_network(settings, listen, Arc::clone(&router))?);
    let backup_storage = match settings.memory_bytes {
        Some(bytes) => BackupStorage::Memory { bytes_max: bytes },
        None => BackupStorage::Disk { base: files.base().to_owned(), directory: files.backups() },
    };
    let backups = Backups::start((jobs, receiver), backup_storage)?;
    let own = PoolMember {
        id: settings.member,
        daemon: settings.daemon,
        backups: Vec::new(),
        host: settings.host.clone(),
        node: files.node().to_owned(),
        pid: std::process::id(),
        directory: files.data(),
        memory_bytes: settings.memory_bytes,
        socket: files.socket_of(settings.member),
        address: network.address().to_string(),
    };
    write_line(&Listening::At(own), REPORT)?;
    let pool: PoolSettings = input::receive(events, stop)?;
    let ids: Vec<MemberId> = pool.members.iter().map(|member| member.id).collect();
    let map = PoolMap::new(pool.partitions, &ids, pool.chunk_bytes)?.with_consistency(pool.consistency);
    let placement = Arc::new(Placement::new(pool.replicas > 1));
    let addresses: Vec<_> = pool.members.iter().map(|m| (m.daemon, m.address.clone())).collect();
    placement.set(&*network, &pool.members, &addresses)?;
    let shared = Shared { daemon: settings.daemon, router, network, placement, events: sender };
    let mut daemon = Daemon::new(pool.clone(), map, shared, backups);
    let started = daemon.start_member(settings.member, storage, files);
    let served = started.and_then(|()| {
        files.register(&pool)?;
        // The messages of the start go to the starting program, later ones to a file on the node.
        let log = std::fs::File::create(files.log());
        let log = log.map_err(|e| Failure::cannot(format!("{}: {e}", files.log().display())))?;
        write_line(&Ready::Serving, REPORT)?;
        let Complete = input::receive(events, stop)?;
        detach(settings.lifetime, &log)?;
        // With the lifetime `Input`, standard output stays open; its end informs the starting
        // program that the daemon has ended.
        let ends_with_input = settings.lifetime == Lifetime::Input;
        daemon.run(events, files, ends_with_input, &|| stop.load(Ordering::Relaxed))
    });
    let ended = daemon.end(files);
    served.and(ended)
}

/// Begins to listen for other daemons.
fn start_network(
    settings: &MemberSettings,
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

/// Directs messages to the log, and leaves the session of the starting program, if the daemon does
/// not end with it.
fn detach(lifetime: Lifetime, log: &File) -> Result<(), Failure> {
    let failed =
        |e: rustix::io::Errno| Failure::cannot(format!("cannot detach from the starting program: {e}"));
    dup2_stderr(log).map_err(failed)?;
    if lifetime == Lifetime::Unlimited {
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|e| Failure::cannot(format!("/dev/null: {e}")))?;
        dup2_stdin(&null).map_err(failed)?;
        dup2_stdout(&null).map_err(failed)?;
        // EPERM: the process is the leader of its group already, because a shell has started it.
        match rustix::process::setsid() {
            Ok(_) | Err(rustix::io::Errno::PERM) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(())
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
        // It would print the error to standard error, and panic because that fails, too.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

/// Reports a failed start to the program that has started the daemon, which is told the same by the
/// exit code if it does not read any more.
pub fn report(failure: &Failure) {
    let message = failure.to_string();
    let _ = write_line(&Listening::Failed { code: failure.code(), message }, REPORT);
}
