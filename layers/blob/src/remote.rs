//! A store on a server: its connection, commits that are repeated after a lost reply, and reads.
//! docs/formats/blob-protocol.md describes the messages.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_blob_service::{BlobStat, CommitResult};
use quell_threads::lock;
use quell_transport::peer::{Client, ClientSettings, Done, Endpoint, PoolKey, Role, was_not_executed};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    DATA_BYTES_MAX, Draft, MESSAGE_BYTES_MAX, NAMES_MAX, Operation, OperationResult, PROTOCOL, ReadState,
    Refusal, Reply, Request, SnapshotId, Transaction, TransactionId, TransferId, UPLOAD_BYTES_MAX, Version,
};
use quell_wire::{decode, encode};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::backend::{Backend, ReadDone, TransactionState, read_bytes};
use crate::finder::{Finder, tcp_settings};
use crate::readers::Readers;

/// The largest reply to a request without a long result, in bytes.
const SHORT_REPLY_BYTES: u32 = 4096;
/// The bytes of a reply besides its data, its names or its results.
const REPLY_OVERHEAD_BYTES: usize = 512;
/// Reads of parts of one range that are in flight at a time.
const PARTS_IN_FLIGHT: usize = 4;
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a request to a server is repeated, if the server does not answer.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// How long a client waits for a server to accept the connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long a client waits for a server of a store in RADOS, while it is replaced.
const FIND_LIMIT: Duration = Duration::from_secs(10);
/// The time without a reply after which a client looks for another server.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);
/// How long a client waits until the server has received its goodbye.
const GOODBYE_LIMIT: Duration = Duration::from_millis(200);

/// A store on a server.
pub(crate) struct Remote {
    connection: Arc<Connection>,
    readers: Arc<Readers>,
    /// Finds the next server; `None` if the server always has the same address.
    _follower: Option<Follower>,
}

struct Connection {
    link: Arc<Link>,
    /// The name of the server in messages.
    name: String,
    /// A random number, which identifies the transactions of this connection.
    id: u128,
    /// The number of the last transaction, and of the last upload.
    last_number: AtomicU64,
    /// The latest version that the server has stated.
    known: AtomicU64,
    /// How long a request is repeated.
    limit: Duration,
    /// Passes commits to the thread that repeats them; `None` before the first one.
    repeater: Mutex<Option<Sender<Unfinished>>>,
    /// The directory that the path of the socket refers to, if there is one.
    _directory: Option<OwnedFd>,
}

/// The connection to the present server, and the requests to it.
struct Link {
    client: RwLock<Arc<Client>>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Counters {
    /// The number of requests that were sent.
    sent: AtomicU64,
    /// The number of requests without a result.
    outstanding: AtomicU64,
    /// The number of replies.
    replies: AtomicU64,
}

/// The thread that looks for another server while requests are without a reply.
struct Follower {
    is_ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

/// A commit that was sent.
struct SentCommit {
    transaction: Transaction,
    deadline: Instant,
    done: Box<dyn FnOnce(CommitResult) + Send>,
}

/// A commit that needs more than one request.
enum Unfinished {
    /// The commit is sent again.
    Repeat(SentCommit),
    /// The result of the commit is fetched in parts: the number and the length in bytes of the
    /// reply.
    Fetch(SentCommit, TransferId, u64),
}

impl Remote {
    /// Connects to a server on this machine. `directory` is the directory that the path refers to,
    /// if it refers to a descriptor.
    pub(crate) fn by_socket(path: PathBuf, directory: Option<OwnedFd>) -> Result<Remote> {
        let settings = ClientSettings::new(Role::Blob, Endpoint::Unix(path), PoolKey([0; 32]));
        Remote::connect(settings, directory)
    }

    /// Connects to a server by TCP.
    pub(crate) fn by_tcp(address: SocketAddr, key: [u8; 32], is_encrypted: bool) -> Result<Remote> {
        Remote::connect(tcp_settings(address, PoolKey(key), is_encrypted), None)
    }

    /// Connects to the present server of a store in RADOS, and later to those that replace it.
    pub(crate) fn by_rados(pool: &str, key: [u8; 32], is_encrypted: bool) -> Result<Remote> {
        let finder = Finder::new(pool, PoolKey(key), is_encrypted)?;
        let give_up = Instant::now() + FIND_LIMIT;
        loop {
            // A server that was just found may be dead, and another one about to replace it.
            let connected = finder.find().and_then(|settings| {
                check_listening(&settings.server)?;
                Remote::connect(settings, None)
            });
            match connected {
                Ok(remote) => {
                    let follower = Follower::start(remote.connection.link.clone(), finder)?;
                    return Ok(Remote { _follower: Some(follower), ..remote });
                }
                Err(error) if error.kind == ErrorKind::Unavailable && Instant::now() < give_up => {
                    std::thread::sleep(FOLLOW_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn connect(settings: ClientSettings, directory: Option<OwnedFd>) -> Result<Remote> {
        let name = settings.server.to_string();
        check_listening(&settings.server)?;
        let mut id = [0; 16];
        getrandom(&mut id, GetRandomFlags::empty())
            .map_err(|e| Error::from_io(e.into(), "draw a random number", ""))?;
        let client = Client::start(settings)?;
        let connection = Arc::new(Connection {
            link: Arc::new(Link { client: RwLock::new(Arc::new(client)), counters: Arc::default() }),
            name,
            id: u128::from_le_bytes(id),
            last_number: AtomicU64::new(0),
            known: AtomicU64::new(0),
            limit: CALL_LIMIT,
            repeater: Mutex::new(None),
            _directory: directory,
        });
        // Not repeated: a server that refuses the client does so again.
        let hello = encode(&Request::Hello { protocol: PROTOCOL });
        let deadline = Instant::now() + CALL_LIMIT;
        let reply = connection.begin(hello, SHORT_REPLY_BYTES, deadline).recv();
        let reply = reply.map_err(|_| connection.error(ErrorKind::Unavailable, "it is closed"))??;
        match decode(&reply)? {
            Reply::Welcome { version } => connection.know(version),
            other => return Err(connection.unexpected(other)),
        }
        Ok(Remote { connection, readers: Arc::default(), _follower: None })
    }
}

/// Fails at once if no process listens: the connection itself would wait for one.
fn check_listening(server: &Endpoint) -> Result<()> {
    let connected = match server {
        Endpoint::Unix(path) => std::os::unix::net::UnixStream::connect(path).map(drop),
        Endpoint::Tcp(address) => std::net::TcpStream::connect_timeout(address, CONNECT_LIMIT).map(drop),
    };
    connected.map_err(|cause| {
        let error = Error::from_io(cause, "connect to the server at", server.to_string());
        match error.kind {
            ErrorKind::PermissionDenied => error,
            _ => {
                let source = error.source.map_or(String::new(), |source| format!("{source}; "));
                let source = Some(format!("{source}start one with: quell blob serve DIR").into());
                Error { kind: ErrorKind::Unavailable, source, ..error }
            }
        }
    })
}

impl Connection {
    fn error(&self, kind: ErrorKind, reason: &str) -> Error {
        let source = Some(reason.to_string().into());
        Error { source, ..Error::new(kind, "call the server at", self.name.as_bytes()) }
    }

    fn unexpected(&self, reply: Reply) -> Error {
        match reply {
            Reply::Failed(failure) => failure.into_error("call the server at", self.name.as_bytes()),
            Reply::Refused(Refusal::Failed { failure, .. }) => {
                failure.into_error("apply an operation at", self.name.as_bytes())
            }
            Reply::Refused(refusal) => self.error(ErrorKind::Conflict, &refusal.to_string()),
            Reply::Unknown => self.error(
                ErrorKind::Stale,
                "the server was restarted, or has ended this client; repeat the transaction",
            ),
            _ => self.error(ErrorKind::Damaged, "the reply does not belong to the request"),
        }
    }

    fn know(&self, version: Version) {
        self.known.fetch_max(version.0, Ordering::Relaxed);
    }

    fn number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Begins a snapshot.
    fn begin_state(self: &Arc<Self>) -> Result<RemoteState> {
        match self.call(&Request::Begin, SHORT_REPLY_BYTES)? {
            Reply::Begun { snapshot, version } => {
                self.know(version);
                let (connection, snapshot) = (self.clone(), Some(snapshot));
                Ok(RemoteState { connection, snapshot, version, operations: Vec::new(), has_rename: false })
            }
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns the latest state, for reads that need not be of one state.
    fn latest_state(self: &Arc<Self>) -> RemoteState {
        let version = Version(self.known.load(Ordering::Relaxed));
        RemoteState {
            connection: self.clone(),
            snapshot: None,
            version,
            operations: Vec::new(),
            has_rename: false,
        }
    }

    /// Sends a request once.
    fn begin(&self, request: Vec<u8>, reply_bytes_max: u32, deadline: Instant) -> Receiver<Result<Vec<u8>>> {
        let (sender, receiver) = channel();
        // The receiver may no longer wait.
        let done = Box::new(move |result| _ = sender.send(result));
        self.link.request(request, reply_bytes_max, deadline, done);
        receiver
    }

    /// Sends a request that can be repeated, and waits for the reply.
    fn call(&self, request: &Request, reply_bytes_max: u32) -> Result<Reply> {
        let deadline = Instant::now() + self.limit;
        let encoded = encode(request);
        let first = self.begin(encoded.clone(), reply_bytes_max, deadline);
        self.finish(first, &encoded, reply_bytes_max, deadline)
    }

    /// Waits for the reply to a request, and repeats it if the connection was lost.
    fn finish(
        &self,
        first: Receiver<Result<Vec<u8>>>,
        request: &[u8],
        reply_bytes_max: u32,
        deadline: Instant,
    ) -> Result<Reply> {
        let mut receiver = first;
        loop {
            let result = receiver.recv().map_err(|_| self.error(ErrorKind::Unavailable, "it is closed"))?;
            match result {
                Ok(reply) => match decode(&reply)? {
                    Reply::Long { reply, length_bytes } => return self.fetch(reply, length_bytes, deadline),
                    reply => return Ok(reply),
                },
                Err(error) if is_transient(&error) && Instant::now() + PAUSE < deadline => {
                    std::thread::sleep(PAUSE);
                    receiver = self.begin(request.to_vec(), reply_bytes_max, deadline);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Fetches a long reply.
    fn fetch(&self, reply: TransferId, length_bytes: u64, deadline: Instant) -> Result<Reply> {
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

    /// Sends a request that frees memory of the server, and does not wait for the reply. When this
    /// client ends, the server frees the memory in any case.
    fn forget(&self, request: &Request) {
        let deadline = Instant::now() + self.limit;
        self.link.request(encode(request), SHORT_REPLY_BYTES, deadline, Box::new(|_| ()));
    }

    /// Uploads bytes in parts.
    fn upload(&self, bytes: &[u8], deadline: Instant) -> Result<TransferId> {
        if bytes.len() > UPLOAD_BYTES_MAX {
            return Err(
                self.error(ErrorKind::InvalidInput, "the transaction has more than 257 MiB; divide it")
            );
        }
        let upload = TransferId(self.number());
        let mut offset = 0;
        while offset < bytes.len() {
            let part = &bytes[offset..bytes.len().min(offset + DATA_BYTES_MAX)];
            let request = encode(&Request::Upload { upload, offset: offset as u64, data: part.to_vec() });
            let receiver = self.begin(request, SHORT_REPLY_BYTES, deadline);
            let reply = receiver.recv().map_err(|_| self.error(ErrorKind::Unavailable, "it is closed"))?;
            let reply = reply.and_then(|reply| decode(&reply));
            match reply {
                Ok(Reply::Done) => offset += part.len(),
                // Other uploads use the memory, or the connection was lost: the upload begins anew.
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
    fn send(self: &Arc<Self>, mut commit: SentCommit) {
        let request = Request::Commit(std::mem::take(&mut commit.transaction));
        let mut encoded = encode(&request);
        let Request::Commit(transaction) = request else { unreachable!("it was created above") };
        let reply_bytes_max = reply_bytes(&transaction);
        commit.transaction = transaction;
        if encoded.len() > MESSAGE_BYTES_MAX {
            match self.upload(&encode(&commit.transaction), commit.deadline) {
                Ok(upload) => encoded = encode(&Request::CommitUploaded(upload)),
                Err(error) => return (commit.done)(Err(error.into())),
            }
        }
        let (connection, deadline) = (self.clone(), commit.deadline);
        let done = Box::new(move |result| connection.take_result(commit, result));
        self.link.request(encoded, reply_bytes_max, deadline, done);
    }

    /// Takes the result of a commit, on a thread that must not block.
    fn take_result(self: &Arc<Self>, mut commit: SentCommit, result: Result<Vec<u8>>) {
        let reply = match result {
            Ok(reply) => decode(&reply),
            Err(error) => {
                // The server may have committed it, unless the request certainly did not reach it.
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

    /// Passes a commit to the thread that repeats commits, which is started by the first of them
    /// and ends with the connection.
    fn pass_to_repeater(self: &Arc<Self>, unfinished: Unfinished) {
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

impl Link {
    /// Returns the connection to the present server.
    fn client(&self) -> Arc<Client> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Passes a request to the present server, and the result to `done`.
    fn request(&self, request: Vec<u8>, reply_bytes_max: u32, deadline: Instant, done: Done) {
        self.counters.sent.fetch_add(1, Ordering::Relaxed);
        self.counters.outstanding.fetch_add(1, Ordering::Relaxed);
        let counters = self.counters.clone();
        let done = Box::new(move |result: Result<Vec<u8>>| {
            counters.replies.fetch_add(u64::from(result.is_ok()), Ordering::Relaxed);
            counters.outstanding.fetch_sub(1, Ordering::Relaxed);
            done(result);
        });
        self.client().call(request, reply_bytes_max, deadline, done);
    }

    /// Connects to another server if the present one was replaced. The requests without a result
    /// fail with `Unavailable`, and are repeated.
    fn move_to_next_server(&self, finder: &Finder) {
        // After an error, the next call tries again.
        let Ok(Some(settings)) = finder.find_next() else { return };
        let Ok(client) = Client::start(settings) else { return };
        let mut present = self.client.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *present, Arc::new(client));
        drop(present);
        old.stop(Duration::ZERO);
    }
}

impl Follower {
    fn start(link: Arc<Link>, finder: Finder) -> Result<Follower> {
        let is_ended = Arc::new((Mutex::new(false), Condvar::new()));
        let own = is_ended.clone();
        let follow = move || {
            let mut before = (0, 0);
            let mut ended = lock(&own.0);
            while !*ended {
                drop(ended);
                let counters = &link.counters;
                let sent = counters.sent.load(Ordering::Relaxed);
                let replies = counters.replies.load(Ordering::Relaxed);
                let (sent_before, replies_before) = std::mem::replace(&mut before, (sent, replies));
                // Requests without a connection fail at once, and are repeated.
                let has_requests = sent != sent_before || counters.outstanding.load(Ordering::Relaxed) > 0;
                if has_requests && replies == replies_before {
                    link.move_to_next_server(&finder);
                }
                ended = lock(&own.0);
                if !*ended {
                    let waited = own.1.wait_timeout(ended, FOLLOW_INTERVAL);
                    ended = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        };
        let thread = std::thread::Builder::new().name("blob servers".into());
        let thread = thread.spawn(follow).map_err(|e| Error::from_io(e, "start a thread", "blob servers"))?;
        Ok(Follower { is_ended, thread: Some(thread) })
    }
}

impl Drop for Follower {
    /// Waits for the thread: librados must not be used while the process ends.
    fn drop(&mut self) {
        *lock(&self.is_ended.0) = true;
        self.is_ended.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Repeats commits until their connection ends.
fn repeat(connection: &Weak<Connection>, receiver: &Receiver<Unfinished>) {
    while let Ok(first) = receiver.recv() {
        // One pause for all that failed together.
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
fn is_transient(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Busy)
}

/// Returns the largest usual reply to a commit. A longer one is fetched.
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

impl Backend for Remote {
    fn is_remote(&self) -> bool {
        true
    }

    fn begin(&self) -> Result<Box<dyn TransactionState>> {
        Ok(Box::new(self.connection.begin_state()?))
    }

    fn latest(&self) -> Result<Box<dyn TransactionState>> {
        Ok(Box::new(self.connection.latest_state()))
    }

    fn commit(&self, transaction: Transaction) -> CommitResult {
        let (sender, receiver) = channel();
        self.submit(transaction, Box::new(move |result| _ = sender.send(result)));
        let closed = || self.connection.error(ErrorKind::Unavailable, "the connection was closed").into();
        receiver.recv().unwrap_or_else(|_| Err(closed()))
    }

    fn submit(&self, mut transaction: Transaction, done: Box<dyn FnOnce(CommitResult) + Send>) {
        let connection = &self.connection;
        let begun = Version(connection.known.load(Ordering::Relaxed));
        let number = connection.number();
        transaction.id.get_or_insert(TransactionId { client: connection.id, number, begun });
        connection.send(SentCommit { transaction, deadline: Instant::now() + connection.limit, done });
    }

    fn submit_read(&self, name: Vec<u8>, offset: u64, length_bytes: usize, done: ReadDone) {
        let state = self.connection.latest_state();
        if length_bytes > DATA_BYTES_MAX {
            return self.readers.submit(move || read_bytes(&state, &name, offset, length_bytes), done);
        }
        let (connection, readers) = (self.connection.clone(), self.readers.clone());
        let request = encode(&state.part(&name, offset, length_bytes));
        let take_result = move |result: Result<Vec<u8>>| match result.and_then(|reply| decode(&reply)) {
            Ok(Reply::Data(data)) if data.len() <= length_bytes => done(Ok(data)),
            Ok(other) => done(Err(state.read_error(&name, other))),
            // A thread that can wait repeats the read.
            Err(error) if is_transient(&error) => {
                readers.submit(move || read_bytes(&state, &name, offset, length_bytes), done);
            }
            Err(error) => done(Err(error)),
        };
        let deadline = Instant::now() + connection.limit;
        let reply_bytes_max = (length_bytes + REPLY_OVERHEAD_BYTES) as u32;
        connection.link.request(request, reply_bytes_max, deadline, Box::new(take_result));
    }

    fn collect(&self) -> Result<()> {
        match self.connection.call(&Request::Collect, SHORT_REPLY_BYTES)? {
            Reply::Done => Ok(()),
            other => Err(self.connection.unexpected(other)),
        }
    }
}

impl Drop for Connection {
    /// Tells the server to forget this client. Without it, the server does so some seconds later.
    fn drop(&mut self) {
        self.link.client().stop(GOODBYE_LIMIT);
    }
}

/// A snapshot on the server, or the latest state, and a draft.
struct RemoteState {
    connection: Arc<Connection>,
    snapshot: Option<SnapshotId>,
    version: Version,
    operations: Vec<Operation>,
    /// Whether one of the operations is a rename.
    has_rename: bool,
}

impl RemoteState {
    /// Passes the state of a read, with the operations that concern it, to `request`, and returns
    /// the reply.
    fn read_with(
        &self,
        concerns: impl Fn(&Operation) -> bool,
        reply_bytes_max: usize,
        request: impl Fn(ReadState) -> Request,
    ) -> Result<Reply> {
        let connection = &self.connection;
        let operations: Vec<Operation> =
            self.operations.iter().filter(|operation| self.is_sent(operation, &concerns)).cloned().collect();
        let draft = Draft::Inline(operations);
        let encoded = encode(&draft);
        let reply_bytes_max = reply_bytes_max.min(MESSAGE_BYTES_MAX) as u32;
        let call =
            |draft| connection.call(&request(ReadState { snapshot: self.snapshot, draft }), reply_bytes_max);
        if encoded.len() <= DATA_BYTES_MAX {
            return call(draft);
        }
        let upload = connection.upload(&encoded, Instant::now() + connection.limit)?;
        let reply = call(Draft::Uploaded(upload));
        connection.forget(&Request::Discard(upload));
        reply
    }

    /// Returns whether a read sends an operation. After a rename, those on other names can concern
    /// the blob as well.
    fn is_sent(&self, operation: &Operation, concerns: impl Fn(&Operation) -> bool) -> bool {
        concerns(operation) || self.has_rename
    }

    /// Reads parts of a range without operations, several at a time.
    fn read_parts(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let connection = &self.connection;
        let deadline = Instant::now() + connection.limit;
        let mut begun = VecDeque::new();
        let (mut next, mut done) = (0, 0);
        while done < into.len() {
            while next < into.len() && begun.len() < PARTS_IN_FLIGHT {
                let length = (into.len() - next).min(DATA_BYTES_MAX);
                let Some(at) = offset.checked_add(next as u64) else { break };
                let request = encode(&self.part(name, at, length));
                let reply_bytes_max = (length + REPLY_OVERHEAD_BYTES) as u32;
                let receiver = connection.begin(request.clone(), reply_bytes_max, deadline);
                begun.push_back((receiver, request, reply_bytes_max, length));
                next += length;
            }
            let Some((receiver, request, reply_bytes_max, length)) = begun.pop_front() else { break };
            let data = match connection.finish(receiver, &request, reply_bytes_max, deadline)? {
                Reply::Data(data) if data.len() <= length => data,
                other => return Err(self.read_error(name, other)),
            };
            into[done..done + data.len()].copy_from_slice(&data);
            done += data.len();
            if data.len() < length {
                break;
            }
        }
        Ok(done)
    }

    fn part(&self, name: &[u8], offset: u64, length: usize) -> Request {
        let state = ReadState { snapshot: self.snapshot, draft: Draft::Inline(Vec::new()) };
        Request::Read { state, name: name.to_vec(), offset, length_bytes: length as u32 }
    }

    /// Returns the error of a read of a blob.
    fn read_error(&self, name: &[u8], reply: Reply) -> Error {
        match reply {
            Reply::Failed(failure) => failure.into_error("read", name),
            other => self.connection.unexpected(other),
        }
    }
}

impl TransactionState for RemoteState {
    fn version(&self) -> Version {
        self.version
    }

    /// Keeps the operation. A read sends the operations that concern it. If one of them cannot be
    /// applied, the read fails with the reason.
    fn apply(&mut self, operation: &Operation) -> std::result::Result<OperationResult, Refusal> {
        self.has_rename |= matches!(operation, Operation::Rename { .. });
        self.operations.push(operation.clone());
        Ok(OperationResult::Done)
    }

    fn stat(&self, name: &[u8]) -> Result<Option<BlobStat>> {
        let request = |state| Request::Stat { state, name: name.to_vec() };
        let concerns = |operation: &Operation| operation.name() == name;
        match self.read_with(concerns, SHORT_REPLY_BYTES as usize, request)? {
            Reply::Stat(stat) => Ok(stat),
            other => Err(self.read_error(name, other)),
        }
    }

    fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let concerns = |operation: &Operation| operation.name() == name;
        if !self.operations.iter().any(|operation| self.is_sent(operation, concerns)) {
            // Parts of the latest state could belong to different states.
            if self.snapshot.is_none() && into.len() > DATA_BYTES_MAX {
                return self.connection.begin_state()?.read(name, offset, into);
            }
            return self.read_parts(name, offset, into);
        }
        let mut done = 0;
        while done < into.len() {
            let length = (into.len() - done).min(DATA_BYTES_MAX);
            let Some(at) = offset.checked_add(done as u64) else { break };
            let request =
                |state| Request::Read { state, name: name.to_vec(), offset: at, length_bytes: length as u32 };
            match self.read_with(concerns, length + REPLY_OVERHEAD_BYTES, request)? {
                Reply::Data(data) if data.len() <= length => {
                    into[done..done + data.len()].copy_from_slice(&data);
                    done += data.len();
                    if data.len() < length {
                        break;
                    }
                }
                other => return Err(self.read_error(name, other)),
            }
        }
        Ok(done)
    }

    fn next_data(&self, name: &[u8], offset: u64) -> Result<Option<u64>> {
        let request = |state| Request::NextData { state, name: name.to_vec(), offset };
        let concerns = |operation: &Operation| operation.name() == name;
        match self.read_with(concerns, SHORT_REPLY_BYTES as usize, request)? {
            Reply::Position(position) => Ok(position),
            other => Err(self.read_error(name, other)),
        }
    }

    fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, BlobStat)>> {
        let mut found: Vec<(Vec<u8>, BlobStat)> = Vec::new();
        let concerns = |operation: &Operation| operation.name().starts_with(prefix);
        while found.len() < limit {
            let after = found.last().map_or(after, |(name, _)| name).to_vec();
            let count_max = (limit - found.len()).min(NAMES_MAX) as u32;
            let request =
                |state| Request::List { state, prefix: prefix.to_vec(), after: after.clone(), count_max };
            match self.read_with(concerns, MESSAGE_BYTES_MAX, request)? {
                Reply::Names { names, is_complete } => {
                    let is_last = is_complete || names.is_empty();
                    found.extend(names);
                    if is_last {
                        break;
                    }
                }
                other => return Err(self.read_error(prefix, other)),
            }
        }
        found.truncate(limit);
        Ok(found)
    }
}

impl Drop for RemoteState {
    fn drop(&mut self) {
        if let Some(snapshot) = self.snapshot {
            self.connection.forget(&Request::End(snapshot));
        }
    }
}
