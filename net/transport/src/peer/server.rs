//! A server: accepts connections of any number of clients, up to a limit, which prove its key, or
//! which are processes of the same user on the same machine.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_vfs::{Error, ErrorKind, Result};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::connection::{respond, serve};
use super::gate::Gate;
use super::handler::Handler;
use super::handshake::Refusal;
use super::network::{DRAIN_INTERVAL, drain, random_number};
use super::peer_state::{CollectedPeers, Peer};
use super::peer_user::PeerUser;
use super::settings::{MemberId, NamedKey, PoolId, PoolKey, Protection, Role, SERVER, Settings, named_key};
use super::stream::{Endpoint, Stream, UnixClients};
use super::transport::CollectedSends;

/// The pause after a failure to accept.
const PAUSE: Duration = Duration::from_millis(20);
/// How often the server looks for clients that have left.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The settings of a server. `ServerSettings::new` has the defaults.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The service.
    pub role: Role,
    /// The key, which clients over TCP prove, and the protection of their frames. Over a Unix
    /// socket the uid of the client takes their place.
    pub key: PoolKey,
    /// Further keys, which clients prove over TCP and over Unix sockets.
    pub named_keys: Vec<NamedKey>,
    /// The protection of frames over TCP.
    pub protection: Protection,
    /// Threads that serve all connections, at least 1.
    pub threads: usize,
    /// Clients at a time. More are refused.
    pub clients_max: usize,
    /// The largest number of clients of each [user](ClientHandler::user) at a time, except for this
    /// user and root. More are refused.
    pub clients_of_user_max: usize,
    /// Requests that the server holds for each client at a time, 1 to 65,536.
    pub requests_held_max: u32,
    /// Bytes of requests, and of the replies that they allow, that the server holds for each client
    /// at a time: at least [`BYTES_HELD_MIN`](super::BYTES_HELD_MIN).
    pub bytes_held_max: u64,
    /// Requests of all clients that the handler has at a time, and one more for each connection. No
    /// requests are read while this number of requests has begun. Requests of clients with a [named
    /// key](NamedKey) are always read, and not counted.
    pub requests_begun_max: usize,
    /// How long a client without a connection is remembered. Its requests are executed at most once
    /// if it connects again before.
    pub absent_max: Duration,
}

impl ServerSettings {
    /// Returns settings with the default bounds: 256 clients and 64 of each user, 1,000 requests
    /// and 16 MiB for each of them, 1,000 requests of all, 10 s, and one thread.
    pub fn new(role: Role, key: PoolKey) -> ServerSettings {
        ServerSettings {
            role,
            key,
            named_keys: Vec::new(),
            protection: Protection::Integrity,
            threads: 1,
            clients_max: 256,
            clients_of_user_max: 64,
            requests_held_max: 1000,
            bytes_held_max: 16 << 20,
            requests_begun_max: 1000,
            absent_max: Duration::from_secs(10),
        }
    }

    fn connection(&self, is_unix: bool) -> Settings {
        let unused = SocketAddr::from(([0, 0, 0, 0], 0));
        let settings = settings(self.role, &self.key, self.protection, SERVER, is_unix, unused);
        Settings {
            named_keys: self.named_keys.clone(),
            requests_held_max: self.requests_held_max,
            bytes_held_max: self.bytes_held_max,
            ..settings
        }
    }
}

/// Returns the settings of the connections of a server or of a client. `own` is its number.
pub(super) fn settings(
    role: Role,
    key: &PoolKey,
    protection: Protection,
    own: MemberId,
    is_unix: bool,
    listen: SocketAddr,
) -> Settings {
    let (key, protection) = match is_unix {
        true => (PoolKey([0; 32]), Protection::None),
        false => (key.clone(), protection),
    };
    Settings { role, protection, ..Settings::new(PoolId([0; 16]), key, own, listen) }
}

/// The identity of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientIdentity<'a> {
    /// The description of its key: see [`PoolKey::derived`]. It is empty for the key of the server
    /// itself. A client over a Unix socket proves only a named key; without one, its description
    /// has no meaning.
    pub description: &'a [u8],
    /// Whether the client has proved the [key](NamedKey) whose name is its description.
    pub has_named_key: bool,
    /// Its user, if it is a client at a socket for [all users](UnixClients::OfAllUsers).
    pub user: Option<&'a PeerUser>,
}

/// Executes the requests of clients.
pub trait ClientHandler: Send + Sync {
    /// Returns the handler of the requests of a client. `None` if its description is not valid: the
    /// client is refused. Called on a thread that serves connections; must not block.
    fn handler(&self, client: ClientIdentity<'_>) -> Option<Arc<dyn Handler>>;

    /// Returns the user of a client, if it is known. By default, it is known of clients at a socket
    /// for [all users](UnixClients::OfAllUsers). Called on a thread that serves connections; must
    /// not block.
    fn user(&self, client: ClientIdentity<'_>) -> Option<u32> {
        client.user.map(|user| user.uid)
    }

    /// A client has left, or was without a connection for too long. There will be no requests of
    /// it, unless it connects again as a new client. Called on a thread that serves connections;
    /// must not block.
    fn ended(&self, client: MemberId);
}

/// A server and its connections. It is served by threads of its own.
pub struct Server {
    shared: Arc<Shared>,
    /// `None` after `stop`.
    runtime: Mutex<Option<Runtime>>,
    listeners: Mutex<Vec<AbortHandle>>,
}

struct Shared {
    settings: ServerSettings,
    handler: Arc<dyn ClientHandler>,
    gate: Arc<Gate>,
    clients: Mutex<HashMap<MemberId, ListedClient>>,
    /// Connections that have not proved the key, the oldest first.
    unproved: Mutex<VecDeque<(u64, AbortHandle)>>,
    next_number: AtomicU64,
    refused: AtomicU64,
    is_stopping: AtomicBool,
}

/// A client that has proved its key.
struct ListedClient {
    peer: Arc<Peer>,
    /// The description of its key.
    description: Vec<u8>,
    /// Its user, if it is a client at a socket for all users.
    user: Option<PeerUser>,
    /// The user to whose largest number of clients it counts.
    uid: Option<u32>,
}

impl ListedClient {
    /// Returns whether the client is this one: both have proved one key, or are processes of one
    /// user.
    fn is(&self, client: ClientIdentity<'_>) -> bool {
        (&*self.description, self.user.as_ref()) == (client.description, client.user)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts the threads. Requests of clients go to `handler`.
    ///
    /// # Errors
    /// `InvalidInput` for settings out of bounds; the error of the system if no thread can be
    /// created.
    pub fn start(settings: ServerSettings, handler: Arc<dyn ClientHandler>) -> Result<Server> {
        settings.connection(false).check()?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(settings.threads.max(1))
            .thread_name("quell-clients")
            .enable_all()
            .build()
            .map_err(|cause| Error::from_io(cause, "start threads for", "connections"))?;
        let shared = Arc::new(Shared {
            gate: Arc::new(Gate::new(settings.requests_begun_max)),
            settings,
            handler,
            clients: Mutex::default(),
            unproved: Mutex::default(),
            next_number: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
        });
        runtime.spawn(sweep(shared.clone()));
        Ok(Server { shared, runtime: Mutex::new(Some(runtime)), listeners: Mutex::default() })
    }

    /// Accepts clients with the key at a TCP address. Port 0 lets the kernel choose one. Returns
    /// the address.
    ///
    /// # Errors
    /// The error of the system if the address cannot be used; `Unavailable` after `stop`.
    pub fn listen_tcp(&self, address: SocketAddr) -> Result<SocketAddr> {
        let failed = |cause| Error::from_io(cause, "listen on", address.to_string());
        let runtime = lock(&self.runtime);
        let runtime = runtime.as_ref().ok_or_else(|| stopped("listen on", &address.to_string()))?;
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let _context = runtime.enter();
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let task = runtime.spawn(listen(self.shared.clone(), Listener::Tcp(listener)));
        lock(&self.listeners).push(task.abort_handle());
        Ok(address)
    }

    /// Accepts clients of this user and of root at a Unix socket, which is created with the mode
    /// 0600. A socket of this name is replaced: the caller makes sure that no other server uses it.
    ///
    /// # Errors
    /// The error of the system if the socket cannot be created; `Unavailable` after `stop`.
    pub fn listen_unix(&self, path: &Path) -> Result<()> {
        self.listen_unix_for(path, UnixClients::OfThisUser)
    }

    /// As [`listen_unix`](Self::listen_unix), for clients of these users.
    ///
    /// # Errors
    /// As for [`listen_unix`](Self::listen_unix).
    pub fn listen_unix_for(&self, path: &Path, clients: UnixClients) -> Result<()> {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt};
        let name = path.display().to_string();
        let failed = |cause| Error::from_io(cause, "listen on", name.as_str());
        let runtime = lock(&self.runtime);
        let runtime = runtime.as_ref().ok_or_else(|| stopped("listen on", &name))?;
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            std::fs::remove_file(path).map_err(failed)?;
        }
        let listener = std::os::unix::net::UnixListener::bind(path).map_err(failed)?;
        // A client that connects before is checked by its uid as well.
        let mode = match clients {
            UnixClients::OfThisUser => 0o600,
            UnixClients::OfAllUsers => 0o660,
        };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let _context = runtime.enter();
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        let task = runtime.spawn(listen(self.shared.clone(), Listener::Unix(listener, clients)));
        lock(&self.listeners).push(task.abort_handle());
        Ok(())
    }

    /// Returns the number of clients.
    pub fn clients(&self) -> usize {
        lock(&self.shared.clients).len()
    }

    /// Returns whether this client is one of them.
    pub fn is_client(&self, id: MemberId) -> bool {
        lock(&self.shared.clients).contains_key(&id)
    }

    /// Returns the number of connections that were refused.
    pub fn refused_connections(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Collects the replies of the calling thread: see
    /// [`Transport::collect`](super::Transport::collect).
    pub fn collect() -> Box<dyn CollectedSends> {
        Box::new(CollectedPeers::begin())
    }

    /// Refuses new connections and requests, waits at most `limit` for the answers to the requests
    /// that were begun, and closes all connections. A second call does nothing. It must not be
    /// called by a handler.
    pub fn stop(&self, limit: Duration) {
        let Some(runtime) = lock(&self.runtime).take() else { return };
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        lock(&self.listeners).iter().for_each(AbortHandle::abort);
        let clients = self.shared.listed();
        clients.iter().for_each(|client| client.begin_stop());
        drain(&runtime, &clients, limit);
        clients.iter().for_each(|client| client.remove());
        // Tasks end at their next wait; a handler that blocks does not hold this thread.
        runtime.shutdown_timeout(DRAIN_INTERVAL.saturating_mul(500));
    }
}

impl Drop for Server {
    /// Ends the threads, as the end of the process would. Only `stop` answers the requests that
    /// were begun.
    fn drop(&mut self) {
        if let Some(runtime) = lock(&self.runtime).take() {
            self.shared.is_stopping.store(true, Ordering::SeqCst);
            let clients = self.shared.listed();
            clients.iter().for_each(|client| client.remove());
            runtime.shutdown_background();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stopped(operation: &'static str, subject: &str) -> Error {
    Error {
        source: Some("the connections are closed".into()),
        ..Error::new(ErrorKind::Unavailable, operation, subject)
    }
}

impl Shared {
    fn listed(&self) -> Vec<Arc<Peer>> {
        lock(&self.clients).values().map(|client| client.peer.clone()).collect()
    }

    /// Returns the identity of a client that proves the key of a description.
    fn identity<'a>(&self, description: &'a [u8], user: Option<&'a PeerUser>) -> ClientIdentity<'a> {
        let has_named_key = named_key(&self.settings.named_keys, description).is_some();
        ClientIdentity { description, has_named_key, user }
    }

    /// Finds or creates the state of a client whose connection has not been proved yet.
    fn candidate(
        &self,
        id: MemberId,
        client: ClientIdentity<'_>,
        settings: &Settings,
    ) -> Result<Arc<Peer>, Refusal> {
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(Refusal::Stopping);
        }
        let clients = lock(&self.clients);
        if let Some(listed) = clients.get(&id) {
            // Clients choose their numbers. A client with another key, or of another user, must not
            // replace this client.
            return match listed.is(client) {
                true => Ok(listed.peer.clone()),
                false => Err(Refusal::UnknownInitiator),
            };
        }
        if id >= SERVER || self.is_full(&clients, self.handler.user(client)) {
            return Err(Refusal::Full);
        }
        drop(clients);
        let session = random_number().map_err(|_| Refusal::Full)?;
        // The address is empty, because a server does not connect to its clients.
        let nowhere = Endpoint::Unix(std::path::PathBuf::new());
        let handler = self.handler.handler(client).ok_or(Refusal::Description)?;
        // The requests of other clients may wait for a request of a client with a named key.
        let gate = (!client.has_named_key).then(|| self.gate.clone());
        Ok(Peer::new(settings, id, session, nowhere, handler, gate))
    }

    /// Returns whether there are too many clients for another one of this user.
    fn is_full(&self, clients: &HashMap<MemberId, ListedClient>, uid: Option<u32>) -> bool {
        let of_user = |uid| clients.values().filter(|listed| listed.uid == Some(uid)).count();
        let is_limited = |uid: &u32| *uid != 0 && *uid != rustix::process::geteuid().as_raw();
        clients.len() >= self.settings.clients_max
            || uid.filter(is_limited).is_some_and(|uid| of_user(uid) >= self.settings.clients_of_user_max)
    }

    /// Adds a client that has proved the key. Returns false if it must connect again.
    fn add(&self, client: &Arc<Peer>, identity: ClientIdentity<'_>) -> bool {
        let mut clients = lock(&self.clients);
        if self.is_stopping.load(Ordering::SeqCst) {
            return false;
        }
        if let Some(listed) = clients.get(&client.id) {
            return Arc::ptr_eq(&listed.peer, client);
        }
        let uid = self.handler.user(identity);
        if client.is_removed() || self.is_full(&clients, uid) {
            return false;
        }
        let (description, user) = (identity.description.to_vec(), identity.user.cloned());
        clients.insert(client.id, ListedClient { peer: client.clone(), description, user, uid });
        true
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, UnixClients),
}

impl Listener {
    /// Returns a connection, and the user of the client at a socket for all users.
    async fn accept(&self) -> std::io::Result<(Stream, Option<PeerUser>)> {
        match self {
            Listener::Tcp(listener) => Ok((Stream::tcp(listener.accept().await?.0)?, None)),
            Listener::Unix(listener, clients) => Stream::unix(listener.accept().await?.0, *clients),
        }
    }
}

/// Accepts connections.
async fn listen(shared: Arc<Shared>, listener: Listener) {
    let settings = Arc::new(shared.settings.connection(matches!(listener, Listener::Unix(..))));
    loop {
        let (stream, user) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "refused a connection");
                continue;
            }
            Err(error) => {
                // For example no free descriptor: others must close theirs first.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        let number = shared.next_number.fetch_add(1, Ordering::Relaxed);
        let mut unproved = lock(&shared.unproved);
        if unproved.len() >= settings.unproved_connections_max
            && let Some((_, oldest)) = unproved.pop_front()
        {
            oldest.abort();
            shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        // The task removes its entry, which is added before the lock is released.
        let task = tokio::spawn(take_connection(shared.clone(), settings.clone(), (stream, user), number));
        unproved.push_back((number, task.abort_handle()));
    }
}

/// Serves a connection of a client.
async fn take_connection(
    shared: Arc<Shared>,
    settings: Arc<Settings>,
    (stream, user): (Stream, Option<PeerUser>),
    number: u64,
) {
    let user = user.as_ref();
    let candidate =
        |id, description: &[u8]| shared.candidate(id, shared.identity(description, user), &settings);
    let responded = respond(&settings, stream, candidate).await;
    lock(&shared.unproved).retain(|(listed, _)| *listed != number);
    match responded {
        Ok((client, proved)) if shared.add(&client, shared.identity(&proved.description, user)) => {
            serve(&settings, &client, proved, false, || ()).await;
        }
        Ok(_) => _ = shared.refused.fetch_add(1, Ordering::Relaxed),
        Err(failure) => {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%failure, "refused a connection");
        }
    }
}

/// Forgets clients that have left.
async fn sweep(shared: Arc<Shared>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let mut gone = Vec::new();
        lock(&shared.clients).retain(|_, ListedClient { peer: client, .. }| {
            let is_gone = client.is_gone(shared.settings.absent_max);
            if is_gone {
                // A connection that finds its client removed is closed, and the client connects
                // again.
                client.remove();
                gone.push(client.id);
            }
            !is_gone
        });
        gone.into_iter().for_each(|id| shared.handler.ended(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoRequests;

    impl Handler for NoRequests {
        fn handle(&self, _request: super::super::Request, _reply: super::super::Reply) {}
    }

    impl ClientHandler for NoRequests {
        fn handler(&self, client: ClientIdentity<'_>) -> Option<Arc<dyn Handler>> {
            (client.description != b"unknown").then(|| Arc::new(NoRequests) as _)
        }

        fn ended(&self, _client: MemberId) {}
    }

    fn with_key(description: &[u8]) -> ClientIdentity<'_> {
        ClientIdentity { description, has_named_key: false, user: None }
    }

    #[test]
    fn a_client_with_another_key_or_user_does_not_take_the_place_of_a_client() {
        let settings = ServerSettings::new(Role::Blob, PoolKey([3; 32]));
        let connection = settings.connection(false);
        let server = Server::start(settings, Arc::new(NoRequests)).unwrap();
        let candidate = |client| server.shared.candidate(MemberId(5), client, &connection);
        let first = candidate(with_key(b"a")).unwrap();
        // A client that has begun its handshake at the same time is refused after it.
        let second = candidate(with_key(b"b")).unwrap();
        assert!(server.shared.add(&first, with_key(b"a")) && !server.shared.add(&second, with_key(b"b")));
        assert_eq!(candidate(with_key(b"b")).unwrap_err(), Refusal::UnknownInitiator);
        assert_eq!(candidate(with_key(b"")).unwrap_err(), Refusal::UnknownInitiator);
        let user = PeerUser { uid: 7, gid: 8, groups: vec![9] };
        let of_user = ClientIdentity { user: Some(&user), ..with_key(b"a") };
        assert_eq!(candidate(of_user).unwrap_err(), Refusal::UnknownInitiator);
        assert!(Arc::ptr_eq(&candidate(with_key(b"a")).unwrap(), &first));
        let other = server.shared.candidate(MemberId(6), with_key(b"unknown"), &connection);
        assert_eq!(other.unwrap_err(), Refusal::Description);
        // Two users, or one user with different groups, are different clients.
        let third = server.shared.candidate(MemberId(7), of_user, &connection).unwrap();
        assert!(server.shared.add(&third, of_user));
        for user in [PeerUser { uid: 6, ..user.clone() }, PeerUser { groups: vec![], ..user.clone() }] {
            let client = ClientIdentity { user: Some(&user), ..with_key(b"a") };
            let refused = server.shared.candidate(MemberId(7), client, &connection);
            assert_eq!(refused.unwrap_err(), Refusal::UnknownInitiator);
        }
        server.stop(Duration::from_secs(9));
    }

    #[test]
    fn a_user_cannot_take_the_places_of_all_clients() {
        let settings =
            ServerSettings { clients_of_user_max: 2, ..ServerSettings::new(Role::Blob, PoolKey([3; 32])) };
        let connection = settings.connection(true);
        let server = Server::start(settings, Arc::new(NoRequests)).unwrap();
        let user = |uid| PeerUser { uid, gid: 8, groups: vec![9] };
        let (limited, other, root) = (user(4_300_001), user(4_300_002), user(0));
        let own = user(rustix::process::geteuid().as_raw());
        let connect = |number, user| {
            let client = ClientIdentity { user: Some(user), ..with_key(b"") };
            let candidate = server.shared.candidate(MemberId(number), client, &connection);
            candidate.map(|candidate| (candidate, client))
        };
        let add = |(candidate, client)| server.shared.add(&candidate, client);
        // A client that begins its handshake at the same time is refused after it.
        let [first, second, third] = [1, 2, 3].map(|number| connect(number, &limited).unwrap());
        assert!(add(first) && add(second) && !add(third));
        assert_eq!(connect(4, &limited).map(drop).unwrap_err(), Refusal::Full);
        for (number, user) in
            [(5, &other), (6, &other), (7, &root), (8, &root), (9, &root), (10, &own), (11, &own), (12, &own)]
        {
            assert!(add(connect(number, user).unwrap()), "{number}");
        }
        server.stop(Duration::from_secs(9));
    }
}
