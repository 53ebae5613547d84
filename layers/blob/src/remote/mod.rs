//! A store on a server: its connection, commits that are repeated after a lost reply, and reads.
//! docs/formats/blob-protocol.md describes the messages.

mod connection;
mod link;
mod state;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_blob_service::CommitResult;
use quell_transport::peer::{ClientKey, ClientSettings, Endpoint, PoolKey, Role};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    DATA_BYTES_MAX, MESSAGE_BYTES_MAX, PROTOCOL, Reply, Request, SnapshotId, StoreCounters, Transaction,
    TransactionId, Version,
};
use quell_wire::{decode, encode};
use rustix::rand::{GetRandomFlags, getrandom};

use self::connection::{Connection, REPLY_OVERHEAD_BYTES, SHORT_REPLY_BYTES, SentCommit, is_transient};
use self::link::{FOLLOW_INTERVAL, Follower, Link, check_listening};
use self::state::RemoteState;
use crate::backend::{Backend, ReadDone, TransactionState, read_bytes};
use crate::finder::{Finder, tcp_settings};
use crate::readers::Readers;

/// The time for which a request is repeated if the server does not answer.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// The time for which a client that opens a store in RADOS waits for its server.
const FIND_LIMIT: Duration = Duration::from_secs(10);

/// A store on a server.
pub(crate) struct Remote {
    connection: Arc<Connection>,
    /// The version of the protocol.
    protocol: u32,
    readers: Arc<Readers>,
    /// Finds the next server; `None` if the server always has the same address.
    _follower: Option<Follower>,
}

impl Remote {
    /// Connects to a server on this machine. If the path refers to a descriptor, `directory` is
    /// this descriptor.
    pub(crate) fn by_socket(path: PathBuf, directory: Option<OwnedFd>) -> Result<Remote> {
        let settings = ClientSettings::new(Role::Blob, Endpoint::Unix(path), PoolKey([0; 32]));
        Remote::connect(settings, directory, PROTOCOL)
    }

    /// Connects to a server by TCP.
    pub(crate) fn by_tcp(address: SocketAddr, key: ClientKey, is_encrypted: bool) -> Result<Remote> {
        Remote::connect(tcp_settings(address, key, is_encrypted), None, PROTOCOL)
    }

    /// Connects to the present server of a store in RADOS, or of one of its groups, and later to
    /// the servers that replace it.
    pub(crate) fn by_rados(finder: Finder, protocol: u32) -> Result<Remote> {
        let give_up = Instant::now() + FIND_LIMIT;
        loop {
            // A server that was just found may be dead, and another server may be about to replace
            // it.
            let connected = finder.find().and_then(|settings| {
                check_listening(&settings.server)?;
                Remote::connect(settings, None, protocol)
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

    fn connect(settings: ClientSettings, directory: Option<OwnedFd>, protocol: u32) -> Result<Remote> {
        let name = settings.server.to_string();
        check_listening(&settings.server)?;
        let mut id = [0; 16];
        getrandom(&mut id, GetRandomFlags::empty())
            .map_err(|e| Error::from_io(e.into(), "draw a random number", ""))?;
        let link = Arc::new(Link::start(settings)?);
        let connection = Arc::new(Connection {
            link,
            name,
            id: u128::from_le_bytes(id),
            last_number: AtomicU64::new(0),
            known: AtomicU64::new(0),
            limit: CALL_LIMIT,
            repeater: Mutex::new(None),
            _directory: directory,
        });
        // The request is not repeated, because a server that refuses the client would refuse it
        // again.
        let hello = encode(&Request::Hello { protocol });
        let deadline = Instant::now() + CALL_LIMIT;
        let reply = connection.begin(hello, SHORT_REPLY_BYTES, deadline).recv();
        let reply = reply.map_err(|_| connection.error(ErrorKind::Unavailable, "it is closed"))??;
        match decode(&reply)? {
            Reply::Welcome { version } => connection.know(version),
            other => return Err(connection.unexpected(other)),
        }
        Ok(Remote { connection, protocol, readers: Arc::default(), _follower: None })
    }
}

/// A request that was sent.
pub(crate) struct SentRequest {
    connection: Arc<Connection>,
    request: Vec<u8>,
    reply_bytes_max: u32,
    deadline: Instant,
    receiver: Receiver<Result<Vec<u8>>>,
}

impl SentRequest {
    /// Waits for the reply, and repeats the request if the connection was lost.
    pub(crate) fn wait(self) -> Result<Reply> {
        self.connection.finish(self.receiver, &self.request, self.reply_bytes_max, self.deadline)
    }
}

impl Remote {
    /// Sends a request that can be repeated.
    pub(crate) fn send(&self, request: &Request) -> SentRequest {
        let (connection, request) = (self.connection.clone(), encode(request));
        let (deadline, reply_bytes_max) = (Instant::now() + connection.limit, MESSAGE_BYTES_MAX as u32);
        let receiver = connection.begin(request.clone(), reply_bytes_max, deadline);
        SentRequest { connection, request, reply_bytes_max, deadline, receiver }
    }

    /// Returns the snapshot that a request has begun, with its number.
    pub(crate) fn begun(&self, reply: Reply) -> Result<(SnapshotId, Box<dyn TransactionState>)> {
        let state = RemoteState::begun(&self.connection, reply)?;
        Ok((state.0, Box::new(state.1)))
    }

    /// Returns the error of a request with an unexpected reply.
    pub(crate) fn unexpected(&self, reply: Reply) -> Error {
        self.connection.unexpected(reply)
    }

    /// Returns the latest version that the server has stated.
    pub(crate) fn known(&self) -> Version {
        Version(self.connection.known.load(Ordering::Relaxed))
    }

    /// Requests the latest version from the server.
    pub(crate) fn learn_version(&self) -> Result<()> {
        match self.send(&Request::Hello { protocol: self.protocol }).wait()? {
            Reply::Welcome { version } => {
                self.connection.know(version);
                Ok(())
            }
            other => Err(self.unexpected(other)),
        }
    }
}

impl Backend for Remote {
    fn is_remote(&self) -> bool {
        true
    }

    fn begin(&self) -> Result<Box<dyn TransactionState>> {
        Ok(Box::new(RemoteState::begin(&self.connection)?))
    }

    fn latest(&self) -> Result<Box<dyn TransactionState>> {
        Ok(Box::new(RemoteState::latest(&self.connection)))
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
        let state = RemoteState::latest(&self.connection);
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

    fn server_counters(&self, limit: Duration) -> Result<StoreCounters> {
        let deadline = Instant::now() + limit;
        match self.connection.call_until(&Request::Counters, SHORT_REPLY_BYTES, deadline)? {
            Reply::Counters(counters) => Ok(*counters),
            other => Err(self.connection.unexpected(other)),
        }
    }
}
