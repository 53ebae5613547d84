//! An auxiliary server: a process of the owner of a store, which verifies batches for the primary
//! server, and has the commit key of the store (BatchFS, section II-F).

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use quell_batch_service::{
    Bytes, PROTOCOL, Reply, Request, Verdict, VerificationResult, VerificationTask, verify_task,
};
use quell_transport::peer::Client;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::{Failure, decode, encode};

use crate::auxiliary_servers::TASK_BYTES_MAX;
use crate::copied_batch::{copy_batch, needs_copy};
use crate::server_files::find_primary;
use crate::store::read_certificate;
use crate::store_dir::{OPEN, StoreDir};
use crate::verification_dir::{VerificationDir, remove_verification};

/// The time for which the auxiliary server waits for a batch before it asks again.
const WAIT_LIMIT: Duration = Duration::from_secs(5);
/// The time for which the first request is sent.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// The time for which a verdict is sent.
const VERDICT_LIMIT: Duration = Duration::from_secs(60);
/// The interval at which the process checks whether it must end.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The pause before the auxiliary server connects again.
const PAUSE: Duration = Duration::from_millis(200);
/// The time for which the auxiliary server waits until the primary server has received the
/// disconnect message.
const GOODBYE_LIMIT: Duration = Duration::from_millis(200);
/// The largest reply to a request other than the request for a batch, in bytes.
const REPLY_BYTES_MAX: u32 = 4096;

/// An auxiliary server of a store.
#[derive(Debug)]
pub struct AuxiliaryServer {
    dir: StoreDir,
    name: String,
}

/// An event of an auxiliary server.
#[derive(Debug)]
pub enum AuxiliaryEvent {
    /// The auxiliary server is connected to the primary server.
    Connected,
    /// The auxiliary server has lost the connection to the primary server, or has found no primary
    /// server.
    NoServer(Error),
    /// The auxiliary server begins to verify a batch, or a part of one.
    Begun {
        /// The number of the batch or part.
        batch: u64,
    },
    /// The auxiliary server has ended the verification.
    Ended {
        /// The number of the batch or part.
        batch: u64,
        /// The number of new entries and the number of conflicts of the batch so far, after the
        /// primary server has received the verdict; or the error.
        result: Result<(u64, u64)>,
    },
}

impl AuxiliaryServer {
    /// Opens the directory of a store of this user, for an auxiliary server with this name.
    ///
    /// # Errors
    /// `NotFound` if there is no store; `PermissionDenied` if it belongs to another user; the
    /// errors of files.
    pub fn open(path: &Path, name: &str) -> Result<AuxiliaryServer> {
        let subject = path.as_os_str().as_bytes();
        let found = std::fs::metadata(path).map_err(|cause| Error::from_io(cause, OPEN, subject))?;
        if found.uid() != rustix::process::geteuid().as_raw() {
            let reason = format!("only its owner, user {}, verifies its batches", found.uid());
            let error = Error::new(ErrorKind::PermissionDenied, OPEN, subject);
            return Err(Error { source: Some(reason.into()), ..error });
        }
        let dir = StoreDir::open(path)?;
        dir.check_format()?;
        Ok(AuxiliaryServer { dir, name: name.to_owned() })
    }

    /// Verifies one batch after the other, until `is_ending` is set; then it completes the
    /// verification that it has begun. Waits if there is no primary server. `report` receives each
    /// event.
    ///
    /// # Errors
    /// `PermissionDenied` if the primary server refuses the commit key; `Unsupported` if it uses
    /// another version of the protocol; the errors of the file with the key.
    pub fn run(&self, is_ending: &AtomicBool, report: &mut dyn FnMut(AuxiliaryEvent)) -> Result<()> {
        let mut is_known = false;
        while !is_ending.load(Ordering::Relaxed) {
            let served = match self.connect() {
                Ok(client) => {
                    let primary = Primary { client: &client, is_ending };
                    let served = primary.greet().and_then(|()| {
                        is_known = false;
                        report(AuxiliaryEvent::Connected);
                        self.serve(&primary, report)
                    });
                    client.stop(GOODBYE_LIMIT);
                    served
                }
                Err(error) => Err(error),
            };
            let Err(error) = served else { return Ok(()) };
            match error.kind {
                ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::Busy => {}
                _ => return Err(error),
            }
            if !std::mem::replace(&mut is_known, true) {
                report(AuxiliaryEvent::NoServer(error));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Verifies the batches of a primary server, until the process is to end.
    fn serve(&self, primary: &Primary<'_>, report: &mut dyn FnMut(AuxiliaryEvent)) -> Result<()> {
        while !primary.is_ending.load(Ordering::Relaxed) {
            if let Some((verification, task)) = primary.next(&self.name)? {
                let batch = task.record.number;
                report(AuxiliaryEvent::Begun { batch });
                let result = self.verify_for(primary, verification, &task);
                report(AuxiliaryEvent::Ended { batch, result });
            }
        }
        Ok(())
    }

    fn connect(&self) -> Result<Client> {
        Client::start(find_primary(&self.dir)?)
    }

    /// Verifies a batch, and sends the verdict. Returns the numbers of new entries and conflicts.
    fn verify_for(
        &self,
        primary: &Primary<'_>,
        verification: u64,
        task: &VerificationTask,
    ) -> Result<(u64, u64)> {
        let number = task.record.number;
        let verdict =
            self.verify(verification, task).and_then(|verdict| Ok((verdict.encode(number)?, verdict)));
        let result = match &verdict {
            Ok((encoded, _)) => VerificationResult::Verified(Bytes(encoded.clone())),
            Err(error) => VerificationResult::Failed(Failure::new(error)),
        };
        let sent = primary.send(&Request::Verdict { verification, result });
        if verdict.is_err() || sent.is_err() {
            // Files that remain are removed as garbage.
            let _ = remove_verification(&self.dir, verification);
        }
        verdict.and_then(|(_, verdict)| sent.map(|()| (verdict.entries(), verdict.conflicts())))
    }

    /// Verifies a batch, and writes the new tables to a directory of the verification.
    ///
    /// # Errors
    /// `InvalidInput` if the batch is refused; `Damaged`; the errors of files.
    pub fn verify(&self, verification: u64, task: &VerificationTask) -> Result<Verdict> {
        let dir = VerificationDir::create(&self.dir, verification)?;
        let image = self.dir.image_tables()?;
        if needs_copy(&self.dir, &task.record) {
            let copy = dir.make_submitted(&self.dir)?;
            copy_batch(&self.dir, &task.record, &copy, false)?;
            let verdict = verify_task(task, &copy.certificate()?, &copy.tables, &image, dir.output.clone())?;
            dir.remove_submitted(&self.dir)?;
            return Ok(verdict);
        }
        let (certificate, batch) = read_certificate(&self.dir, task.record.number)?;
        verify_task(task, &certificate, &batch.tables, &image, dir.output.clone())
    }
}

/// The connection to a primary server.
struct Primary<'a> {
    client: &'a Client,
    is_ending: &'a AtomicBool,
}

impl Primary<'_> {
    /// Checks the version of the primary server.
    fn greet(&self) -> Result<()> {
        match self.call(&Request::Hello { protocol: PROTOCOL }, HELLO_LIMIT) {
            Ok(Reply::Welcome { .. }) => Ok(()),
            Ok(_) => Err(unexpected()),
            Err(error) if error.kind == ErrorKind::PermissionDenied => {
                let reason = format!(
                    "{error}; the server has another commit key, or its version of Quell has no auxiliary servers"
                );
                Err(Error { source: Some(reason.into()), ..Error::new(error.kind, OPERATION, "") })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the next task. `None` if there is no task for some time, or if the process is to
    /// end.
    fn next(&self, name: &str) -> Result<Option<(u64, Box<VerificationTask>)>> {
        // The client may be connected to a server that has replaced the server of the last request.
        self.greet()?;
        let request = Request::NextVerification { name: name.to_owned() };
        let (sender, receiver) = channel();
        let done = Box::new(move |result| _ = sender.send(result));
        self.client.call(encode(&request), TASK_BYTES_MAX as u32, Instant::now() + WAIT_LIMIT, done);
        let result = loop {
            match receiver.recv_timeout(LOOK_INTERVAL) {
                Ok(result) => break result,
                Err(RecvTimeoutError::Timeout) if self.is_ending.load(Ordering::Relaxed) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break Err(closed()),
            }
        };
        match result.and_then(|reply| decode(&reply)) {
            Ok(Reply::Verification { verification, task }) => Ok(Some((verification, task))),
            Ok(Reply::Failed(failure)) => Err(failure.into_error(OPERATION, b"")),
            Ok(_) => Err(unexpected()),
            Err(error) if error.kind == ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a verdict. Errors: `Stale` if the primary server does not wait for the verdict any
    /// more.
    fn send(&self, verdict: &Request) -> Result<()> {
        match self.call(verdict, VERDICT_LIMIT)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Sends a request, and returns the short reply.
    fn call(&self, request: &Request, limit: Duration) -> Result<Reply> {
        let (sender, receiver) = channel();
        let done = Box::new(move |result| _ = sender.send(result));
        self.client.call(encode(request), REPLY_BYTES_MAX, Instant::now() + limit, done);
        let reply = receiver.recv().unwrap_or_else(|_| Err(closed()))?;
        match decode(&reply)? {
            Reply::Failed(failure) => Err(failure.into_error("call", b"the primary server")),
            reply => Ok(reply),
        }
    }
}

const OPERATION: &str = "wait for a batch of the primary server";

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, OPERATION, "")
}

fn unexpected() -> Error {
    let source = Some("the reply does not belong to the request".into());
    Error { source, ..Error::new(ErrorKind::Damaged, OPERATION, "") }
}
