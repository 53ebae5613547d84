//! A running server.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_batch::{BatchStore, ServedStore, ServerFiles};
use quell_threads::lock;
use quell_transport::peer::{
    self, MemberId, PoolKey, Protection, Role, ServerSettings, Service, Taken, Workers,
};
use quell_vfs::{Error, ErrorKind, Result};

/// The options of a server. `ServerOptions::default` has the defaults.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The largest number of clients at a time. The connections of others are refused.
    pub clients_max: usize,
    /// The protection of messages over TCP.
    pub protection: Protection,
    /// The number of threads that execute requests, at least 1. The verification of a batch uses
    /// one of them until it has ended.
    pub threads: usize,
    /// Whether clients over TCP are served as well.
    pub has_key: bool,
}

impl Default for ServerOptions {
    /// Returns options with 256 clients, whose frames have an authentication tag over TCP, and 16
    /// threads, for clients on this machine only.
    fn default() -> ServerOptions {
        ServerOptions { clients_max: 256, protection: Protection::Integrity, threads: 16, has_key: false }
    }
}

/// Executes requests on the threads.
struct Requests(Arc<ServedStore>);

impl Service for Requests {
    type Rights = ();

    fn rights(&self, _description: &[u8]) -> Option<()> {
        // A client has the key of the store, and all rights.
        Some(())
    }

    fn execute(&self, taken: Vec<Taken<()>>) {
        for Taken { request, reply, .. } in taken {
            reply.send(self.0.execute(&request.bytes, request.reply_bytes_max));
        }
    }

    fn ended(&self, _client: MemberId) {
        // The server keeps nothing for a client.
    }
}

/// A server, which serves clients until [`stop`](Server::stop).
pub struct Server {
    store: Arc<ServedStore>,
    files: ServerFiles,
    protection: Protection,
    has_key: bool,
    connections: peer::Server,
    workers: Mutex<Workers<Requests>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts the threads. Clients over TCP prove that they know the key of the store, which is
    /// created if there is none.
    ///
    /// # Errors
    /// `InvalidInput` for options out of bounds; those of the file of the key; the error of the
    /// system if no thread can be created.
    pub fn start(store: BatchStore, options: &ServerOptions) -> Result<Server> {
        let files = store.server_files()?;
        // Without TCP no client needs to prove a key.
        let key = if options.has_key { files.key()? } else { PoolKey([0; 32]) };
        let store = Arc::new(ServedStore::new(store));
        let workers = Workers::start(Requests(store.clone()), options.threads, "batch requests");
        let mut workers = workers.map_err(|cause| Error::from_io(cause, "start threads for", "requests"))?;
        let settings = ServerSettings {
            protection: options.protection,
            clients_max: options.clients_max,
            ..ServerSettings::new(Role::Batch, key)
        };
        match peer::Server::start(settings, workers.handler()) {
            Ok(connections) => {
                let ServerOptions { protection, has_key, .. } = *options;
                let workers = Mutex::new(workers);
                Ok(Server { store, files, protection, has_key, connections, workers })
            }
            Err(error) => {
                workers.end();
                Err(error)
            }
        }
    }

    /// Accepts clients of this user and of root at the Unix socket of the store.
    ///
    /// # Errors
    /// The error of the system if the socket cannot be created.
    pub fn listen_unix(&self) -> Result<()> {
        self.connections.listen_unix(&self.files.socket())
    }

    /// Accepts clients with the key at a TCP address. Port 0 lets the kernel choose one. Returns
    /// the address.
    ///
    /// # Errors
    /// `InvalidInput` if the server was started without the key; the error of the system if the
    /// address cannot be used.
    pub fn listen_tcp(&self, address: SocketAddr) -> Result<SocketAddr> {
        if !self.has_key {
            return Err(Error::new(ErrorKind::InvalidInput, "listen without a key on", address.to_string()));
        }
        self.connections.listen_tcp(address)
    }

    /// Lets clients on other nodes find this server at an address, which is `HOST:PORT`.
    ///
    /// # Errors
    /// Those of files.
    pub fn publish(&self, address: &str) -> Result<()> {
        self.files.publish(address, self.protection)
    }

    /// Returns the number of clients.
    pub fn clients(&self) -> usize {
        self.connections.clients()
    }

    /// Returns the number of connections that were refused.
    pub fn refused_connections(&self) -> u64 {
        self.connections.refused_connections()
    }

    /// Returns the store.
    pub fn store(&self) -> &ServedStore {
        &self.store
    }

    /// Refuses new connections and requests, answers the requests that were begun, for at most
    /// `limit`, ends the threads, and waits until all changes survive a power failure. A second
    /// call does nothing.
    ///
    /// # Errors
    /// Those of the store.
    pub fn stop(&self, limit: Duration) -> Result<()> {
        // Clients that look for a server meanwhile wait for the next one.
        let removed = self.files.remove();
        self.connections.stop(limit);
        lock(&self.workers).end();
        self.store.store().primary().name_space().sync()?;
        removed
    }
}
