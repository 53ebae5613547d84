//! A store that a server has open: the master image, and its batches, by requests to the server.
//! docs/formats/batch-protocol.md describes the messages.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use quell_batch_service::{
    AuxiliarySummary, BatchRecord, BatchSummary, Bytes, Conflict, EntriesOf, LimitChange, ListedEntries,
    Marker, NewBatch, NewPart, PATHS_BYTES_MAX, PATHS_MAX, PROTOCOL, Quota, QuotaSubject, Reply, Request,
    Resolution, Resolved, SnapshotServer, SnapshotSummary, UserKey,
};
use quell_threads::lock;
use quell_transport::peer::{Client, ClientSettings, Endpoint, PoolKey, was_not_executed};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::{decode, encode};
use rustix::process::geteuid;

use crate::served_names::Server;
use crate::server_files::{find_server, read_client_key};
use crate::store_dir::StoreDir;
use crate::store_lock::StoreLock;
use crate::user_key::path_of_key;

/// The largest reply to a request, in bytes: an inode with its content and extended attributes.
pub(crate) const REPLY_BYTES_MAX: u32 = 512 << 10;
/// The time for which a request is repeated if no server answers.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// The same time for the verification and the commit of a batch, and for requests that wait for it.
const COMMIT_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// The time for which a partition server is asked whether it accepts an assignment.
const COUNTERS_LIMIT: Duration = Duration::from_secs(5);
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(20);
/// The time for which a client waits until the server has received its disconnect message.
const GOODBYE_LIMIT: Duration = Duration::from_millis(200);

/// The largest time by which the clock of the server may be ahead of that of a client that
/// recognizes the refusal of its expired key.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(3600);

/// A client of the server of a store. It connects to the next server if the present one is
/// replaced, and with the next key if the server refuses the present one.
pub(crate) struct Remote {
    // The connection ends before the directory is closed, to which the path of the socket refers.
    link: Mutex<Link>,
    store_number: u128,
    dir: StoreDir,
    /// Held while this client may have data files to which no inode refers yet. `None` for users
    /// other than the owner of the store, who cannot take the lock, and whose files `quell batch
    /// gc` does not remove.
    _data: Option<StoreLock>,
}

/// The connection to the present server.
#[derive(Clone)]
struct Link {
    client: Arc<Client>,
    settings: Arc<ClientSettings>,
}

impl Link {
    fn start(settings: ClientSettings) -> Result<Link> {
        let client = Arc::new(Client::start(settings.clone())?);
        Ok(Link { client, settings: Arc::new(settings) })
    }

    /// Returns whether the connection uses this key.
    fn has_key(&self, secret: &PoolKey, description: &[u8]) -> bool {
        self.settings.key.0 == secret.0 && self.settings.description == description
    }

    /// Returns whether the key of this client may have expired by the clock of the server, which
    /// may be ahead of that of this node.
    fn may_have_expired(&self) -> bool {
        let key = UserKey::decode(&self.settings.description);
        key.is_some_and(|key| key.has_expired(SystemTime::now() + CLOCK_DIFFERENCE_MAX))
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("store", &self.dir.path).finish_non_exhaustive()
    }
}

impl Remote {
    /// Connects to the server of a store.
    ///
    /// # Errors
    /// `Unavailable` if there is no server; for a server over TCP, the errors of the file with the
    /// key.
    pub(crate) fn connect(dir: StoreDir) -> Result<Remote> {
        let settings = find_server(&dir)?;
        let data = match dir.owner() {
            Some(_) => None,
            None => Some(dir.keep_data()?),
        };
        let link = Mutex::new(Link::start(settings)?);
        let mut remote = Remote { link, store_number: 0, dir, _data: data };
        match remote.call(&Request::Hello { protocol: PROTOCOL }) {
            Ok(Reply::Welcome { store }) => remote.store_number = store,
            Ok(_) => return Err(remote.unexpected_reply()),
            Err(error) => return Err(remote.refused_key(error)),
        }
        Ok(remote)
    }

    /// Connects to the partition server with this directory. Calls fail 1 s after the connection
    /// was lost.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub(crate) fn connect_to_partitions(dir: StoreDir) -> Result<Remote> {
        let settings = ClientSettings { unreachable_after: Duration::from_secs(1), ..find_server(&dir)? };
        let remote = Remote { link: Mutex::new(Link::start(settings)?), store_number: 0, dir, _data: None };
        match decode(&remote.send_once(&Request::Hello { protocol: PROTOCOL })?)? {
            Reply::Welcome { .. } => Ok(remote),
            Reply::Failed(failure) => {
                Err(failure.into_error("connect to a partition server of", remote.dir.subject()))
            }
            _ => Err(remote.unexpected_reply()),
        }
    }

    /// Returns the directory of the store.
    pub(crate) fn dir(&self) -> &StoreDir {
        &self.dir
    }

    /// Sends a request once, and returns the encoded reply. The errors are those of the connection.
    pub(crate) fn send_once(&self, request: &Request) -> Result<Vec<u8>> {
        let limit = match request {
            Request::GiveBack { .. } | Request::Forget { .. } => COMMIT_LIMIT,
            Request::Counters => COUNTERS_LIMIT,
            _ => CALL_LIMIT,
        };
        self.send(&self.link(), encode(request), Instant::now() + limit)
    }

    /// Sends an encoded request over a connection, and returns the encoded reply.
    fn send(&self, link: &Link, request: Vec<u8>, deadline: Instant) -> Result<Vec<u8>> {
        let (sender, receiver) = channel();
        // The receiver waits for the result.
        let done = Box::new(move |result| _ = sender.send(result));
        link.client.call_at_once(request, REPLY_BYTES_MAX, deadline, done);
        let closed = || Err(Error::new(ErrorKind::Unavailable, "call the server of", self.dir.subject()));
        receiver.recv().unwrap_or_else(|_| closed())
    }

    /// Describes the refusal of the key of a user other than the owner of the store.
    fn refused_key(&self, error: Error) -> Error {
        // Without a proof of the key, the server has executed nothing and stated no reason.
        if error.kind != ErrorKind::PermissionDenied
            || !was_not_executed(&error)
            || self.dir.owner().is_none()
        {
            return error;
        }
        let path = path_of_key(&self.dir, geteuid().as_raw());
        let reason = format!(
            "the server refuses your key {}: it was derived for another store or from an earlier key of this store, or \
             was changed; get another one from the owner of the store",
            path.display()
        );
        Error {
            source: Some(reason.into()),
            ..Error::new(error.kind, "connect to the server of", self.dir.subject())
        }
    }

    /// Returns the random number of the store.
    pub(crate) fn store_number(&self) -> u128 {
        self.store_number
    }

    /// See [`BatchStore::begin`](crate::BatchStore).
    pub(crate) fn begin(&self, new: NewBatch) -> Result<BatchRecord> {
        let NewBatch { name, caller, subtree, is_atomic } = new;
        match self.call(&Request::Begin { name, caller, subtree, is_atomic })? {
            Reply::Begun(record) => Ok(record),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// See [`Primary::begin_for_parts`](quell_batch_service::Primary::begin_for_parts).
    pub(crate) fn begin_for_parts(&self, new: NewBatch) -> Result<BatchRecord> {
        let NewBatch { name, caller, subtree, is_atomic } = new;
        match self.call(&Request::BeginForParts { name, caller, subtree, is_atomic })? {
            Reply::Begun(record) => Ok(record),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// See [`Primary::join`](quell_batch_service::Primary::join).
    pub(crate) fn join(&self, new: NewPart) -> Result<BatchRecord> {
        let NewPart { batch, name, caller } = new;
        match self.call(&Request::Join { batch, name, caller })? {
            Reply::Begun(record) => Ok(record),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// Publishes a batch, whose lock the caller holds.
    pub(crate) fn commit(&self, batch: u64) -> Result<BatchSummary> {
        self.call_for_batch(&Request::Commit { batch })
    }

    /// Marks a batch as submitted, whose lock the caller holds.
    pub(crate) fn submit(&self, batch: u64) -> Result<BatchSummary> {
        self.call_for_batch(&Request::Submit { batch })
    }

    /// Discards a batch, whose lock the caller holds.
    pub(crate) fn abort(&self, batch: u64) -> Result<BatchSummary> {
        self.call_for_batch(&Request::Abort { batch })
    }

    /// Prepares a batch, whose lock the caller holds.
    pub(crate) fn prepare(&self, batch: u64, marker: Marker) -> Result<BatchSummary> {
        self.call_for_batch(&Request::Prepare { batch, marker })
    }

    /// Publishes a batch that is prepared with this marker.
    pub(crate) fn publish(&self, batch: u64, marker: &str) -> Result<BatchSummary> {
        self.call_for_batch(&Request::Publish { batch, marker: marker.to_owned() })
    }

    /// Makes a batch that is prepared with this marker an open one again.
    pub(crate) fn roll_back(&self, batch: u64, marker: &str) -> Result<BatchSummary> {
        self.call_for_batch(&Request::RollBack { batch, marker: marker.to_owned() })
    }

    fn call_for_batch(&self, request: &Request) -> Result<BatchSummary> {
        match self.call(request)? {
            Reply::Batch(summary) => Ok(summary),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// Returns all batches, in the order in which they began.
    pub(crate) fn batches(&self) -> Result<Vec<BatchSummary>> {
        self.list(
            |batch: &BatchSummary| batch.number,
            |after| match self.call(&Request::Batches { after })? {
                Reply::Batches { batches, is_last } => Ok((batches, is_last)),
                _ => Err(self.unexpected_reply()),
            },
        )
    }

    /// Returns the snapshots of all open batches, in the order in which they began.
    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotSummary>> {
        self.list(
            |snapshot: &SnapshotSummary| snapshot.batch,
            |after| match self.call(&Request::Snapshots { after })? {
                Reply::Snapshots { snapshots, is_last } => Ok((snapshots, is_last)),
                _ => Err(self.unexpected_reply()),
            },
        )
    }

    /// Returns the use and the limits of the store and of users, in the order of their subjects.
    pub(crate) fn quotas(&self) -> Result<Vec<Quota>> {
        self.list(
            // The next part begins at the subject after this one.
            |quota: &Quota| quota.subject.position() + 1,
            |from| match self.call(&Request::Quotas { from })? {
                Reply::Quotas { quotas, is_last } => Ok((quotas, is_last)),
                _ => Err(self.unexpected_reply()),
            },
        )
    }

    /// Changes a limit.
    pub(crate) fn set_limit(&self, subject: QuotaSubject, change: LimitChange) -> Result<()> {
        match self.call(&Request::SetLimit { subject, change })? {
            Reply::Done => Ok(()),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// Returns the auxiliary servers that are connected to the server.
    pub(crate) fn auxiliary_servers(&self) -> Result<Vec<AuxiliarySummary>> {
        match self.call(&Request::AuxiliaryServers)? {
            Reply::AuxiliaryServers(servers) => Ok(servers),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// Returns all items of a list, which is requested in parts and ascends by the numbers of the
    /// items. `part` requests the items after a number, and returns whether they are the last ones.
    fn list<T>(
        &self,
        number_of: impl Fn(&T) -> u64,
        part: impl Fn(u64) -> Result<(Vec<T>, bool)>,
    ) -> Result<Vec<T>> {
        let mut found: Vec<T> = Vec::new();
        loop {
            let after = found.last().map_or(0, &number_of);
            let (items, is_last) = part(after)?;
            let is_ascending = items.first().is_none_or(|first| number_of(first) > after);
            if !is_last && (items.is_empty() || !is_ascending) {
                return Err(self.unexpected_reply());
            }
            found.extend(items);
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Returns the conflicts of a batch.
    pub(crate) fn conflicts(&self, batch: u64) -> Result<Vec<Conflict>> {
        let mut found = Vec::new();
        loop {
            let from = found.len() as u64;
            let reply = self.call(&Request::Conflicts { batch, from })?;
            let Reply::Conflicts { conflicts, is_last } = reply else { return Err(self.unexpected_reply()) };
            if conflicts.is_empty() && !is_last {
                return Err(self.unexpected_reply());
            }
            found.extend(conflicts);
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Returns the record of an open batch of this user.
    pub(crate) fn record(&self, batch: u64) -> Result<BatchRecord> {
        match self.call(&Request::Record { batch })? {
            Reply::Begun(record) if record.number == batch => Ok(record),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// Returns the server of the snapshot of a batch of this user. `None` if this process reads
    /// the tables of the snapshot itself.
    pub(crate) fn snapshot_of(self: &Arc<Self>, batch: u64) -> Option<Arc<dyn SnapshotServer>> {
        match self.dir.is_private() && self.dir.owner().is_some() {
            true => Some(Arc::new(RemoteSnapshot { remote: self.clone(), batch })),
            false => None,
        }
    }

    /// Returns entries of the snapshot of a batch of this user.
    fn entries(&self, batch: u64, dir: u64, of: EntriesOf) -> Result<ListedEntries> {
        match self.call(&Request::Entries { batch, dir, of })? {
            Reply::Entries(listed) => Ok(listed),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// See [`StoreAccess::resolve`](crate::StoreAccess::resolve).
    pub(crate) fn resolve(
        &self,
        batch: u64,
        paths: Option<&[Vec<u8>]>,
        how: &Resolution,
    ) -> Result<Resolved> {
        let resolve = |paths: Option<Vec<Bytes>>| {
            let resolution = how.clone();
            match self.call(&Request::Resolve { batch, paths, resolution })? {
                Reply::Resolved(resolved) => Ok(resolved),
                _ => Err(self.unexpected_reply()),
            }
        };
        let Some(paths) = paths else { return resolve(None) };
        let mut sum = Resolved::default();
        let mut paths: Vec<_> = paths.iter().collect();
        paths.sort_unstable();
        paths.dedup();
        let mut rest = &paths[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let next = rest.iter().take(PATHS_MAX).take_while(|path| {
                bytes += path.len();
                bytes <= PATHS_BYTES_MAX
            });
            // The server refuses a path that is longer than the limit.
            let (next, later) = rest.split_at(next.count().max(1));
            let next: Vec<_> = next.iter().map(|path| Bytes((*path).clone())).collect();
            let deadline = Instant::now() + CALL_LIMIT;
            let Resolved { resolved, not_kept } = loop {
                match resolve(Some(next.clone())) {
                    // Another command uses the batch. The conflicts of the earlier requests are
                    // resolved, so the user could not repeat this command.
                    Err(error)
                        if error.kind == ErrorKind::Busy
                            && rest.len() < paths.len()
                            && Instant::now() < deadline =>
                    {
                        std::thread::sleep(PAUSE);
                    }
                    resolved => break resolved?,
                }
            };
            sum.resolved += resolved;
            sum.not_kept += not_kept;
            rest = later;
        }
        Ok(sum)
    }

    fn link(&self) -> Link {
        lock(&self.link).clone()
    }

    /// Sends a request, and returns the reply. The request is sent again if the server has
    /// certainly not executed it, or if a repetition has the same result; and if the server refuses
    /// the key, and there is another one.
    pub(crate) fn call(&self, request: &Request) -> Result<Reply> {
        let limit = match request {
            Request::Commit { .. }
            | Request::Prepare { .. }
            | Request::Publish { .. }
            | Request::RollBack { .. }
            | Request::Resolve { .. }
            | Request::TakeBack { .. }
            | Request::AwaitDivision { .. } => COMMIT_LIMIT,
            _ => CALL_LIMIT,
        };
        let (encoded, deadline) = (encode(request), Instant::now() + limit);
        loop {
            let link = self.link();
            match self.send(&link, encoded.clone(), deadline) {
                Ok(reply) => match decode(&reply)? {
                    Reply::Failed(failure) => {
                        let error = failure.into_error("call the server of", self.dir.subject());
                        let is_refused = error.kind == ErrorKind::PermissionDenied && link.may_have_expired();
                        if !is_refused || !self.uses_new_key(&link) {
                            return Err(error);
                        }
                    }
                    reply => return Ok(reply),
                },
                Err(error) if error.kind == ErrorKind::PermissionDenied && was_not_executed(&error) => {
                    if !self.uses_new_key(&link) {
                        return Err(error);
                    }
                }
                Err(error) => {
                    let is_transient = matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Busy);
                    let may_repeat = was_not_executed(&error) || request.is_repeatable();
                    if !is_transient || !may_repeat || Instant::now() + PAUSE >= deadline {
                        return Err(error);
                    }
                    std::thread::sleep(PAUSE);
                    self.follow(&link);
                }
            }
        }
    }

    /// Reads the key again after the server has refused that of `link`, and connects with it if it
    /// is another one. Returns whether the present connection is another one than `link`.
    fn uses_new_key(&self, link: &Link) -> bool {
        // Connections over a Unix socket use no key.
        let Endpoint::Tcp(_) = link.settings.server else { return false };
        let Ok(key) = read_client_key(&self.dir) else { return false };
        !link.has_key(&key.secret, &key.description) && self.follow(link)
    }

    /// Reads the address and the key of the server again, and replaces the connection if one of
    /// them has changed. Returns whether the present connection is another one than `link`. The
    /// connection itself finds a new server at the same address.
    fn follow(&self, link: &Link) -> bool {
        // After an error, the next repetition tries again.
        let Ok(settings) = find_server(&self.dir) else { return false };
        let is_same =
            settings.server == link.settings.server && link.has_key(&settings.key, &settings.description);
        let next = if is_same { None } else { Link::start(settings).ok() };
        let mut present = lock(&self.link);
        // Another thread may already have replaced the link.
        let is_present = Arc::ptr_eq(&present.client, &link.client);
        if is_present && let Some(next) = next {
            *present = next;
            return true;
        }
        !is_present
    }

    pub(crate) fn unexpected_reply(&self) -> Error {
        let source = Some("the reply does not belong to the request".into());
        Error { source, ..Error::new(ErrorKind::Damaged, "call the server of", self.dir.subject()) }
    }
}

/// The snapshot of a batch of this user, which the server reads.
struct RemoteSnapshot {
    remote: Arc<Remote>,
    /// The number of the batch.
    batch: u64,
}

impl SnapshotServer for RemoteSnapshot {
    fn entries(&self, dir: u64, of: EntriesOf) -> Result<ListedEntries> {
        self.remote.entries(self.batch, dir, of)
    }
}

impl Drop for Remote {
    /// Tells the server to forget this client at once, and not only after a time.
    fn drop(&mut self) {
        self.link().client.stop(GOODBYE_LIMIT);
    }
}

impl Server for Arc<Remote> {
    fn call(&self, request: &Request) -> Result<Reply> {
        Remote::call(self, request)
    }

    fn unexpected(&self) -> Error {
        self.unexpected_reply()
    }
}
