//! The requests of a program to the server of a store: they are repeated after a lost reply, and
//! long requests and replies are sent and fetched in parts.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use quell_blob_service::{CommitResult, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN};
use quell_threads::lock;
use quell_transport::peer::was_not_executed;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    DATA_BYTES_MAX, ExtentPart, MESSAGE_BYTES_MAX, Operation, Refusal, Reply, Request, Transaction,
    TransferId, UPLOAD_BYTES_MAX, Version, WrittenExtent,
};
use quell_wire::{decode, encode};

use super::link::Link;

/// The largest reply to a request without a long result, in bytes.
pub(super) const SHORT_REPLY_BYTES: u32 = 4096;
/// The bytes of a reply besides its data, its names or its results.
pub(super) const REPLY_OVERHEAD_BYTES: usize = 512;
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(20);
/// The time for which a client waits until the server has received its disconnect message.
const GOODBYE_LIMIT: Duration = Duration::from_millis(200);

pub(super) struct Connection {
    pub(super) link: Arc<Link>,
    /// The name of the server in messages.
    pub(super) name: String,
    /// A random number, which identifies the transactions of this connection.
    pub(super) id: u128,
    /// The number of the last transaction, and of the last upload.
    pub(super) last_number: AtomicU64,
    /// The latest version that the server has stated.
    pub(super) known: AtomicU64,
    /// The time for which a request is repeated.
    pub(super) limit: Duration,
    /// Passes commits to the thread that repeats them; `None` before the first such commit.
    pub(super) repeater: Mutex<Option<Sender<Unfinished>>>,
    /// The directory to which the path of the socket refers, if there is one.
    pub(super) _directory: Option<OwnedFd>,
}

/// A commit that was sent.
pub(super) struct SentCommit {
    pub(super) transaction: Transaction,
    pub(super) deadline: Instant,
    pub(super) done: Box<dyn FnOnce(CommitResult) + Send>,
}

/// A commit that needs more than one request.
pub(super) enum Unfinished {
    /// The commit is sent again.
    Repeat(SentCommit),
    /// The result of the commit is fetched in parts. The number of the reply, and its length in
    /// bytes.
    Fetch(SentCommit, TransferId, u64),
}

impl Connection {
    pub(super) fn error(&self, kind: ErrorKind, reason: &str) -> Error {
        let source = Some(reason.to_string().into());
        Error { source, ..Error::new(kind, "call the server at", self.name.as_bytes()) }
    }

    pub(super) fn unexpected(&self, reply: Reply) -> Error {
        match reply {
            Reply::Failed(failure) => failure.into_error("call the server at", self.name.as_bytes()),
            Reply::Refused(Refusal::Failed { failure, .. }) => {
                failure.into_error("apply an operation at", self.name.as_bytes())
            }
            Reply::Refused(refusal @ Refusal::Locked { .. }) => {
                let error = Error::new(ErrorKind::Busy, "read from the server at", self.name.as_bytes());
                Error { source: Some(Box::new(refusal)), ..error }
            }
            Reply::Refused(refusal) => self.error(ErrorKind::Conflict, &refusal.to_string()),
            Reply::Unknown => self.error(
                ErrorKind::Stale,
                "the server was restarted, or has ended this client; repeat the transaction",
            ),
            _ => self.error(ErrorKind::Damaged, "the reply does not belong to the request"),
        }
    }

    pub(super) fn know(&self, version: Version) {
        self.known.fetch_max(version.0, Ordering::Relaxed);
    }

    pub(super) fn number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a request once.
    pub(super) fn begin(
        &self,
        request: Vec<u8>,
        reply_bytes_max: u32,
        deadline: Instant,
    ) -> Receiver<Result<Vec<u8>>> {
        let (sender, receiver) = channel();
        // The receiver may no longer wait.
        let done = Box::new(move |result| _ = sender.send(result));
        self.link.request(request, reply_bytes_max, deadline, done);
        receiver
    }

    /// Sends a request that can be repeated, and waits for the reply.
    pub(super) fn call(&self, request: &Request, reply_bytes_max: u32) -> Result<Reply> {
        self.call_until(request, reply_bytes_max, Instant::now() + self.limit)
    }

    /// Sends a request that can be repeated, and waits for the reply until the deadline.
    pub(super) fn call_until(
        &self,
        request: &Request,
        reply_bytes_max: u32,
        deadline: Instant,
    ) -> Result<Reply> {
        let encoded = encode(request);
        let first = self.begin(encoded.clone(), reply_bytes_max, deadline);
        self.finish(first, &encoded, reply_bytes_max, deadline)
    }

    /// Waits for the reply to a request, and repeats it if the connection was lost.
    pub(super) fn finish(
        &self,
        first: Receiver<Result<Vec<u8>>>,
        request: &[u8],
        reply_bytes_max: u32,
        deadline: Instant,
    ) -> Result<Reply> {
        match decode(&self.finish_encoded(first, request, reply_bytes_max, deadline)?)? {
            Reply::Long { reply, length_bytes } => self.fetch(reply, length_bytes, deadline),
            reply => Ok(reply),
        }
    }

    /// Waits for the encoding of the reply to a request, and repeats the request if the connection
    /// was lost.
    pub(super) fn finish_encoded(
        &self,
        first: Receiver<Result<Vec<u8>>>,
        request: &[u8],
        reply_bytes_max: u32,
        deadline: Instant,
    ) -> Result<Vec<u8>> {
        let mut receiver = first;
        loop {
            let result = receiver.recv().map_err(|_| self.error(ErrorKind::Unavailable, "it is closed"))?;
            match result {
                Ok(reply) => return Ok(reply),
                Err(error) if is_transient(&error) && Instant::now() + PAUSE < deadline => {
                    std::thread::sleep(PAUSE);
                    receiver = self.begin(request.to_vec(), reply_bytes_max, deadline);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Fetches a long reply.
    pub(super) fn fetch(&self, reply: TransferId, length_bytes: u64, deadline: Instant) -> Result<Reply> {
        if length_bytes > 2 * UPLOAD_BYTES_MAX as u64 {
            return Err(self.error(ErrorKind::Damaged, "the server announces too long a reply"));
        }
        let mut encoded = Vec::new();
        while (encoded.len() as u64) < length_bytes {
            let request = encode(&Request::Fetch { reply, offset: encoded.len() as u64 });
            let first = self.begin(request.clone(), MESSAGE_BYTES_MAX as u32, deadline);
            match self.finish(first, &request, MESSAGE_BYTES_MAX as u32, deadline)? {
                Reply::Data(part) if !part.is_empty() => encoded.extend(part),
                other => return Err(self.unexpected(other)),
            }
        }
        self.forget(&Request::Discard(reply));
        decode(&encoded)
    }

    /// Sends a request that frees memory of the server, and does not wait for the reply. If the
    /// request is lost, the server frees the memory when this client ends.
    pub(super) fn forget(&self, request: &Request) {
        let deadline = Instant::now() + self.limit;
        self.link.request(encode(request), SHORT_REPLY_BYTES, deadline, Box::new(|_| ()));
    }

    /// Uploads bytes in parts.
    pub(super) fn upload(&self, bytes: &[u8], deadline: Instant) -> Result<TransferId> {
        if bytes.len() > UPLOAD_BYTES_MAX {
            return Err(
                self.error(ErrorKind::InvalidInput, "the transaction has more than 257 MiB; divide it")
            );
        }
        let request =
            |upload, offset, data: &[u8]| encode(&Request::Upload { upload, offset, data: data.to_vec() });
        self.send_parts(bytes, deadline, request)
    }

    /// Sends bytes in parts, each with a request whose encoding `request_of` returns for the number
    /// of the upload, the position and the bytes.
    pub(super) fn send_parts(
        &self,
        bytes: &[u8],
        deadline: Instant,
        request_of: impl Fn(TransferId, u64, &[u8]) -> Vec<u8>,
    ) -> Result<TransferId> {
        let upload = TransferId(self.number());
        let mut offset = 0;
        while offset < bytes.len() {
            let part = &bytes[offset..bytes.len().min(offset + DATA_BYTES_MAX)];
            let request = request_of(upload, offset as u64, part);
            let receiver = self.begin(request, SHORT_REPLY_BYTES, deadline);
            let reply = receiver.recv().map_err(|_| self.error(ErrorKind::Unavailable, "it is closed"))?;
            let reply = reply.and_then(|reply| decode(&reply));
            match reply {
                Ok(Reply::Done) => offset += part.len(),
                // Other uploads use the memory, or the connection was lost. The upload begins
                // again.
                Ok(Reply::Failed(failure)) if failure.kind() != ErrorKind::Busy => {
                    return Err(self.unexpected(Reply::Failed(failure)));
                }
                Err(error) if !is_transient(&error) => return Err(error),
                Ok(_) | Err(_) if Instant::now() + PAUSE < deadline => {
                    std::thread::sleep(PAUSE);
                    offset = 0;
                }
                Ok(other) => return Err(self.unexpected(other)),
                Err(error) => return Err(error),
            }
        }
        Ok(upload)
    }

    /// Sends a commit. Data that is too large for a message is uploaded first.
    pub(super) fn send(self: &Arc<Self>, mut commit: SentCommit) {
        let (connection, deadline) = (self.clone(), commit.deadline);
        let encoded = match self.encode_commit(&mut commit.transaction, deadline) {
            Ok(encoded) => encoded,
            Err(error) => return (commit.done)(Err(error.into())),
        };
        let reply_bytes_max = reply_bytes(&commit.transaction);
        let done = Box::new(move |result| connection.take_result(commit, result));
        self.link.request(encoded, reply_bytes_max, deadline, done);
    }

    /// Returns the request for a commit, after data that is too large for a message was sent.
    fn encode_commit(&self, transaction: &mut Transaction, deadline: Instant) -> Result<Vec<u8>> {
        let data_bytes: usize = transaction.operations.iter().map(|operation| data_of(operation).len()).sum();
        if data_bytes > DATA_BYTES_MAX
            && let Some(request) = self.send_extents(transaction, deadline)?
        {
            return Ok(request);
        }
        let request = Request::Commit(std::mem::take(transaction));
        let encoded = encode(&request);
        if let Request::Commit(commit) = request {
            *transaction = commit;
        }
        match encoded.len() > MESSAGE_BYTES_MAX {
            true => Ok(encode(&Request::CommitUploaded(self.upload(&encode(transaction), deadline)?))),
            false => Ok(encoded),
        }
    }

    /// Sends the data of large operations of a transaction, which the server writes as extents, and
    /// returns the request for the commit. `None` if the rest of the transaction is too large for a
    /// message.
    fn send_extents(&self, transaction: &Transaction, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let is_extent = |data: &[u8]| (EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&data.len());
        let mut rest =
            Transaction { reads: transaction.reads.clone(), operations: Vec::new(), ..*transaction };
        let mut extents = Vec::new();
        for (position, operation) in (0..).zip(&transaction.operations) {
            match is_extent(data_of(operation)) {
                true => {
                    rest.operations.push(without_data(operation));
                    extents.push((position, data_of(operation)));
                }
                false => rest.operations.push(operation.clone()),
            }
        }
        // The numbers of the uploads are not known yet. Each needs at most 10 more bytes.
        let written = |(operation, data): &(u32, &[u8]), upload| WrittenExtent {
            operation: *operation,
            upload,
            length_bytes: data.len() as u64,
        };
        let numbered = extents.iter().map(|extent| written(extent, TransferId(u64::MAX))).collect();
        let mut request = Request::CommitWritten { transaction: rest, extents: numbered };
        if encode(&request).len() > MESSAGE_BYTES_MAX {
            return Ok(None);
        }
        let Request::CommitWritten { extents: numbered, .. } = &mut request else { return Ok(None) };
        for (position, extent) in extents.iter().enumerate() {
            let part = |upload, offset, data: &[u8]| ExtentPart { upload, offset, data }.encode();
            match self.send_parts(extent.1, deadline, part) {
                Ok(upload) => numbered[position].upload = upload,
                Err(error) => {
                    let sent = numbered[..position].iter().map(|extent| Request::Discard(extent.upload));
                    sent.for_each(|discard| self.forget(&discard));
                    return Err(error);
                }
            }
        }
        Ok(Some(encode(&request)))
    }

    /// Processes the result of a commit, on a thread that must not block.
    pub(super) fn take_result(self: &Arc<Self>, mut commit: SentCommit, result: Result<Vec<u8>>) {
        let reply = match result {
            Ok(reply) => decode(&reply),
            Err(error) => {
                // The server may have committed the transaction, unless the request certainly did
                // not reach the server.
                commit.transaction.is_repeated |= !was_not_executed(&error);
                Err(error)
            }
        };
        let is_late = Instant::now() + PAUSE >= commit.deadline;
        let unfinished = match reply {
            Ok(Reply::Committed(committed)) => {
                self.know(committed.version);
                return (commit.done)(Ok(committed));
            }
            Ok(Reply::Refused(refusal)) => return (commit.done)(Err(refusal)),
            Ok(Reply::Long { reply, length_bytes }) => Unfinished::Fetch(commit, reply, length_bytes),
            // The server no longer has the upload or the result, or has no memory for the result.
            Ok(Reply::Unknown) if !is_late => Unfinished::Repeat(commit),
            Ok(Reply::Failed(failure)) if failure.kind() == ErrorKind::Busy && !is_late => {
                commit.transaction.is_repeated = true;
                Unfinished::Repeat(commit)
            }
            Err(error) if is_transient(&error) && !is_late => Unfinished::Repeat(commit),
            Ok(other) => return (commit.done)(Err(self.unexpected(other).into())),
            Err(error) => return (commit.done)(Err(error.into())),
        };
        self.pass_to_repeater(unfinished);
    }

    /// Passes a commit to the thread that repeats commits, which the first of them starts, and
    /// which ends with the connection.
    pub(super) fn pass_to_repeater(self: &Arc<Self>, unfinished: Unfinished) {
        let mut repeater = lock(&self.repeater);
        let unfinished = match &*repeater {
            Some(sender) => match sender.send(unfinished) {
                Ok(()) => return,
                Err(unsent) => unsent.0,
            },
            None => unfinished,
        };
        let (sender, receiver) = channel();
        let connection = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("blob repetitions".into());
        match thread.spawn(move || repeat(&connection, &receiver)) {
            Ok(_) => {
                // The receiver exists, because its thread has just begun.
                let _ = sender.send(unfinished);
                *repeater = Some(sender);
            }
            Err(cause) => {
                drop(repeater);
                let (Unfinished::Repeat(commit) | Unfinished::Fetch(commit, ..)) = unfinished;
                (commit.done)(Err(Error::from_io(cause, "start a thread", "blob repetitions").into()));
            }
        }
    }
}

impl Drop for Connection {
    /// Tells the server to forget this client. Otherwise the server forgets it some seconds later.
    fn drop(&mut self) {
        self.link.client().stop(GOODBYE_LIMIT);
    }
}

/// Repeats commits until their connection ends.
fn repeat(connection: &Weak<Connection>, receiver: &Receiver<Unfinished>) {
    while let Ok(first) = receiver.recv() {
        // There is one pause for all commits that failed together.
        std::thread::sleep(PAUSE);
        let mut unfinished = VecDeque::from([first]);
        unfinished.extend(receiver.try_iter());
        while let Some(next) = unfinished.pop_front() {
            let Some(connection) = connection.upgrade() else { return };
            match next {
                Unfinished::Repeat(commit) => connection.send(commit),
                Unfinished::Fetch(mut commit, reply, length_bytes) => {
                    let fetched = connection.fetch(reply, length_bytes, commit.deadline);
                    commit.transaction.is_repeated = true;
                    connection.take_result(commit, fetched.map(|reply| encode(&reply)));
                }
            }
        }
    }
}

/// Returns whether the same request can succeed when it is repeated.
pub(super) fn is_transient(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Busy)
}

/// Returns the data of a write or an append; empty for other operations.
fn data_of(operation: &Operation) -> &[u8] {
    match operation {
        Operation::Write { data, .. } | Operation::Append { data, .. } => data,
        _ => &[],
    }
}

/// Returns a write or an append without its data.
fn without_data(operation: &Operation) -> Operation {
    match operation {
        Operation::Write { name, offset, .. } => {
            Operation::Write { name: name.clone(), offset: *offset, data: Vec::new() }
        }
        Operation::Append { name, .. } => Operation::Append { name: name.clone(), data: Vec::new() },
        other => other.clone(),
    }
}

/// Returns the largest usual length of the reply to a commit, in bytes. A longer reply is fetched
/// in parts.
fn reply_bytes(transaction: &Transaction) -> u32 {
    let results = transaction.operations.iter().map(|operation| match operation {
        Operation::Transform { transform, .. } if transform.returns_before => {
            usize::try_from(transform.length_bytes()).unwrap_or(usize::MAX).saturating_add(11)
        }
        _ => 11,
    });
    let bytes = results.fold(REPLY_OVERHEAD_BYTES, usize::saturating_add);
    bytes.min(MESSAGE_BYTES_MAX) as u32
}
