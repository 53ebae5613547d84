//! The connection to the present server of a store, and the thread that moves it to the next one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_threads::lock;
use quell_transport::peer::{Client, ClientSettings, Done, Endpoint};
use quell_vfs::{Error, ErrorKind, Result};

use crate::finder::Finder;

/// The time for which a client waits until a server accepts the connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The time without a reply after which a client looks for another server.
pub(super) const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);

/// The connection to the present server, and the requests to it.
pub(super) struct Link {
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
pub(super) struct Follower {
    is_ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

/// Fails at once if no process listens. The connection itself would wait for a process.
pub(super) fn check_listening(server: &Endpoint) -> Result<()> {
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

impl Link {
    /// Connects to a server.
    pub(super) fn start(settings: ClientSettings) -> Result<Link> {
        let client = RwLock::new(Arc::new(Client::start(settings)?));
        Ok(Link { client, counters: Arc::default() })
    }

    /// Returns the connection to the present server.
    pub(super) fn client(&self) -> Arc<Client> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Passes a request to the present server, and the result to `done`.
    pub(super) fn request(&self, request: Vec<u8>, reply_bytes_max: u32, deadline: Instant, done: Done) {
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

    /// Connects to the next server if the present server was replaced. Requests without a result
    /// fail with `Unavailable`, and are repeated.
    pub(super) fn move_to_next_server(&self, finder: &Finder) {
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
    pub(super) fn start(link: Arc<Link>, finder: Finder) -> Result<Follower> {
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
