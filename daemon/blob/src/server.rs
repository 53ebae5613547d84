//! A running server.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_blob_service::{Group, OpenStore, SessionLimits, Sessions};
use quell_threads::lock;
use quell_transport::peer::{self, PoolKey, Protection, Role, ServerSettings, Workers};
use quell_vfs::{Error, Result};

use crate::committer::Committer;
use crate::permit::ReplyPermit;
use crate::workers::Requests;

/// The options of a server. `ServerOptions::default` has the defaults.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The largest number of clients at a time. Further connections are refused.
    pub clients_max: usize,
    /// The protection of messages over TCP.
    pub protection: Protection,
    /// The number of threads that execute requests, at least 1.
    pub threads: usize,
    /// The limits of snapshots, uploads and long replies.
    pub limits: SessionLimits,
    /// The permit that each reply needs. If it is `None`, replies need no permit.
    pub permit: Option<ReplyPermit>,
    /// The group of this server, if the store has several groups of servers.
    pub group: Option<Group>,
}

impl Default for ServerOptions {
    /// Returns options with 256 clients, whose frames have an authentication tag over TCP, and 16
    /// threads.
    fn default() -> ServerOptions {
        ServerOptions {
            clients_max: 256,
            protection: Protection::Integrity,
            threads: 16,
            limits: SessionLimits::default(),
            permit: None,
            group: None,
        }
    }
}

/// A server, which serves clients until [`stop`](Server::stop).
pub struct Server {
    store: OpenStore,
    sessions: Arc<Sessions>,
    connections: peer::Server,
    threads: Mutex<(Workers<Requests>, Committer)>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts the threads. Clients over TCP prove that they know the key, or a key that was derived
    /// from it. A client has the permissions of its key.
    ///
    /// # Errors
    /// `InvalidInput` for options out of bounds; the error of the system if no thread can be
    /// created.
    pub fn start(store: OpenStore, key: PoolKey, options: ServerOptions) -> Result<Server> {
        let failed = |cause| Error::from_io(cause, "start threads for", "requests");
        let sessions = Sessions::new(store.clone(), options.limits);
        let sessions = Arc::new(match options.group {
            Some(group) => sessions.in_group(group),
            None => sessions,
        });
        let mut committer = Committer::start(store.clone()).map_err(failed)?;
        let requests =
            Requests { sessions: sessions.clone(), committer: committer.waker(), permit: options.permit };
        let mut workers = match Workers::start(requests, options.threads, "blob requests") {
            Ok(workers) => workers,
            Err(error) => {
                committer.end();
                return Err(failed(error));
            }
        };
        let settings = ServerSettings {
            protection: options.protection,
            clients_max: options.clients_max,
            ..ServerSettings::new(Role::Blob, key)
        };
        match peer::Server::start(settings, workers.handler()) {
            Ok(connections) => {
                Ok(Server { store, sessions, connections, threads: Mutex::new((workers, committer)) })
            }
            Err(error) => {
                workers.end();
                committer.end();
                Err(error)
            }
        }
    }

    /// Accepts clients of this user and of root at a Unix socket. The socket is created, and
    /// replaces an existing one of this name: the caller has the store open, so no other server
    /// uses it.
    ///
    /// # Errors
    /// The error of the system if the socket cannot be created.
    pub fn listen_unix(&self, path: &Path) -> Result<()> {
        self.connections.listen_unix(path)
    }

    /// Accepts clients with the key at a TCP address. Port 0 lets the kernel choose one. Returns
    /// the address.
    ///
    /// # Errors
    /// The error of the system if the address cannot be used.
    pub fn listen_tcp(&self, address: SocketAddr) -> Result<SocketAddr> {
        self.connections.listen_tcp(address)
    }

    /// Returns the failure of a write after which all commits fail, if there was one. The caller
    /// must then end the server, and open the store again.
    pub fn failure(&self) -> Option<Error> {
        self.store.failure()
    }

    /// Returns the number of clients.
    pub fn clients(&self) -> usize {
        self.connections.clients()
    }

    /// Returns the number of connections that were refused.
    pub fn refused_connections(&self) -> u64 {
        self.connections.refused_connections()
    }

    /// Returns the number of snapshots of all clients.
    pub fn snapshots(&self) -> usize {
        self.sessions.snapshots()
    }

    /// Refuses new connections and requests, answers the requests that were begun, for at most
    /// `limit`, ends the threads, and waits until all commits survive a power failure. A second
    /// call does nothing.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn stop(&self, limit: Duration) -> Result<()> {
        self.connections.stop(limit);
        let mut threads = lock(&self.threads);
        threads.0.end();
        threads.1.end();
        self.store.sync()
    }
}
