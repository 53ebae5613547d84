//! The connections of a server, and the files by which clients find it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quell_batch::ServerFiles;
use quell_transport::peer::{self, ClientHandler, Protection, ServerSettings};
use quell_vfs::{Error, ErrorKind, Result};

/// The connections of a server.
pub struct Listener {
    connections: peer::Server,
    files: ServerFiles,
    protection: Protection,
    has_key: bool,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Listener {
    /// Starts the threads of the connections. `has_key` states whether the settings have a key, so
    /// that clients over TCP can be served.
    pub(crate) fn start(
        settings: ServerSettings,
        clients: Arc<dyn ClientHandler>,
        files: ServerFiles,
        has_key: bool,
    ) -> Result<Listener> {
        let protection = settings.protection;
        Ok(Listener { connections: peer::Server::start(settings, clients)?, files, protection, has_key })
    }

    /// Accepts clients of this user and of root at the Unix socket of the server, and, if the store
    /// is a store for a group, clients of the members of the group.
    ///
    /// # Errors
    /// The error of the system if the socket cannot be created.
    pub fn listen_unix(&self) -> Result<()> {
        self.connections.listen_unix_for(&self.files.socket(), self.files.clients())
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

    /// Publishes the address of this server, `HOST:PORT`, for clients on other nodes.
    ///
    /// # Errors
    /// The errors of files.
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

    /// Removes the files by which clients find the server.
    ///
    /// # Errors
    /// The errors of files.
    pub(crate) fn remove_files(&self) -> Result<()> {
        self.files.remove()
    }

    /// Ends the connections: see [`peer::Server::stop`].
    pub(crate) fn stop(&self, limit: Duration) {
        self.connections.stop(limit);
    }
}
