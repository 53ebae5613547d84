//! The clients of a server: their snapshots, uploads and long replies, and the execution of their
//! requests. docs/formats/blob-protocol.md describes the messages.
//!
//! This module has no threads and no sockets. A client can send any requests, so everything that is
//! kept for a client is bounded.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{
    DATA_BYTES_MAX, Draft, ExtentPart, GROUP_PROTOCOL, JointReply, JointRequest, NAMES_MAX, PROTOCOL,
    ReadState, Refusal, Reply, Request, SnapshotId, StoreCounters, TransferId, UPLOAD_BYTES_MAX,
};
use quell_wire::{Failure, decode, encode};

use crate::counters::Counters;
use crate::group::Group;
use crate::joint::Locked;
use crate::permissions::Permissions;
use crate::queue::CommitResult;
use crate::snapshot::Snapshot;
use crate::store::OpenStore;
use crate::transfers::{ClientTransfers, Transfers, busy, invalid};
use crate::waiters::WaiterId;

/// The number of a client, which identifies its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(pub u64);

/// The limits of the snapshots, uploads and long replies of clients.
#[derive(Debug, Clone)]
pub struct SessionLimits {
    /// The largest number of snapshots of one client.
    pub snapshots_max: usize,
    /// The largest number of snapshots of all clients.
    pub snapshots_total_max: usize,
    /// The largest size of the uploads, uncommitted extents and long replies of one client, in
    /// bytes. It must be at least the size of the largest upload.
    pub kept_bytes_max: u64,
    /// The largest size of the uploads, uncommitted extents and long replies of all clients, in
    /// bytes.
    pub kept_bytes_total_max: u64,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits {
            snapshots_max: 1000,
            snapshots_total_max: 16_000,
            kept_bytes_max: 2 * UPLOAD_BYTES_MAX as u64,
            kept_bytes_total_max: 4 * UPLOAD_BYTES_MAX as u64,
        }
    }
}

/// The function that receives the reply to a request. It must not block.
pub type Replied = Box<dyn FnOnce(Vec<u8>) + Send>;

/// The clients of a store.
pub struct Sessions {
    store: OpenStore,
    limits: SessionLimits,
    /// The group of this server, if the store has several.
    group: Option<Group>,
    clients: Mutex<HashMap<ClientId, Arc<Session>>>,
    /// Numbers of snapshots and long replies. They begin at the version of the store, which is
    /// larger after each opening, so that a client cannot use a number of an earlier server.
    last_number: AtomicU64,
    snapshots: AtomicUsize,
    transfers: Transfers,
    counters: Counters,
}

/// The state of one client.
struct Session {
    permissions: Arc<Permissions>,
    snapshots: Mutex<HashMap<SnapshotId, Arc<Snapshot>>>,
    transfers: Mutex<ClientTransfers>,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("store", &self.store).finish_non_exhaustive()
    }
}

fn reply_of(result: CommitResult) -> Reply {
    match result {
        Ok(committed) => Reply::Committed(committed),
        Err(refusal) => Reply::Refused(refusal),
    }
}

impl Sessions {
    /// Returns the sessions of a store, without clients.
    pub fn new(store: OpenStore, limits: SessionLimits) -> Sessions {
        Sessions {
            last_number: AtomicU64::new(store.version().0),
            counters: Counters::new(store.monotonic_ns()),
            transfers: Transfers::new(store.clone(), limits.kept_bytes_max, limits.kept_bytes_total_max),
            store,
            limits,
            group: None,
            clients: Mutex::default(),
            snapshots: AtomicUsize::new(0),
        }
    }

    /// Sets the group of this server, if the store has several groups.
    pub fn in_group(self, group: Group) -> Sessions {
        Sessions { group: Some(group), ..self }
    }

    /// Executes a request that the permissions of the client allow, and passes the reply to
    /// `replied`. This function is called once: before `execute` returns, or on the thread that
    /// commits. The reply has at most `reply_bytes_max` bytes if this limit is at least 64.
    ///
    /// All requests of a client must pass the same `permissions` (the same `Arc`). If they differ,
    /// another client has received the number of a client that has ended, and must not get the
    /// state of that client.
    ///
    /// Returns true if a transaction waits for
    /// [`OpenStore::commit_pending`](crate::OpenStore::commit_pending).
    pub fn execute(
        self: &Arc<Self>,
        client: ClientId,
        permissions: &Arc<Permissions>,
        request: &[u8],
        reply_bytes_max: usize,
        replied: Replied,
    ) -> bool {
        let session = self.session(client, permissions);
        let part = ExtentPart::decode(request);
        let request = match part.map_or_else(|| decode(request), |part| Ok(part.without_data())) {
            Ok(request) => self.with_uploads(&session, request),
            Err(error) => Err(Reply::Failed(Failure::new(&error))),
        };
        let counted = self.counters.begin(request.as_ref().ok(), self.store.monotonic_ns());
        let allowed = request.and_then(|request| {
            permissions.check(&request, self.store.now_ns())?;
            match &self.group {
                Some(group) => group.check(&request).map(|()| request).map_err(Reply::Refused),
                None => Ok(request),
            }
        });
        let (sessions, of_session) = (self.clone(), session.clone());
        let replied = move |reply: Reply| {
            sessions.counters.end(&counted, &reply, sessions.store.monotonic_ns());
            replied(sessions.encode(&of_session, reply, reply_bytes_max));
        };
        match (allowed, &self.group) {
            (Ok(Request::Commit(transaction)), _) => {
                self.store.submit(transaction, move |result| replied(reply_of(result)));
                true
            }
            (Ok(Request::CommitWritten { transaction, extents }), _) => {
                match self.transfers.take_extents(&session.transfers, &extents) {
                    Ok(written) => {
                        let done = move |result| replied(reply_of(result));
                        self.store.submit_written(transaction, written, done);
                        true
                    }
                    Err(reply) => {
                        replied(reply);
                        false
                    }
                }
            }
            (Ok(Request::Joint(JointRequest::Compare(number))), _) => {
                replied(self.compare(&session, number));
                false
            }
            (Ok(Request::Joint(request)), Some(group)) => {
                group.execute(&self.store, request, replied);
                true
            }
            (Ok(Request::WriteExtent { upload, offset, .. }), _) => {
                let data = part.map_or(&[][..], |part| part.data);
                replied(self.transfers.write_extent(&session.transfers, upload, offset, data));
                false
            }
            (Ok(request), _) => {
                replied(self.read(client, &session, request));
                false
            }
            (Err(reply), _) => {
                replied(reply);
                false
            }
        }
    }

    /// Compares a snapshot with the latest state.
    fn compare(&self, session: &Session, number: SnapshotId) -> Reply {
        match lock(&session.snapshots).get(&number) {
            Some(snapshot) => Reply::Joint(JointReply::Latest(snapshot.version() == self.store.version())),
            None => Reply::Unknown,
        }
    }

    /// Returns the state of a client, and creates it for the first request.
    fn session(&self, client: ClientId, permissions: &Arc<Permissions>) -> Arc<Session> {
        let create = || Session {
            permissions: permissions.clone(),
            snapshots: Mutex::default(),
            transfers: Mutex::default(),
        };
        let mut clients = lock(&self.clients);
        let session = clients.entry(client).or_insert_with(|| Arc::new(create()));
        if Arc::ptr_eq(&session.permissions, permissions) {
            return session.clone();
        }
        let ended = std::mem::replace(session, Arc::new(create()));
        let session = session.clone();
        drop(clients);
        self.free(&ended);
        session
    }

    /// Removes the state of a client that has no request in progress.
    pub fn end(&self, client: ClientId) {
        let ended = lock(&self.clients).remove(&client);
        if let Some(session) = ended {
            self.free(&session);
        }
    }

    fn free(&self, session: &Session) {
        let snapshots = std::mem::take(&mut *lock(&session.snapshots));
        self.snapshots.fetch_sub(snapshots.len(), Ordering::Relaxed);
        self.transfers.end(&session.transfers);
    }

    /// Returns the number of snapshots of all clients.
    pub fn snapshots(&self) -> usize {
        self.snapshots.load(Ordering::Relaxed)
    }

    /// Returns the bytes of uploads, uncommitted extents and long replies of all clients.
    pub fn kept_bytes(&self) -> u64 {
        self.transfers.bytes()
    }

    fn read_counters(&self) -> StoreCounters {
        let mut counters = self.counters.read(self.store.monotonic_ns());
        counters.clients = lock(&self.clients).len() as u64;
        counters.snapshots = self.snapshots() as u64;
        counters.kept_bytes = self.kept_bytes();
        self.store.count(&mut counters);
        counters
    }

    fn number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the encoding of a reply. A reply that is too long is kept, and the client fetches it
    /// in parts.
    fn encode(&self, session: &Session, reply: Reply, reply_bytes_max: usize) -> Vec<u8> {
        let encoded = reply.into_encoding();
        if encoded.len() <= reply_bytes_max {
            return encoded;
        }
        let (number, length_bytes) = (TransferId(self.number()), encoded.len() as u64);
        match self.transfers.keep_reply(&session.transfers, number, encoded) {
            true => encode(&Reply::Long { reply: number, length_bytes }),
            false => {
                encode(&busy("the long replies of the clients need too much memory; fetch or discard some"))
            }
        }
    }

    /// Returns a request in which a reference to an upload is replaced by the uploaded operations.
    fn with_uploads(&self, session: &Session, mut request: Request) -> std::result::Result<Request, Reply> {
        let failed = |error| Reply::Failed(Failure::new(&error));
        match &mut request {
            Request::CommitUploaded(upload) => {
                let bytes = self.transfers.take_upload(&session.transfers, *upload).ok_or(Reply::Unknown)?;
                Ok(Request::Commit(decode(&bytes).map_err(failed)?))
            }
            Request::Read { state, .. }
            | Request::Stat { state, .. }
            | Request::List { state, .. }
            | Request::NextData { state, .. } => {
                if let Draft::Uploaded(upload) = state.draft {
                    let transfers = lock(&session.transfers);
                    state.draft =
                        decode(transfers.uploaded(upload).ok_or(Reply::Unknown)?).map_err(failed)?;
                    if matches!(state.draft, Draft::Uploaded(_)) {
                        return Err(invalid("an upload refers to an upload"));
                    }
                }
                Ok(request)
            }
            _ => Ok(request),
        }
    }

    fn hello(&self, protocol: u32) -> Result<Reply> {
        let error = Error::new(ErrorKind::Unsupported, "use", "version of the protocol");
        match (&self.group, protocol) {
            (None, PROTOCOL) | (Some(_), GROUP_PROTOCOL) => {
                Ok(Reply::Welcome { version: self.store.version() })
            }
            (Some(_), PROTOCOL) => {
                let reason = "the store has several groups of servers: open rados://POOL";
                Err(Error { source: Some(reason.into()), ..error })
            }
            _ => Err(error),
        }
    }

    fn begin(&self, session: &Session) -> Reply {
        let mut snapshots = lock(&session.snapshots);
        if snapshots.len() >= self.limits.snapshots_max {
            return busy("the client has too many snapshots; end some of them");
        }
        if self.snapshots.fetch_add(1, Ordering::Relaxed) >= self.limits.snapshots_total_max {
            self.snapshots.fetch_sub(1, Ordering::Relaxed);
            return busy("all clients together have too many snapshots; repeat the request later");
        }
        let (number, snapshot) = (SnapshotId(self.number()), self.store.snapshot());
        let version = snapshot.version();
        snapshots.insert(number, Arc::new(snapshot));
        Reply::Begun { snapshot: number, version }
    }

    /// Executes a request that commits nothing. If there are several groups and the request is
    /// refused because of a lock, no further joint transaction locks the blobs for some time, so
    /// that the client can read them.
    fn read(&self, client: ClientId, session: &Session, request: Request) -> Reply {
        let part = self.group.as_ref().and_then(|_| ReadPart::of(&request));
        let reply = self.execute_read(session, request);
        let Some(part) = part else { return reply };
        let (store, client) = (&self.store, WaiterId::Reader(client.0));
        match (&reply, part) {
            (Reply::Refused(refusal @ Refusal::Locked { .. }), ReadPart::Name(name)) => {
                store.add_waiter([&name[..]], client, refusal);
            }
            (Reply::Refused(refusal @ Refusal::Locked { .. }), ReadPart::Prefix(prefix)) => {
                let names = store.locked_names(&prefix);
                store.add_waiter(names.iter().map(Vec::as_slice), client, refusal);
            }
            // The client repeats the read with another snapshot.
            (Reply::Failed(failure), _) if failure.kind() == ErrorKind::Stale => {}
            (_, ReadPart::Name(name)) => store.remove_waiter(|used| used == name, client),
            (_, ReadPart::Prefix(prefix)) => store.remove_waiter(|used| used.starts_with(&prefix), client),
        }
        reply
    }

    fn execute_read(&self, session: &Session, request: Request) -> Reply {
        let of_client = &session.transfers;
        let reply = match request {
            Request::Hello { protocol } => self.hello(protocol),
            Request::Begin => Ok(self.begin(session)),
            Request::End(number) => {
                let ended = lock(&session.snapshots).remove(&number);
                self.snapshots.fetch_sub(usize::from(ended.is_some()), Ordering::Relaxed);
                Ok(Reply::Done)
            }
            Request::Read { state, name, offset, length_bytes } => {
                if length_bytes as usize > DATA_BYTES_MAX {
                    return invalid("a read has more than 1 MiB");
                }
                let mut data = Reply::data_buffer(length_bytes as usize);
                self.at(session, state, &mut |state| {
                    let length = state.read(&name, offset, &mut data)?;
                    data.truncate(length);
                    Ok(Reply::Data(std::mem::take(&mut data)))
                })
            }
            Request::Stat { state, name } => {
                self.at(session, state, &mut |state| Ok(Reply::Stat(state.stat(&name)?)))
            }
            Request::List { state, prefix, after, count_max } => {
                let count_max = (count_max as usize).min(NAMES_MAX);
                self.at(session, state, &mut |state| list(state, &prefix, &after, count_max))
            }
            Request::Upload { upload, offset, data } => {
                Ok(self.transfers.upload(of_client, upload, offset, &data))
            }
            Request::Discard(number) => Ok(self.transfers.discard(of_client, number)),
            Request::Fetch { reply, offset } => Ok(Transfers::fetch(of_client, reply, offset)),
            Request::NextData { state, name, offset } => {
                self.at(session, state, &mut |state| Ok(Reply::Position(state.next_data(&name, offset)?)))
            }
            Request::Collect => self.store.collect().map(|()| Reply::Done),
            Request::Counters => Ok(Reply::Counters(Box::new(self.read_counters()))),
            Request::Commit(_)
            | Request::CommitUploaded(_)
            | Request::CommitWritten { .. }
            | Request::WriteExtent { .. }
            | Request::Joint(_) => Ok(invalid("a write is not a read")),
        };
        reply.unwrap_or_else(|error| match Locked::of(&error) {
            Some(refusal) => Reply::Refused(refusal.clone()),
            None => Reply::Failed(Failure::new(&error)),
        })
    }

    /// Passes the state that a read concerns to `use_state`. A read of the latest state uses a
    /// later state if a joint transaction ends meanwhile.
    fn at(
        &self,
        session: &Session,
        state: ReadState,
        use_state: &mut dyn FnMut(&Snapshot) -> Result<Reply>,
    ) -> Result<Reply> {
        let snapshot = match state.snapshot {
            Some(number) => match lock(&session.snapshots).get(&number).cloned() {
                Some(snapshot) => snapshot,
                None => return Ok(Reply::Unknown),
            },
            None => match read_draft(&self.store.snapshot(), state.draft.clone(), use_state) {
                Err(error) if error.kind == ErrorKind::Stale => Arc::new(self.store.snapshot()),
                read => return read,
            },
        };
        read_draft(&snapshot, state.draft, use_state)
    }
}

/// The blobs that a request reads.
enum ReadPart {
    Name(Vec<u8>),
    /// All blobs whose names begin with this prefix.
    Prefix(Vec<u8>),
}

impl ReadPart {
    /// Returns the blobs that a request reads, or `None` if it reads no blob.
    fn of(request: &Request) -> Option<ReadPart> {
        match request {
            Request::Read { name, .. } | Request::Stat { name, .. } | Request::NextData { name, .. } => {
                Some(ReadPart::Name(name.clone()))
            }
            Request::List { prefix, .. } => Some(ReadPart::Prefix(prefix.clone())),
            _ => None,
        }
    }
}

/// Passes a state with the operations of a draft to `use_state`.
fn read_draft(
    snapshot: &Snapshot,
    draft: Draft,
    use_state: &mut dyn FnMut(&Snapshot) -> Result<Reply>,
) -> Result<Reply> {
    let Draft::Inline(operations) = draft else { return Ok(Reply::Unknown) };
    if operations.is_empty() {
        return use_state(snapshot);
    }
    let mut draft = snapshot.draft();
    for operation in operations {
        if let Err(refusal) = draft.apply(operation) {
            return Ok(Reply::Refused(refusal));
        }
    }
    use_state(&draft)
}

/// Lists names until the reply has 512 KiB, or `count_max` names.
fn list(state: &Snapshot, prefix: &[u8], after: &[u8], count_max: usize) -> Result<Reply> {
    const BYTES_MAX: usize = DATA_BYTES_MAX / 2;
    let (mut names, mut bytes, mut is_complete) = (Vec::new(), 0, true);
    let visit: &mut dyn FnMut(&[u8], _) -> bool = &mut |name: &[u8], stat| {
        if names.len() >= count_max || bytes > BYTES_MAX {
            is_complete = false;
            return false;
        }
        bytes += name.len() + size_of_val(&stat);
        names.push((name.to_vec(), stat));
        true
    };
    state.list(prefix, after, visit)?;
    Ok(Reply::Names { names, is_complete })
}

#[cfg(test)]
#[path = "session_test.rs"]
mod tests;
