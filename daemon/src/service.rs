//! The thread of the service: takes requests of local clients and of other members, lets the member
//! perform them, and returns the replies.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use futures_executor::{LocalPool, LocalSpawner};
use futures_util::FutureExt;
use futures_util::task::LocalSpawnExt;
use quell_kv::KeyValue;
use quell_pool_service::{Chunks, ClientCounts, ClientId, Clients, Environment, Member, PoolMap};
use quell_transport::local::{self, LocalServer, PAYLOAD_BYTES_MAX, ServerOptions, Ticket, Waker};
use quell_transport::peer::{Handler, PeerNetwork, PoolId, PoolKey, Protection, Reply, Request, Settings};
use quell_vfs::{Error, ErrorKind, errno};
use quell_wire::Failure;
use quell_wire::pool::{self, MemberId, MemberSettings, PoolSettings};

use crate::clock::{SystemClock, machine};
use crate::failure::Failure as StartFailure;
use crate::peers::{Network, number};
use crate::storage::Storage;

/// The longest sleep of the thread, after which it looks whether it is to end.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// How often clients that have ended are looked for, and times of directories are sent to their
/// members.
const INTERVAL: Duration = Duration::from_millis(20);

/// How often the member performs the work that no request causes: completes transactions, ends long
/// waits, and renews references.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// How long the end of the daemon waits for requests of other members that were begun.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// Replies that wait to be copied to their clients.
type Outbox = Rc<RefCell<Vec<(Ticket, Vec<u8>)>>>;

/// Replies to other members that are sent after the files of this member were removed.
type Kept = Rc<RefCell<Vec<(Reply, Vec<u8>)>>>;

/// Passes requests of other members to the thread of the service.
struct Inbox {
    requests: mpsc::Sender<(Request, Reply)>,
    waker: Waker,
}

impl Handler for Inbox {
    fn handle(&self, request: Request, reply: Reply) {
        // After the end of the service, the reply is dropped, and the sender gets an error.
        let _ = self.requests.send((request, reply));
        self.waker.wake();
    }
}

/// The clients of this daemon. The version of the directories and their counters are in the memory
/// that they share with it.
struct LocalClients {
    waker: Waker,
    server: Rc<RefCell<LocalServer>>,
}

impl Clients for LocalClients {
    fn forget_dirs(&self) {
        self.waker.increase_version();
    }

    fn counts(&self) -> ClientCounts {
        // Members run while the service does not use the server.
        let mut server = self.server.borrow_mut();
        ClientCounts { connections: server.clients() as u64, direct: server.counters().into() }
    }
}

/// A member that listens for clients and other members, and does not know the others yet.
pub struct Listening {
    store: Arc<dyn KeyValue>,
    chunks: Arc<dyn Chunks>,
    server: LocalServer,
    network: PeerNetwork,
    requests: mpsc::Receiver<(Request, Reply)>,
}

impl Listening {
    /// Begins to listen for other members on the address, and for clients at the socket. The
    /// directory of the socket is new, or contains sockets of other daemons of the same pool.
    pub fn start(
        settings: &MemberSettings,
        listen: SocketAddr,
        socket: &Path,
        storage: Storage,
    ) -> Result<Listening, StartFailure> {
        // A daemon that was killed has left its socket. The store is locked by this one.
        let _ = std::fs::remove_file(socket);
        let Storage { store, chunks, chunk_dir } = storage;
        let options = ServerOptions { descriptors: vec![chunk_dir], ..ServerOptions::default() };
        let server = LocalServer::bind(socket, options)?;
        let (sender, requests) = mpsc::channel();
        let inbox = Arc::new(Inbox { requests: sender, waker: server.waker() });
        let (pool, key) = (PoolId(settings.pool.to_le_bytes()), PoolKey(settings.key));
        let network = Settings::new(pool, key, number(settings.member), listen);
        let protection = if settings.encrypts { Protection::Encryption } else { Protection::Integrity };
        let network = PeerNetwork::start(Settings { protection, ..network }, inbox)?;
        Ok(Listening { store, chunks, server, network, requests })
    }

    /// Returns the address at which other members reach this one.
    pub fn address(&self) -> SocketAddr {
        self.network.address()
    }
}

/// A running service.
pub struct Service {
    member: Rc<Member>,
    server: Rc<RefCell<LocalServer>>,
    network: Rc<PeerNetwork>,
    requests: mpsc::Receiver<(Request, Reply)>,
    executor: LocalPool,
    spawner: LocalSpawner,
    outbox: Outbox,
    clients: HashMap<local::ClientId, ClientId>,
    next_client: u64,
    kept: Kept,
}

impl Service {
    /// Starts the member. Requests are served by `run`.
    pub fn start(
        id: MemberId,
        pool: &PoolSettings,
        map: PoolMap,
        listening: Listening,
    ) -> Result<Service, StartFailure> {
        let Listening { store, chunks, server, network, requests } = listening;
        let network = Rc::new(network);
        let waker = server.waker();
        let server = Rc::new(RefCell::new(server));
        let environment = Environment {
            store,
            chunks,
            peers: Rc::new(Network::new(Rc::clone(&network), pool, waker.clone())?),
            clients: Rc::new(LocalClients { waker, server: Rc::clone(&server) }),
            machine: machine()?,
            clock: Rc::new(SystemClock::new()),
        };
        let member = Member::start(id, map, environment, (pool.uid, pool.gid))?;
        let executor = LocalPool::new();
        let spawner = executor.spawner();
        Ok(Service {
            member,
            server,
            network,
            requests,
            executor,
            spawner,
            outbox: Outbox::default(),
            clients: HashMap::new(),
            next_client: 0,
            kept: Kept::default(),
        })
    }

    /// Serves requests until `is_stopped` returns true, which is called at least four times each
    /// second, or until a client ends the member. Then `remove` removes the files of the member,
    /// and after that the clients and members that have requested the end get their replies.
    pub fn run(
        mut self,
        is_stopped: &dyn Fn() -> bool,
        remove: impl FnOnce() -> Result<(), StartFailure>,
    ) -> Result<(), StartFailure> {
        let (mut repeated, mut maintained) = (Instant::now(), Instant::now());
        while !is_stopped() && !self.member.is_stopping() {
            self.take_requests();
            self.take_peer_requests();
            if repeated.elapsed() >= INTERVAL {
                repeated = Instant::now();
                self.end_clients();
                if self.member.has_unsent_times() {
                    self.send_times();
                }
                if maintained.elapsed() >= MAINTENANCE_INTERVAL {
                    maintained = Instant::now();
                    self.maintain();
                }
            }
            self.executor.run_until_stalled();
            if self.member.is_stopping() {
                break;
            }
            if !self.send_replies() {
                let has_changes = self.member.has_unsent_times();
                self.server.borrow_mut().wait(Some(if has_changes { INTERVAL } else { SLEEP_MAX }))?;
            }
        }
        self.end(remove)
    }

    fn end(self, remove: impl FnOnce() -> Result<(), StartFailure>) -> Result<(), StartFailure> {
        let Service { member, server, network, executor, outbox, kept, .. } = self;
        // Requests that have not ended have references to the member, which has the store open.
        drop(executor);
        drop(member);
        let removed = remove();
        let failure = removed.as_ref().err().map(|failure| {
            let error = Error::new(ErrorKind::Os(errno::EIO), "remove the files of a daemon", "");
            let error = Error { source: Some(failure.to_string().into()), ..error };
            quell_wire::encode(&Err::<pool::Reply<'_>, Failure>(Failure::from(error)))
        });
        for (reply, bytes) in kept.take() {
            reply.send(failure.clone().unwrap_or(bytes));
        }
        for (ticket, bytes) in outbox.take() {
            server.borrow_mut().reply_bytes(ticket, failure.as_ref().unwrap_or(&bytes));
        }
        network.stop(STOP_LIMIT);
        removed
    }

    fn take_requests(&mut self) {
        let Service { member, server, spawner, outbox, clients, next_client, .. } = self;
        // The operations begin when the executor runs.
        server.borrow_mut().drain(&mut |ticket, request| {
            let client = *clients.entry(ticket.client()).or_insert_with(|| {
                *next_client += 1;
                ClientId(*next_client)
            });
            let outbox = Rc::clone(outbox);
            let performed = Rc::clone(member).perform(client, request.to_vec());
            let answered = performed.map(move |reply| outbox.borrow_mut().push((ticket, reply)));
            spawner.spawn_local(answered).expect("the executor runs until the end of the thread");
        });
    }

    fn take_peer_requests(&mut self) {
        for (request, reply) in self.requests.try_iter() {
            // The numbers of members are those that this daemon has passed to the connections.
            let Ok(from) = u16::try_from(request.from.0) else { continue };
            let served = Rc::clone(&self.member).serve(MemberId(from), request.bytes);
            let (member, kept) = (Rc::clone(&self.member), Rc::clone(&self.kept));
            let answered = served.map(move |bytes| match member.is_stopping() {
                true => kept.borrow_mut().push((reply, bytes)),
                false => reply.send(bytes),
            });
            self.spawner.spawn_local(answered).expect("the executor runs until the end of the thread");
        }
    }

    /// Releases the references of clients that have ended.
    fn end_clients(&mut self) {
        let server = self.server.borrow();
        let ended: Vec<ClientId> = self
            .clients
            .extract_if(|connection, _| !server.is_connected(*connection))
            .map(|(_, id)| id)
            .collect();
        drop(server);
        for client in ended {
            self.spawn(Rc::clone(&self.member).end_client(client));
        }
    }

    fn send_times(&self) {
        let member = Rc::clone(&self.member);
        self.spawn(async move {
            if let Err(error) = member.send_times().await {
                tracing::warn!(%error, "the time of a directory is not up to date");
            }
        });
    }

    /// Lets the member perform the work that no request causes.
    fn maintain(&self) {
        self.member.end_waits();
        let member = Rc::clone(&self.member);
        self.spawn(async move {
            if let Err(error) = member.maintain().await {
                // The next call repeats the work. It fails as long as a member cannot be reached.
                tracing::debug!(%error, "work that concerns other members is not complete");
            }
        });
    }

    /// Copies finished replies to their clients. Returns whether there were any.
    fn send_replies(&mut self) -> bool {
        let replies = std::mem::take(&mut *self.outbox.borrow_mut());
        let is_any = !replies.is_empty();
        let mut server = self.server.borrow_mut();
        for (ticket, mut reply) in replies {
            if reply.len() > PAYLOAD_BYTES_MAX {
                reply = too_long();
            }
            server.reply_bytes(ticket, &reply);
        }
        is_any
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawner.spawn_local(task).expect("the executor runs until the end of the thread");
    }
}

/// Returns the result of an operation whose reply does not fit in a message.
fn too_long() -> Vec<u8> {
    let error = Error::new(ErrorKind::Os(errno::E2BIG), "reply", "");
    quell_wire::encode(&Err::<pool::Reply<'_>, Failure>(Failure::from(error)))
}
