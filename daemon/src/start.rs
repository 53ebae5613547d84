//! The start of the daemon: it receives its settings through standard input, reports its address
//! and its socket through standard output, and then detaches from the program that has started it.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quell_pool_service::PoolMap;
use quell_wire::pool::{LINE_BYTES_MAX, Listening, MemberId, MemberSettings, PoolSettings, Ready};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use serde::Serialize;
use serde::de::DeserializeOwned;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::Failure;
use crate::service::{self, Service};
use crate::storage;

/// Runs the daemon until it is told to end.
pub fn run() -> Result<(), Failure> {
    trace()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|e| Failure::cannot(format!("cannot handle signals: {e}")))?;
    }
    let mut input = BufReader::new(std::io::stdin());
    let member: MemberSettings = read_line(&mut input)?;
    let storage = storage::open(&member.directory)?;
    let listening = service::Listening::start(&member, storage)?;
    write_line(&Listening::At(listening.address().to_string()))?;
    let pool: PoolSettings = read_line(&mut input)?;
    let ids: Vec<MemberId> = pool.members.iter().map(|(id, _)| *id).collect();
    let map = PoolMap::new(pool.partitions, &ids, pool.chunk_bytes)?;
    let service = Service::start(member.member, &pool, map, listening)?;
    write_line(&Ready::At(member.socket))?;
    detach()?;
    service.run(&stop)
}

/// Writes events to standard error, which the starting program has opened: warnings, or the events
/// that QUELL_LOG selects.
fn trace() -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::Level::WARN.into())
        .with_env_var("QUELL_LOG")
        .from_env()
        .map_err(|e| Failure::wrong_input(format!("QUELL_LOG: {e}")))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    Ok(())
}

/// Reports a failed start to the program that has started the daemon, which is told the same by the
/// exit code if it does not read any more.
pub fn report(failure: &Failure) {
    tracing::error!(%failure, "the daemon has ended");
    let _ = write_line(&Listening::Failed(failure.to_string()));
}

fn read_line<T: DeserializeOwned>(input: &mut impl BufRead) -> Result<T, Failure> {
    let mut line = String::new();
    input
        .take(LINE_BYTES_MAX)
        .read_line(&mut line)
        .map_err(|e| Failure::wrong_input(format!("cannot read the settings: {e}")))?;
    if line.is_empty() {
        return Err(Failure::wrong_input(
            "quelld is started by `quell pool up`, which passes its settings through standard input",
        ));
    }
    serde_json::from_str(&line).map_err(|e| Failure::wrong_input(format!("damaged settings: {e}")))
}

fn write_line(message: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(message).expect("the messages have no maps");
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    let written = output.write_all(&line).and_then(|()| output.flush());
    written.map_err(|e| Failure::cannot(format!("cannot report the start: {e}")))
}

/// Begins a session of its own, and closes the connection to the starting program.
fn detach() -> Result<(), Failure> {
    let failed = |e: rustix::io::Errno| Failure::cannot(format!("cannot detach: {e}"));
    // The process leads its group already if a shell has started it.
    match rustix::process::setsid() {
        Ok(_) | Err(rustix::io::Errno::PERM) => {}
        Err(e) => return Err(failed(e)),
    }
    let null = std::fs::File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|e| Failure::cannot(format!("/dev/null: {e}")))?;
    dup2_stdin(&null).map_err(failed)?;
    dup2_stdout(&null).map_err(failed)
}
