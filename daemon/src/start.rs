//! The start of the daemon: it receives its settings through standard input, reports its address
//! through standard output, and serves until the event that its settings name, a signal, or the
//! command of a client ends it. A clean end removes all its files.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_pool_service::PoolMap;
use quell_wire::pool::{
    Complete, Lifetime, Listening, MemberId, MemberSettings, PoolMember, PoolSettings, Ready,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing_subscriber::fmt::format::FmtSpan;

use crate::address;
use crate::clock::machine;
use crate::failure::Failure;
use crate::input::Input;
use crate::node_files::NodeFiles;
use crate::service::{self, Service};
use crate::storage;

/// Runs the daemon until its end.
pub fn run() -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|e| Failure::cannot(format!("cannot handle signals: {e}")))?;
    }
    // A working directory could not be unmounted.
    std::env::set_current_dir("/").map_err(|e| Failure::cannot(format!("/: {e}")))?;
    let input = Input::start()?;
    let settings: MemberSettings = input.receive(&stop)?;
    trace(settings.log_filter.as_deref())?;
    let files = NodeFiles::create(&settings, machine()?)?;
    let served = serve(&settings, &files, &input, &stop);
    // The service has removed the files, unless its start has failed.
    let removed = files.remove();
    served.and(removed)
}

fn serve(
    settings: &MemberSettings,
    files: &NodeFiles,
    input: &Input,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let listen = address::choose(&settings.listen)?;
    let storage = match settings.memory_bytes {
        Some(bytes) => storage::in_memory(bytes)?,
        None => storage::open(files.base(), &files.data())?,
    };
    let listening = service::Listening::start(settings, listen, &files.socket(), storage)?;
    write_line(&Listening::At(PoolMember {
        id: settings.member,
        host: settings.host.clone(),
        node: files.node().to_owned(),
        pid: std::process::id(),
        directory: files.data(),
        memory_bytes: settings.memory_bytes,
        socket: files.socket(),
        address: listening.address().to_string(),
    }))?;
    let pool: PoolSettings = input.receive(stop)?;
    let ids: Vec<MemberId> = pool.members.iter().map(|member| member.id).collect();
    let map = PoolMap::new(pool.partitions, &ids, pool.chunk_bytes)?.with_consistency(pool.consistency);
    let service = Service::start(settings.member, &pool, map, listening)?;
    files.register(&pool)?;
    // The messages of the start go to the starting program, later ones to a file on the node.
    let log = std::fs::File::create(files.log());
    let log = log.map_err(|e| Failure::cannot(format!("{}: {e}", files.log().display())))?;
    write_line(&Ready::Serving)?;
    let Complete = input.receive(stop)?;
    let failed =
        |e: rustix::io::Errno| Failure::cannot(format!("cannot detach from the starting program: {e}"));
    dup2_stderr(&log).map_err(failed)?;
    if settings.lifetime == Lifetime::Unlimited {
        let null = std::fs::File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|e| Failure::cannot(format!("/dev/null: {e}")))?;
        dup2_stdin(&null).map_err(failed)?;
        dup2_stdout(&null).map_err(failed)?;
        // EPERM: the process is the leader of its group already, because a shell has started it.
        match rustix::process::setsid() {
            Ok(_) | Err(rustix::io::Errno::PERM) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    // Otherwise standard output stays open; its end informs the starting program that the daemon
    // has ended.
    let ends_with_input = settings.lifetime == Lifetime::Input;
    let is_stopped = || stop.load(Ordering::Relaxed) || (ends_with_input && input.is_ended());
    service.run(&is_stopped, || files.remove())
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
    let _ = write_line(&Listening::Failed { code: failure.code(), message });
}

fn write_line(message: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(message).expect("the messages have no maps");
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    let written = output.write_all(&line).and_then(|()| output.flush());
    written.map_err(|e| Failure::cannot(format!("cannot report the start: {e}")))
}
