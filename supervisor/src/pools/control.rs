//! The Unix socket by which commands reach the keeper of a pool, on the node on which the pool was
//! started. It has an abstract address, so that it ends with the keeper. The address contains the
//! random number of the pool, which other users cannot read, and each side checks the user of the
//! other side.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use quell_runtime::Registry;
use rustix::net::sockopt::socket_peercred;

use crate::failure::Failure;
use crate::pools::keep::StartedPool;
use crate::pools::messages::{CommandProgress, KeeperAnswer, KeeperCommand};
use crate::pools::running::Event;

/// The longest command or answer, in bytes: 1,024 command lines.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// How long the keeper waits for the command of a connection.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// Returns the address of the keeper of the pool with this number.
fn address(number: u128) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("quell-keeper-{number:032x}"))
}

fn is_own(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Starts a thread that passes commands to the keeper.
pub fn listen(pool: &StartedPool) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::cannot(format!("cannot listen for commands: {e}"));
    let listener = address(pool.secret.number()).and_then(|address| UnixListener::bind_addr(&address));
    let listener = listener.map_err(failed)?;
    let events = pool.events();
    let accept = move || {
        for stream in listener.incoming() {
            let (Ok(stream), events) = (stream, events.clone()) else {
                // The process has no free descriptor, or there is no memory.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if is_own(&stream) {
                // If the thread cannot be started, the connection is closed.
                let serve = move || drop(serve(&stream, &events));
                let _ = std::thread::Builder::new().name("quell-control".into()).spawn(serve);
            }
        }
    };
    let started = std::thread::Builder::new().name("quell-control".into()).spawn(accept);
    started.map(drop).map_err(failed)
}

/// Passes a command to the keeper, and its answers back.
fn serve(stream: &UnixStream, events: &Sender<Event>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(COMMAND_LIMIT))?;
    let mut line = String::new();
    BufReader::new(stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
    let command: KeeperCommand = serde_json::from_str(&line)?;
    let (sender, answers) = channel();
    // After the end of the keeper there is no answer.
    let _ = events.send(Event::Command(command, sender));
    for answer in answers {
        let is_last = !matches!(answer, KeeperAnswer::Progress(_));
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        (&*stream).write_all(&line)?;
        if is_last {
            break;
        }
    }
    Ok(())
}

/// Sends a command to the keeper of a pool, and waits until it has ended. `report` is called with
/// each progress message.
///
/// # Errors
///
/// `Failure::cannot` if no keeper runs on this node; the failure of the command.
pub fn send_command(
    pool: &str,
    command: &KeeperCommand,
    report: &mut dyn FnMut(CommandProgress),
) -> Result<(), Failure> {
    match connect(pool)? {
        Some(stream) => send(&stream, command, report).map_err(|e| no_answer(pool, &e))?,
        None => Err(Failure::cannot(format!(
            "the process that keeps the pool {pool} does not run on this node; use the command on the node on which `quell pool up` was used"
        ))),
    }
}

/// Ends the keeper of a pool, if it runs on this node.
///
/// # Errors
///
/// `Failure::cannot` if the keeper does not answer.
pub fn end_keeper(pool: &str) -> Result<(), Failure> {
    let Some(stream) = connect(pool)? else { return Ok(()) };
    let ended = send(&stream, &KeeperCommand::End, &mut |_| ()).or_else(|e| match e.kind() {
        // The keeper has ended after the last daemon.
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Ok(Ok(())),
        _ => Err(no_answer(pool, &e)),
    });
    ended?
}

fn no_answer(pool: &str, error: &std::io::Error) -> Failure {
    Failure::cannot(format!("no answer of the keeper of the pool {pool}: {error}"))
}

/// Connects to the keeper of a pool. `None` if it does not run on this node.
fn connect(pool: &str) -> Result<Option<UnixStream>, Failure> {
    let keeper = format!("the keeper of the pool {pool}");
    let Some(number) = Registry::of_user()?.number(pool)? else { return Ok(None) };
    match address(number).and_then(|address| UnixStream::connect_addr(&address)) {
        Ok(stream) if is_own(&stream) => Ok(Some(stream)),
        Ok(_) => Err(Failure::cannot(format!("another user listens at the address of {keeper}"))),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(None),
        Err(e) => Err(Failure::cannot(format!("cannot connect to {keeper}: {e}"))),
    }
}

/// Sends a command, and returns its result.
fn send(
    stream: &UnixStream,
    command: &KeeperCommand,
    report: &mut dyn FnMut(CommandProgress),
) -> std::io::Result<Result<(), Failure>> {
    let mut line = serde_json::to_vec(command)?;
    line.push(b'\n');
    let mut output = stream;
    output.write_all(&line)?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = String::new();
        (&mut input).take(LINE_BYTES_MAX).read_line(&mut line)?;
        if line.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        match serde_json::from_str(&line)? {
            KeeperAnswer::Progress(progress) => report(progress),
            KeeperAnswer::Done => return Ok(Ok(())),
            KeeperAnswer::Failed { code, message } => return Ok(Err(Failure::with_code(code, message))),
        }
    }
}
