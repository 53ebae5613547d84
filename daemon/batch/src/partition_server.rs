//! A running partition server.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_batch::{Requester, ServedPartitions};
use quell_threads::lock;
use quell_transport::peer::{
    ClientIdentity, MemberId, PoolKey, Role, ServerSettings, Service, Taken, Workers,
};
use quell_vfs::{Error, Result};

use crate::listener::Listener;
use crate::server::ServerOptions;

/// Executes the requests of the owner of the store. Its directories are not divided if other users
/// can use it.
struct Requests(Arc<ServedPartitions>);

impl Service for Requests {
    type Rights = ();

    fn rights(&self, client: ClientIdentity<'_>) -> Option<()> {
        let is_owner = client
            .user
            .as_ref()
            .is_none_or(|user| Requester::of_user(user.uid, user.gid, &user.groups) == Requester::Owner);
        (client.description.is_empty() && is_owner).then_some(())
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

/// A partition server, which serves clients until [`stop`](PartitionServer::stop).
pub struct PartitionServer {
    partitions: Arc<ServedPartitions>,
    listener: Listener,
    workers: Mutex<Workers<Requests>>,
}

impl fmt::Debug for PartitionServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionServer").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}

impl PartitionServer {
    /// Starts the threads. Clients over TCP prove that they know the key in the directory of the
    /// server, which is created if it does not exist.
    ///
    /// # Errors
    /// `InvalidInput` for options out of bounds; the errors of the file with the key; the error of
    /// the system if no thread can be created.
    pub fn start(partitions: ServedPartitions, options: &ServerOptions) -> Result<PartitionServer> {
        let files = partitions.server_files()?;
        // Without TCP no client needs to prove a key.
        let key = if options.has_key { files.key()? } else { PoolKey([0; 32]) };
        let partitions = Arc::new(partitions);
        let mut workers = Workers::start(Requests(partitions.clone()), options.threads, "partitions")
            .map_err(|cause| Error::from_io(cause, "start threads for", "requests"))?;
        let settings = ServerSettings {
            protection: options.protection,
            clients_max: options.clients_max,
            ..ServerSettings::new(Role::Batch, key)
        };
        match Listener::start(settings, workers.handler(), files, options.has_key) {
            Ok(listener) => Ok(PartitionServer { partitions, listener, workers: Mutex::new(workers) }),
            Err(error) => {
                workers.end();
                Err(error)
            }
        }
    }

    /// Returns the connections.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Returns the partitions.
    pub fn partitions(&self) -> &ServedPartitions {
        &self.partitions
    }

    /// Refuses new connections and requests, answers the requests that were begun, for at most
    /// `limit`, ends the threads, and waits until all changes survive a power failure. The primary
    /// server takes the partitions back when their names are used the next time. A second call does
    /// nothing.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn stop(&self, limit: Duration) -> Result<()> {
        let removed = self.listener.remove_files();
        let mut workers = lock(&self.workers);
        self.listener.stop(limit);
        workers.end();
        self.partitions.sync()?;
        removed
    }
}
