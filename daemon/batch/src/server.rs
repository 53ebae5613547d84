//! A running server.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_batch::{BatchStore, Requester, ServedStore, VERIFICATION_LIMIT};
use quell_threads::lock;
use quell_transport::peer::{
    ClientIdentity, MemberId, PeerUser, PoolKey, Protection, Role, ServerSettings, Service, Taken, Workers,
};
use quell_vfs::{Error, Result};

use crate::clients::Clients;
use crate::commit_threads::{CommitQueue, CommitThreads};
use crate::listener::Listener;
use crate::user_clients::{FindGroups, UserClients};

/// The options of a server. `ServerOptions::default` has the defaults.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The largest number of clients at a time. Further connections are refused. Each user other
    /// than the owner of the store and root can have at most a quarter of this number.
    pub clients_max: usize,
    /// The protection of messages over TCP.
    pub protection: Protection,
    /// The number of threads that execute requests, at least 1.
    pub threads: usize,
    /// The number of batches that are verified and committed at the same time, at least 1. Each
    /// occupies its own thread. Further commits wait.
    pub commits_max: usize,
    /// The time for which a commit waits until an auxiliary server is idle, and then for its
    /// verdict. After this time, this process verifies the batch itself.
    pub verification_limit: Duration,
    /// Whether clients over TCP are served as well.
    pub has_key: bool,
    /// The databases with the groups of users, for clients over TCP with keys of users.
    pub find_groups: FindGroups,
}

impl Default for ServerOptions {
    /// Returns options with 256 clients, whose frames have an authentication tag over TCP, 16
    /// threads, 4 commits at a time and 10 minutes for a verification, for clients on this machine
    /// only, and without known users.
    fn default() -> ServerOptions {
        ServerOptions {
            clients_max: 256,
            protection: Protection::Integrity,
            threads: 16,
            commits_max: 4,
            verification_limit: VERIFICATION_LIMIT,
            has_key: false,
            find_groups: |_| Ok(None),
        }
    }
}

/// Executes requests on the worker threads, and passes commits to the threads for commits.
struct Requests {
    store: Arc<ServedStore>,
    commits: Arc<CommitQueue>,
}

impl Service for Requests {
    type Rights = Requester;

    fn rights(&self, client: ClientIdentity<'_>) -> Option<Requester> {
        if !client.description.is_empty() {
            return None;
        }
        Some(match client.user {
            Some(PeerUser { uid, gid, groups }) => Requester::of_user(*uid, *gid, groups),
            // The client belongs to the owner, or knows the key of the store. For a client with the
            // key of a user, `UserClients` has set `client.user`.
            None => Requester::Owner,
        })
    }

    fn execute(&self, taken: Vec<Taken<Requester>>) {
        for taken in taken {
            if ServedStore::locks_batch(&taken.request.bytes) {
                if let Err(refused) = self.commits.add(taken) {
                    refused.send(&self.store);
                }
                continue;
            }
            let Taken { request, rights, reply } = taken;
            reply.send(self.store.execute(&rights, &request.bytes, request.reply_bytes_max));
            if self.store.needs_merge() {
                self.commits.merge_tables();
            }
        }
    }

    fn ended(&self, _client: MemberId) {
        // The server keeps nothing for a client.
    }
}

/// A server, which serves clients until [`stop`](Server::stop).
pub struct Server {
    store: Arc<ServedStore>,
    listener: Listener,
    threads: Mutex<Threads>,
}

/// The threads of a server, in the order in which they end: each kind passes requests to the next.
struct Threads {
    users: Option<UserClients>,
    workers: Workers<Requests>,
    commits: CommitThreads,
}

impl Threads {
    /// Starts the threads. `group` is the group of the store if its members can connect over TCP.
    fn start(
        store: &Arc<ServedStore>,
        options: &ServerOptions,
        group: Option<u32>,
    ) -> std::io::Result<Threads> {
        let mut commits = CommitThreads::start(store, options.commits_max)?;
        let requests = Requests { store: store.clone(), commits: commits.queue() };
        let workers = match Workers::start(requests, options.threads, "batch requests") {
            Ok(workers) => workers,
            Err(error) => {
                commits.end();
                return Err(error);
            }
        };
        let mut threads = Threads { users: None, workers, commits };
        let Some(group) = group else { return Ok(threads) };
        match UserClients::start(store.clone(), threads.workers.handler(), group, options.find_groups) {
            Ok(users) => threads.users = Some(users),
            Err(error) => {
                threads.end();
                return Err(error);
            }
        }
        Ok(threads)
    }

    /// Ends the threads after they have executed the requests that they have. A second call does
    /// nothing.
    fn end(&mut self) {
        if let Some(users) = &mut self.users {
            users.end();
        }
        self.workers.end();
        self.commits.end();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts the threads. Clients over TCP prove that they know the key of the store, or, if it is
    /// a store for a group, a key of a user. The key of the store is created if it does not exist.
    ///
    /// # Errors
    /// `InvalidInput` for options out of bounds; the errors of the file with the key; the error of
    /// the system if no thread can be created.
    pub fn start(store: BatchStore, options: &ServerOptions) -> Result<Server> {
        let files = store.server_files()?;
        // Without TCP no client needs to prove a key.
        let key = if options.has_key { files.key()? } else { PoolKey([0; 32]) };
        let named_keys = vec![files.commit_key()?];
        store.auxiliaries().set_limit(options.verification_limit);
        let store = Arc::new(ServedStore::new(store));
        let failed = |cause| Error::from_io(cause, "start threads for", "requests");
        let group = if options.has_key { files.group()? } else { None };
        let mut threads = Threads::start(&store, options, group).map_err(failed)?;
        let settings = ServerSettings {
            protection: options.protection,
            clients_max: options.clients_max,
            // One user must not use up the connections of all others.
            clients_of_user_max: (options.clients_max / 4).max(1),
            named_keys,
            ..ServerSettings::new(Role::Batch, key)
        };
        let clients = Clients {
            store: store.clone(),
            workers: threads.workers.handler(),
            users: threads.users.as_ref().map(UserClients::handlers),
        };
        match Listener::start(settings, Arc::new(clients), files, options.has_key) {
            Ok(listener) => Ok(Server { store, listener, threads: Mutex::new(threads) }),
            Err(error) => {
                threads.end();
                Err(error)
            }
        }
    }

    /// Returns the connections.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Returns the store.
    pub fn store(&self) -> &ServedStore {
        &self.store
    }

    /// Refuses new connections and requests, and the commits that wait for a thread, answers the
    /// requests that were begun, for at most `limit`, ends the threads, takes the partitions of all
    /// directories back, and waits until all changes survive a power failure. A second call does
    /// nothing.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn stop(&self, limit: Duration) -> Result<()> {
        // Clients that look for a server meanwhile wait for the next server.
        let removed = self.listener.remove_files();
        let mut threads = lock(&self.threads);
        // The waiting commits, and the requests of users whose groups are not known, are refused
        // before the connections end, so that the clients get these replies.
        threads.commits.refuse_waiting();
        threads.users.iter().for_each(UserClients::refuse_waiting);
        // This process completes the commits whose verifications are abandoned.
        self.store.store().auxiliaries().close();
        self.listener.stop(limit);
        threads.end();
        // If this fails, the process that opens the store next takes the partitions back.
        let taken_back = self.store.store().primary().take_back_all();
        self.store.store().primary().name_space().sync()?;
        taken_back.and(removed)
    }
}
