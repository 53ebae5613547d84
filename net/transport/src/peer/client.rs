//! A client: the connection of a process to a server, with many requests in flight, each executed
//! at most once as long as the server remembers the client.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quell_vfs::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

use super::handler::{Handler, Reply, Request};
use super::network::{connect, drain, end_calls, random_number};
use super::peer_state::{CollectedPeers, Peer, PeerCounters, without_collection};
use super::server::settings;
use super::settings::{MemberId, PoolKey, Protection, Role, SERVER, Settings};
use super::stream::Endpoint;
use super::transport::{CollectedSends, Done};

/// The longest pause between two attempts to connect: programs wait for a server that is restarted.
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// The settings of a client. `ClientSettings::new` has the defaults.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// The service.
    pub role: Role,
    /// The server.
    pub server: Endpoint,
    /// The key of the server, or a key that was derived from it, neither of which is used over a
    /// Unix socket; or a named key, which is.
    pub key: PoolKey,
    /// The description of a derived key: see [`PoolKey::derived`]. Empty for the key of the server.
    pub description: Vec<u8>,
    /// Whether the description is the name of a [key](super::NamedKey) of the server, which is
    /// proved over a Unix socket as well.
    pub has_named_key: bool,
    /// The user whose server is accepted at a Unix socket, besides this user and root.
    pub server_user: Option<u32>,
    /// The protection of frames over TCP, which must be the same as the server's.
    pub protection: Protection,
    /// Calls that may wait for the connection or for credit. More are refused.
    pub calls_queued_max: usize,
    /// Bytes of requests that may wait in the same way.
    pub bytes_queued_max: usize,
    /// Time without a connection after which calls fail at once.
    pub unreachable_after: Duration,
}

impl ClientSettings {
    /// Returns settings with the default bounds: 8,192 calls and 64 MiB waiting, and 5 s.
    pub fn new(role: Role, server: Endpoint, key: PoolKey) -> ClientSettings {
        ClientSettings {
            role,
            server,
            key,
            description: Vec::new(),
            has_named_key: false,
            server_user: None,
            protection: Protection::Integrity,
            calls_queued_max: 8192,
            bytes_queued_max: 64 << 20,
            unreachable_after: Duration::from_secs(5),
        }
    }
}

/// The connection to a server. It is established again after it was lost. A thread of its own
/// serves it.
///
/// After fork(2), the child must not use it.
pub struct Client {
    server: Arc<Peer>,
    /// `None` after `stop`.
    runtime: Mutex<Option<Runtime>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.server.address()).finish_non_exhaustive()
    }
}

/// Servers send no requests.
struct NoRequests;

impl Handler for NoRequests {
    fn handle(&self, _request: Request, _reply: Reply) {}
}

impl Client {
    /// Starts to connect. Calls wait for the connection.
    ///
    /// # Errors
    /// `InvalidInput` for settings out of bounds; the error of the system if it provides no thread
    /// or no random number.
    pub fn start(settings: ClientSettings) -> Result<Client> {
        let is_unix = matches!(settings.server, Endpoint::Unix(_));
        let own = MemberId(random_number()? % SERVER.0);
        let ClientSettings { role, server, key, description, server_user, protection, .. } = settings;
        let unused = SocketAddr::from(([0, 0, 0, 0], 0));
        let of_server = self::settings(role, &key, protection, own, is_unix, unused);
        let connection = Settings {
            key: if settings.has_named_key { key } else { of_server.key.clone() },
            description,
            server_user,
            calls_queued_max: settings.calls_queued_max,
            bytes_queued_max: settings.bytes_queued_max,
            unreachable_after: settings.unreachable_after,
            backoff_max: BACKOFF_MAX,
            ..of_server
        };
        if !is_unix {
            connection.check()?;
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("quell-client")
            .enable_all()
            .build()
            .map_err(|cause| Error::from_io(cause, "start a thread for", server.to_string()))?;
        let handler = Arc::new(NoRequests);
        let peer = Peer::new(&connection, SERVER, random_number()?, server, handler, None);
        runtime.spawn(end_calls(peer.clone()));
        runtime.spawn(connect(connection, peer.clone()));
        Ok(Client { server: peer, runtime: Mutex::new(Some(runtime)) })
    }

    /// Sends a request, and passes the result to `done` exactly once: see
    /// [`Transport::call`](super::Transport::call).
    pub fn call(&self, request: Vec<u8>, reply_bytes_max: u32, deadline: Instant, done: Done) {
        self.server.call(Arc::new(request), reply_bytes_max, deadline, done);
    }

    /// Sends a request as [`call`](Self::call) does, for a thread that waits for the result. It is
    /// not collected: a thread that collects its sends could not send it while it waits.
    pub fn call_at_once(&self, request: Vec<u8>, reply_bytes_max: u32, deadline: Instant, done: Done) {
        without_collection(|| self.call(request, reply_bytes_max, deadline, done));
    }

    /// Collects the requests of the calling thread: see
    /// [`Transport::collect`](super::Transport::collect).
    pub fn collect() -> Box<dyn CollectedSends> {
        Box::new(CollectedPeers::begin())
    }

    /// Returns the counters of the connection.
    pub fn counters(&self) -> PeerCounters {
        self.server.counters()
    }

    /// Sends a `Goodbye` frame to the server, which forgets this client, and closes the connection.
    /// Calls without a reply fail with `Unavailable`. Takes at most `limit`. A second call does
    /// nothing. The receiver of a result cannot wait, so a call from it sends no `Goodbye`.
    pub fn stop(&self, limit: Duration) {
        let Some(runtime) = self.runtime().take() else { return };
        self.server.begin_stop();
        if Handle::try_current().is_err() {
            drain(&runtime, std::slice::from_ref(&self.server), limit);
        }
        self.server.remove();
        runtime.shutdown_background();
    }

    fn runtime(&self) -> MutexGuard<'_, Option<Runtime>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    /// Ends the thread and all calls. The server forgets this client later than after `stop`.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime().take() {
            self.server.remove();
            runtime.shutdown_background();
        }
    }
}
