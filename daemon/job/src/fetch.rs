//! Receives the files from another node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::decode;
use quell_wire::job::{FileState, Reply, Request};

use crate::calls::OtherNode;
use crate::contents::Contents;
use crate::environment::Environment;

/// Requests for blocks in flight. With 256 KiB each, this covers 4 MiB: the product of 40 Gbit/s
/// and 0.8 ms.
const IN_FLIGHT: usize = 16;
/// The interval between two checks whether the node is still needed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The pause after a connection that was lost, before a request is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Receives the files from `parent`, and stops waiting for it after `limit` without an answer.
///
/// # Errors
/// - `TimedOut` or `Unavailable`: the parent does not answer.
/// - `Damaged`: it has sent wrong bytes. `PermissionDenied`: it has another key.
/// - `Unsupported`: it refuses to serve.
/// - `Conflict`: its files are not those that were received before.
/// - `Interrupted`: the node is no longer needed.
/// - Those of `Environment::admit`.
pub fn fetch(
    parent: &OtherNode,
    contents: &Contents,
    environment: &dyn Environment,
    limit: Duration,
    received_bytes: &AtomicU64,
) -> Result<()> {
    let files = files_of(parent, environment, limit)?;
    if !files.iter().all(FileState::is_bounded) {
        return Err(damaged("the list of files"));
    }
    if contents.files().is_none() {
        for file in &files {
            if let FileState::Open(file) = file {
                environment.admit(file)?;
            }
        }
    }
    contents.set_files(files)?;
    let mut missing = contents.missing().into_iter();
    let (sender, results) = channel();
    let ask = |(file, block): (u32, u64)| {
        parent.call(&Request::Block { file, block }, limit, (file, block), &sender);
    };
    let mut in_flight = 0;
    for block_id in missing.by_ref().take(IN_FLIGHT) {
        in_flight += 1;
        ask(block_id);
    }
    let mut answered = Instant::now();
    while in_flight > 0 {
        let ((file, block), result) = match results.recv_timeout(POLL_INTERVAL) {
            Ok(received) => received,
            Err(RecvTimeoutError::Timeout) if environment.is_needed() => continue,
            Err(_) => return Err(Error::new(ErrorKind::Interrupted, "receive", "blocks")),
        };
        match result {
            Ok(bytes) => match decode::<Reply<'_>>(&bytes) {
                Ok(Reply::Block { checksum, bytes }) => {
                    contents.add(file, block, checksum, bytes)?;
                    received_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    answered = Instant::now();
                    match missing.next() {
                        Some(next) => ask(next),
                        None => in_flight -= 1,
                    }
                }
                Ok(Reply::Wait) => {
                    answered = Instant::now();
                    ask((file, block));
                }
                Ok(Reply::Refused(reason)) => return Err(refused(reason)),
                Ok(_) | Err(_) => return Err(damaged("a reply")),
            },
            Err(e) => {
                retry(parent, e, answered, limit)?;
                ask((file, block));
            }
        }
    }
    Ok(())
}

/// Asks for the list of files until the node knows it.
fn files_of(parent: &OtherNode, environment: &dyn Environment, limit: Duration) -> Result<Vec<FileState>> {
    let mut answered = Instant::now();
    loop {
        if !environment.is_needed() {
            return Err(Error::new(ErrorKind::Interrupted, "receive", "the list of files"));
        }
        match parent.ask(&Request::Files, limit) {
            Ok(bytes) => match decode::<Reply<'_>>(&bytes) {
                Ok(Reply::Files(files)) => return Ok(files),
                Ok(Reply::Wait) => answered = Instant::now(),
                Ok(Reply::Refused(reason)) => return Err(refused(reason)),
                Ok(_) | Err(_) => return Err(damaged("the list of files")),
            },
            Err(e) => retry(parent, e, answered, limit)?,
        }
    }
}

/// Decides after a failed call whether the node is asked again: a lost connection does not mean
/// that the process has ended. Otherwise returns the error.
fn retry(parent: &OtherNode, error: Error, answered: Instant, limit: Duration) -> Result<()> {
    let left = limit.saturating_sub(answered.elapsed());
    let may_recover = error.kind == ErrorKind::Unavailable && !left.is_zero();
    match may_recover && OtherNode::is_listening(parent.address, left) {
        true => {
            std::thread::sleep(RETRY_PAUSE);
            Ok(())
        }
        false => Err(error),
    }
}

fn refused(reason: &str) -> Error {
    Error {
        source: Some(reason.into()),
        ..Error::new(ErrorKind::Unsupported, "receive", "files of another node")
    }
}

fn damaged(subject: &str) -> Error {
    Error {
        source: Some("the other node has sent a wrong message".into()),
        ..Error::new(ErrorKind::Damaged, "receive", subject)
    }
}
