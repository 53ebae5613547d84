//! The thread of a member: takes requests of local clients and of other members, lets the member
//! perform them, and returns the replies.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_executor::{LocalPool, LocalSpawner};
use futures_util::task::LocalSpawnExt;
use quell_pool_service::{
    BackupEvent, ClientCounts, ClientId, Clients, Environment, Member, PoolMap, Replication,
};
use quell_runtime::Socket;
use quell_transport::local::{self, LocalServer, PAYLOAD_BYTES_MAX, Reactor, ServerOptions, Ticket, Waker};
use quell_transport::peer::Transport;
use quell_vfs::{Error, ErrorKind, errno};
use quell_wire::pool::{DaemonId, LEASE_MS, MemberId};

use crate::clock::{SystemClock, machine};
use crate::event::Event;
use crate::failure::Failure;
use crate::peers::{Network, Retries};
use crate::placement::Placement;
use crate::request::{PeerRequest, Replier, failure};
use crate::router::{Inbox, Router};
use crate::storage::Storage;

/// The longest sleep of the thread, after which it looks whether it is to end.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// How often the thread looks for clients that have ended, and sends the times of directories to
/// their members.
const INTERVAL: Duration = Duration::from_millis(20);

/// How often the member performs the work that no request causes: completes transactions, ends long
/// waits, and renews references.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a member that is released performs its requests. Longer ones are ended, and their
/// results are not known.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// Replies that wait to be copied to their clients.
type Outbox = Rc<RefCell<Vec<(Ticket, Vec<u8>)>>>;

/// Replies to other members that are sent after the files of this daemon were removed.
type Kept = Rc<RefCell<Vec<(Replier, Vec<u8>)>>>;

/// The clients of this daemon. The version of the directories and the counters of the clients are
/// in the memory that the clients share with the daemon.
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

/// A message of the daemon to the thread of a member.
pub enum Command {
    /// The daemons that are to have backups of the member, by the configuration of this number.
    Backups(Vec<DaemonId>, u64),
    /// The members run on other daemons than before.
    PlacementChanged,
    /// A lease was granted to a request of this time.
    Lease(Instant),
    /// The member ends after the requests that it has received, because another daemon is to run
    /// it.
    Release,
    /// Clients are refused, unless one is connected. The answer is an event.
    RefuseClients,
    /// Clients are not refused any more.
    AcceptClients,
}

/// The settings of a member that this daemon runs.
pub struct MemberStart {
    pub id: MemberId,
    pub map: PoolMap,
    /// The owner and the group of the root directory.
    pub owner: (u32, u32),
    /// Whether the member has backups. Then replies wait for a lease, and clients do not get the
    /// directory of the chunks, because backups would miss their writes.
    pub has_replicas: bool,
    /// Whether clients connect to this member. Another member can be moved to another daemon at any
    /// time, so clients do not get the directory of its chunks.
    pub serves_clients: bool,
    pub storage: Storage,
    /// The path of the socket for clients. Its directory is new, or contains sockets of other
    /// members of the same pool.
    pub socket: PathBuf,
}

/// The objects that the members of a daemon share.
#[derive(Clone)]
pub struct Shared {
    pub daemon: DaemonId,
    pub router: Arc<Router>,
    pub network: Arc<dyn Transport>,
    pub placement: Arc<Placement>,
    pub events: mpsc::Sender<Event>,
}

/// The running thread of a member.
pub struct RunningMember {
    commands: mpsc::Sender<Command>,
    waker: Waker,
    is_ending: Arc<AtomicBool>,
    has_failed: Arc<AtomicBool>,
    socket: Socket,
    storage: Storage,
    thread: JoinHandle<Result<EndedMember, Failure>>,
}

impl RunningMember {
    /// Starts a member and its thread, and waits until it serves.
    pub fn start(start: MemberStart, shared: Shared) -> Result<RunningMember, Failure> {
        let (commands, receiver) = mpsc::channel();
        let (started, is_started) = mpsc::channel();
        let is_ending = Arc::new(AtomicBool::new(false));
        let has_failed = Arc::new(AtomicBool::new(false));
        let (flag, failed) = (Arc::clone(&is_ending), Arc::clone(&has_failed));
        let (socket, storage) = (start.socket.clone(), start.storage.duplicate()?);
        let name = format!("quell-member-{}", start.id.0);
        let run = move || {
            let (id, path) = (start.id, start.socket.clone());
            let (router, events) = (Arc::clone(&shared.router), shared.events.clone());
            let network = Arc::clone(&shared.network);
            let service = Service::start(start, shared, receiver);
            let (service, inbox) = match service {
                Ok(service) => service,
                Err(failure) => {
                    // The socket may have been created. Only the failure of the start is reported.
                    let _ = std::fs::remove_file(&path);
                    let _ = started.send(Err(failure));
                    return Err(Failure::cannot("the member was not started"));
                }
            };
            router.add(id, inbox);
            // The receiver waits.
            let _ = started.send(Ok(service.waker()));
            let ended = service.run(&*network, &flag);
            failed.store(ended.is_err(), Ordering::SeqCst);
            // The main thread may have ended the member, and does not wait for the event then.
            let _ = events.send(Event::Ended(id));
            ended
        };
        let thread = std::thread::Builder::new().name(name).spawn(run);
        let thread = thread.map_err(|e| Failure::cannot(format!("cannot start a thread: {e}")))?;
        match is_started.recv() {
            Ok(Ok(waker)) => {
                let failed = |e| Failure::cannot(format!("{}: {e}", socket.display()));
                let socket = Socket::new(socket.clone()).map_err(failed)?;
                Ok(RunningMember { commands, waker, is_ending, has_failed, socket, storage, thread })
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::cannot("the thread of a member has panicked")),
        }
    }

    /// Sends a command. A thread that has ended ignores it.
    pub fn command(&self, command: Command) {
        let _ = self.commands.send(command);
        self.waker.wake();
    }

    /// Returns the socket for the clients of the member.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the storage of the member.
    pub fn storage(&self) -> Result<Storage, Failure> {
        self.storage.duplicate()
    }

    /// Returns whether the thread has ended because of a failure.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// Asks the thread to end.
    pub fn begin_end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Ends the thread, after it has performed the requests that it has received.
    pub fn end(self) -> Result<EndedMember, Failure> {
        self.begin_end();
        self.thread.join().map_err(|_| Failure::cannot("the thread of a member has panicked"))?
    }
}

/// A member that has ended, and the replies that are to be sent after its files were removed.
pub struct EndedMember {
    server: LocalServer,
    outbox: Vec<(Ticket, Vec<u8>)>,
    kept: Vec<(Replier, Vec<u8>)>,
}

impl EndedMember {
    /// Sends the replies. If the files were not removed, the replies contain the reason.
    pub fn reply(mut self, removed: &Result<(), Failure>) {
        let failed = removed.as_ref().err().map(|reason| {
            let error = Error::new(ErrorKind::Os(errno::EIO), "remove the files of a daemon", "");
            failure(Error { source: Some(reason.to_string().into()), ..error })
        });
        for (reply, bytes) in self.kept {
            reply.send(failed.clone().unwrap_or(bytes));
        }
        for (ticket, bytes) in self.outbox {
            self.server.reply_bytes(ticket, failed.as_ref().unwrap_or(&bytes));
        }
    }
}

/// The service of a member, on its thread.
struct Service {
    id: MemberId,
    member: Rc<Member>,
    replication: Rc<Replication>,
    retries: Rc<Retries>,
    clock: Rc<SystemClock>,
    server: Rc<RefCell<LocalServer>>,
    requests: mpsc::Receiver<PeerRequest>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    executor: LocalPool,
    spawner: LocalSpawner,
    outbox: Outbox,
    clients: HashMap<local::ClientId, ClientId>,
    next_client: u64,
    kept: Kept,
    /// The number of requests that were begun and have not ended.
    performing: Rc<Cell<usize>>,
    /// Until when the member may perform its requests before it ends, if it is released.
    released: Option<Instant>,
}

fn bind(socket: &Path, storage: &Storage, passes_chunks: bool) -> Result<LocalServer, Failure> {
    // A daemon that was killed has left its socket. This daemon holds the lock of the store.
    let _ = std::fs::remove_file(socket);
    let chunk_dir = passes_chunks.then(|| storage.chunk_dir.try_clone()).transpose();
    let chunk_dir = chunk_dir.map_err(|e| Failure::cannot(format!("cannot copy a descriptor: {e}")))?;
    let options = ServerOptions { descriptors: chunk_dir.into_iter().collect(), ..ServerOptions::default() };
    Ok(LocalServer::bind(socket, options)?)
}

impl Service {
    /// Starts the member. Requests are served by `run`.
    fn start(
        start: MemberStart,
        shared: Shared,
        commands: mpsc::Receiver<Command>,
    ) -> Result<(Service, Inbox), Failure> {
        let MemberStart { id, map, owner, has_replicas, serves_clients, storage, socket } = start;
        let Shared { daemon, router, network, placement, events } = shared;
        let server = bind(&socket, &storage, serves_clients && !has_replicas)?;
        let (sender, requests) = mpsc::channel();
        let waker = server.waker();
        let inbox = Inbox { requests: sender, waker: waker.clone() };
        let retries = Rc::<Retries>::default();
        let network = Network {
            daemon,
            router,
            network,
            placement,
            retries: Rc::clone(&retries),
            waker: waker.clone(),
        };
        let server = Rc::new(RefCell::new(server));
        let clock = Rc::new(SystemClock::new());
        let Storage { store, chunks, inline_bytes_max, .. } = storage;
        let replication = Replication::new(store, chunks, Rc::clone(&clock) as _, Rc::new(network.clone()));
        replication.set_lease_end(has_replicas.then_some(Duration::ZERO));
        let environment = Environment {
            store: replication.store(),
            chunks: replication.chunks(),
            peers: replication.peers(Rc::new(network)),
            clients: Rc::new(LocalClients { waker, server: Rc::clone(&server) }),
            inline_bytes_max,
            machine: machine()?,
            has_copies: has_replicas,
            clock: Rc::clone(&clock) as _,
        };
        let member = Member::start(id, map, environment, owner)?;
        let executor = LocalPool::new();
        let spawner = executor.spawner();
        let service = Service {
            id,
            member,
            replication,
            retries,
            clock,
            server,
            requests,
            commands,
            events,
            executor,
            spawner,
            outbox: Outbox::default(),
            clients: HashMap::new(),
            next_client: 0,
            kept: Kept::default(),
            performing: Rc::default(),
            released: None,
        };
        Ok((service, inbox))
    }

    /// Serves requests until `is_ending` is true, which is read at least four times each second, or
    /// until a client ends the member.
    fn run(mut self, network: &dyn Transport, is_ending: &AtomicBool) -> Result<EndedMember, Failure> {
        let sends = network.collect();
        let mut reactor = self.reactor(network)?;
        let (mut repeated, mut maintained) = (Instant::now(), Instant::now());
        while !self.member.is_stopping() {
            let is_last = is_ending.load(Ordering::Relaxed);
            self.take_commands();
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
                    // There may be other daemons now.
                    if reactor.is_none() {
                        reactor = self.reactor(network)?;
                    }
                }
            }
            self.executor.run_until_stalled();
            self.report_backups();
            sends.send();
            if is_last || self.member.is_stopping() || self.is_released() {
                break;
            }
            if self.send_replies() {
                self.server.borrow_mut().turn(reactor.as_deref())?;
            } else {
                let limit = if self.member.has_unsent_times() { INTERVAL } else { SLEEP_MAX };
                self.server.borrow_mut().wait_with(reactor.as_deref(), Some(limit))?;
            }
        }
        let Service { server, member, replication, executor, outbox, kept, .. } = self;
        // Requests that have not ended have references to the member, which has the store open.
        drop((executor, member, replication));
        let server = Rc::into_inner(server).expect("the member has ended");
        Ok(EndedMember { server: server.into_inner(), outbox: outbox.take(), kept: kept.take() })
    }

    /// Returns whether the member was released and has no requests left, or its time limit has
    /// passed, and its backups have everything.
    fn is_released(&self) -> bool {
        self.released.is_some_and(|limit| self.performing.get() == 0 || Instant::now() > limit)
            && self.replication.is_settled()
    }

    /// Lets this thread serve the connections to other daemons while it waits, unless the thread of
    /// another member does so.
    fn reactor(&self, network: &dyn Transport) -> Result<Option<Box<dyn Reactor>>, Failure> {
        let events = self.server.borrow().events()?;
        Ok(network.reactor(events)?)
    }

    fn waker(&self) -> Waker {
        self.server.borrow().waker()
    }

    fn take_commands(&mut self) {
        for command in self.commands.try_iter() {
            match command {
                Command::Backups(daemons, configuration) => {
                    let session = self.member.session();
                    for task in self.replication.set_backups(self.id, session, configuration, &daemons) {
                        self.spawn(task);
                    }
                }
                Command::PlacementChanged => self.retries.wake(),
                Command::Lease(requested) => {
                    let end = self.clock.time_at(requested) + Duration::from_millis(LEASE_MS);
                    self.replication.set_lease_end(Some(end));
                }
                Command::Release => {
                    self.released = Some(Instant::now() + RELEASE_LIMIT);
                    if self.member.has_unsent_times() {
                        self.send_times();
                    }
                }
                Command::RefuseClients => {
                    let connected = self.server.borrow_mut().refuse_clients();
                    // The main thread runs longer than this one.
                    let _ = self.events.send(Event::Clients(connected as u64));
                }
                Command::AcceptClients => self.server.borrow_mut().accept_clients(),
            }
        }
    }

    fn report_backups(&self) {
        for event in self.replication.take_events() {
            let (backup, is_complete) = match event {
                BackupEvent::Complete(backup) => (backup, true),
                BackupEvent::Failed(backup) => (backup, false),
            };
            // The main thread runs longer than this one.
            let _ = self.events.send(Event::Backup { member: self.id, backup, is_complete });
        }
    }

    fn take_requests(&mut self) {
        let Service { member, replication, server, spawner, outbox, clients, next_client, .. } = self;
        let performing = &self.performing;
        // The operations begin when the executor runs.
        server.borrow_mut().drain(&mut |ticket, request| {
            let client = *clients.entry(ticket.client()).or_insert_with(|| {
                *next_client += 1;
                ClientId(*next_client)
            });
            let outbox = Rc::clone(outbox);
            let (member, replication) = (Rc::clone(member), Rc::clone(replication));
            let request = request.to_vec();
            let performed = begin(performing);
            let answered = async move {
                let reply = Rc::clone(&member).perform(client, request).await;
                settle(&member, &replication).await;
                outbox.borrow_mut().push((ticket, reply));
                end(&performed);
            };
            spawner.spawn_local(answered).expect("the executor runs until the end of the thread");
        });
    }

    fn take_peer_requests(&mut self) {
        for PeerRequest { bytes, reply, .. } in self.requests.try_iter() {
            let (member, replication) = (Rc::clone(&self.member), Rc::clone(&self.replication));
            let kept = Rc::clone(&self.kept);
            let performed = begin(&self.performing);
            let answered = async move {
                let bytes = Rc::clone(&member).serve(&bytes).await;
                settle(&member, &replication).await;
                match member.is_stopping() {
                    true => kept.borrow_mut().push((reply, bytes)),
                    false => reply.send(bytes),
                }
                end(&performed);
            };
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
        let (member, performed) = (Rc::clone(&self.member), begin(&self.performing));
        self.spawn(async move {
            if let Err(error) = member.send_times().await {
                tracing::warn!(%error, "the time of a directory is not up to date");
            }
            end(&performed);
        });
    }

    /// Lets the member perform the work that no request causes.
    fn maintain(&self) {
        self.member.end_waits();
        self.replication.retry();
        self.retries.wake();
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

/// Counts a request that begins.
fn begin(performing: &Rc<Cell<usize>>) -> Rc<Cell<usize>> {
    performing.set(performing.get() + 1);
    Rc::clone(performing)
}

/// Counts the end of a request.
fn end(performing: &Cell<usize>) {
    performing.set(performing.get() - 1);
}

/// Returns the result of an operation whose reply does not fit in a message.
fn too_long() -> Vec<u8> {
    failure(Error::new(ErrorKind::Os(errno::E2BIG), "reply", ""))
}

/// Waits until a reply may leave the member. The reply that ends the member does not wait.
async fn settle(member: &Member, replication: &Rc<Replication>) {
    if !member.is_stopping() && !replication.is_settled() {
        replication.settled().await;
    }
}
