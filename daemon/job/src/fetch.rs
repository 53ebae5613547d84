//! Receives the files from another node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::decode;
use quell_wire::job::{FileState, Reply, Request};

use crate::calls::{OtherNode, printable};
use crate::contents::Contents;
use crate::environment::Environment;

/// Requests for blocks in flight. With 256 KiB each, this covers 4 MiB: the product of 40 Gbit/s
/// and 0.8 ms.
const IN_FLIGHT: usize = 16;
/// The interval between two checks whether the node is still needed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time after which a call ends by itself. `Progress` ends the wait for it earlier.
const CALL_LIMIT: Duration = Duration::from_secs(3600);

/// The limits of a node that receives files.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The time without a reply after which the parent counts as lost.
    pub answer: Duration,
    /// The time without a list or a block, although the parent replies, after which the node reads
    /// the files itself.
    pub progress: Duration,
}

/// The times of the last replies of a parent.
struct Progress {
    limits: Limits,
    answered: Instant,
    advanced: Instant,
}

impl Progress {
    fn begin(limits: Limits) -> Progress {
        let now = Instant::now();
        Progress { limits, answered: now, advanced: now }
    }

    /// Checks the limits at a time.
    ///
    /// # Errors
    /// `TimedOut` if the parent does not reply; `Busy` if it has nothing to send.
    fn check(&self, now: Instant) -> Result<()> {
        let failure = |kind, reason: &str| Error {
            source: Some(reason.into()),
            ..Error::new(kind, "receive", "files of another node")
        };
        if now.duration_since(self.answered) >= self.limits.answer {
            return Err(failure(ErrorKind::TimedOut, "it does not answer"));
        }
        if now.duration_since(self.advanced) >= self.limits.progress {
            return Err(failure(ErrorKind::Busy, "it has waited too long for the files"));
        }
        Ok(())
    }

    fn answered(&mut self) {
        self.answered = Instant::now();
    }

    fn advanced(&mut self) {
        self.answered();
        self.advanced = self.answered;
    }
}

/// Receives the files from `parent`, and stops waiting for it after the time of `limits`. `count`:
/// the number of files.
///
/// # Errors
/// - `TimedOut` or `Unavailable`: the parent does not answer.
/// - `Damaged`: it has sent wrong bytes. `PermissionDenied`: it has another key.
/// - `Unsupported`: it refuses to serve.
/// - `Busy`: the parent has waited too long for the files itself.
/// - `Conflict`: its files differ from the files that were received before, or the reader could not
///   open one.
/// - `Interrupted`: the node is no longer needed.
/// - The errors of `Environment::admit`.
pub fn fetch(
    parent: &OtherNode,
    contents: &Contents,
    environment: &dyn Environment,
    limits: Limits,
    count: usize,
    received_bytes: &AtomicU64,
) -> Result<()> {
    let mut progress = Progress::begin(limits);
    let files = files_of(parent, environment, &mut progress)?;
    if files.len() != count || !files.iter().all(FileState::is_bounded) {
        return Err(damaged("the list of files"));
    }
    // A failure of the reader need not concern this node, so this node opens the files itself.
    let failed = files.iter().find_map(|file| match file {
        FileState::Failed(reason) => Some(reason),
        FileState::Open(_) => None,
    });
    if let Some(reason) = failed {
        return Err(Error {
            source: Some(format!("the reader of the job could not open one: {}", printable(reason)).into()),
            ..Error::new(ErrorKind::Conflict, "receive", "files of another node")
        });
    }
    if contents.files().is_none() {
        environment.admit(&files)?;
    }
    contents.set_files(files)?;
    let mut missing = contents.missing().into_iter();
    let (sender, results) = channel();
    let ask = |(file, block): (u32, u64)| {
        parent.call(&Request::Block { file, block }, CALL_LIMIT, (file, block), &sender);
    };
    let mut in_flight = 0;
    for block_id in missing.by_ref().take(IN_FLIGHT) {
        in_flight += 1;
        ask(block_id);
    }
    progress.advanced();
    while in_flight > 0 {
        let ((file, block), result) = match results.recv_timeout(POLL_INTERVAL) {
            Ok(received) => received,
            Err(RecvTimeoutError::Timeout) if environment.is_needed() => {
                progress.check(Instant::now())?;
                continue;
            }
            Err(_) => return Err(Error::new(ErrorKind::Interrupted, "receive", "blocks")),
        };
        match result {
            Ok(bytes) => match decode::<Reply<'_>>(&bytes) {
                Ok(Reply::Block { checksum, bytes }) => {
                    contents.add(file, block, checksum, bytes)?;
                    received_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    progress.advanced();
                    match missing.next() {
                        Some(next) => ask(next),
                        None => in_flight -= 1,
                    }
                }
                Ok(Reply::Wait) => {
                    progress.answered();
                    progress.check(Instant::now())?;
                    ask((file, block));
                }
                Ok(Reply::Refused(reason)) => return Err(refused(reason)),
                Ok(_) | Err(_) => return Err(damaged("a reply")),
            },
            Err(e) => {
                let until = progress.answered + limits.answer;
                parent.pause_after(e, until, &|| environment.is_needed())?;
                ask((file, block));
            }
        }
    }
    Ok(())
}

/// Asks for the list of files until the node knows it.
fn files_of(
    parent: &OtherNode,
    environment: &dyn Environment,
    progress: &mut Progress,
) -> Result<Vec<FileState>> {
    loop {
        if !environment.is_needed() {
            return Err(Error::new(ErrorKind::Interrupted, "receive", "the list of files"));
        }
        let bytes = parent.ask(&Request::Files, progress.limits.answer, &|| environment.is_needed())?;
        match decode::<Reply<'_>>(&bytes) {
            Ok(Reply::Files(files)) => return Ok(files),
            Ok(Reply::Wait) => {
                progress.answered();
                progress.check(Instant::now())?;
            }
            Ok(Reply::Refused(reason)) => return Err(refused(reason)),
            Ok(_) | Err(_) => return Err(damaged("the list of files")),
        }
    }
}

fn refused(reason: &str) -> Error {
    Error {
        source: Some(printable(reason).into()),
        ..Error::new(ErrorKind::Unsupported, "receive", "files of another node")
    }
}

fn damaged(subject: &str) -> Error {
    Error {
        source: Some("the other node has sent a wrong message".into()),
        ..Error::new(ErrorKind::Damaged, "receive", subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_lost_only_if_no_reply_arrives_and_is_busy_if_no_block_arrives() {
        let second = Duration::from_secs(1);
        let begun = Instant::now();
        let limits = Limits { answer: 2 * second, progress: 30 * second };
        let mut progress = Progress { limits, answered: begun, advanced: begun };
        assert!(progress.check(begun + second).is_ok());
        assert_eq!(progress.check(begun + 2 * second).unwrap_err().kind, ErrorKind::TimedOut);
        // Replies keep arriving, all of them `Wait`.
        progress.answered = begun + 29 * second;
        assert!(progress.check(begun + 29 * second).is_ok());
        progress.answered = begun + 30 * second;
        assert_eq!(progress.check(begun + 30 * second).unwrap_err().kind, ErrorKind::Busy);
        progress.advanced = begun + 30 * second;
        assert!(progress.check(begun + 31 * second).is_ok());
    }
}
