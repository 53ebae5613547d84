//! A pool in this process: the members run on one thread, and their messages are passed in memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use futures_executor::LocalPool;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use futures_util::task::LocalSpawnExt;
use quell_kv::MemoryStore;
use quell_pool::{Daemon, LocalData, Unanswered};
use quell_pool_service::{
    ChunkDir, ClientCounts, ClientId, Clients, Clock, Environment, Member, Peers, PoolMap,
};
use quell_posix::WritableDir;
use quell_testkit::MemoryStore as MemoryDirs;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{
    Consistency, DirectAccess, INLINE_BYTES_MAX, MemberId, Operation, Partitions, Reply, Stamp,
};
use quell_wire::{Failure, decode, encode};

const PARTITIONS: u16 = 64;

enum Event {
    Request { member: MemberId, client: ClientId, operation: Vec<u8>, reply: mpsc::Sender<Vec<u8>> },
    ClientEnded { member: MemberId, client: ClientId },
}

/// A pool. Its thread ends when this and all connections are dropped.
pub struct SimulatedPool {
    events: Option<mpsc::Sender<Event>>,
    clients: AtomicU64,
    /// For each member.
    shared: Vec<Shared>,
    consistency: Consistency,
    thread: Option<JoinHandle<()>>,
}

/// A connection to one member.
pub struct Connection {
    events: mpsc::Sender<Event>,
    member: MemberId,
    client: ClientId,
    dirs_version: Arc<AtomicU64>,
    consistency: Consistency,
    data: Option<LocalData>,
}

type Members = Rc<RefCell<HashMap<MemberId, Rc<Member>>>>;

/// The other members of the pool, as one member sees them.
struct Network {
    members: Weak<RefCell<HashMap<MemberId, Rc<Member>>>>,
}

impl Peers for Network {
    fn call(
        &self,
        to: MemberId,
        request: Vec<u8>,
        _: u32,
        _: bool,
    ) -> LocalBoxFuture<'static, Result<Vec<u8>>> {
        let members = self.members.upgrade().expect("the pool is running");
        let member = members.borrow().get(&to).map(Rc::clone);
        async move {
            // Other members run between the request and its arrival.
            yield_once().await;
            match member {
                Some(member) => Ok(member.serve(&request).await),
                None => Err(Error::new(ErrorKind::Unavailable, "call", to.0.to_string())),
            }
        }
        .boxed_local()
    }
}

/// Lets all other tasks run first.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

struct SystemClock(Instant);

impl Clock for SystemClock {
    fn now(&self) -> Stamp {
        let since = SystemTime::UNIX_EPOCH.elapsed().expect("the clock is after 1970");
        Stamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The clients of one member, which share the version of its directories.
struct Forgetting(Arc<AtomicU64>);

impl Clients for Forgetting {
    fn forget_dirs(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn counts(&self) -> ClientCounts {
        ClientCounts::default()
    }
}

/// The parts of a member that it shares with the clients of its machine.
#[derive(Clone)]
struct Shared {
    dirs_version: Arc<AtomicU64>,
    chunk_dir: Arc<dyn WritableDir>,
}

fn start_members(chunk_bytes: u32, consistency: Consistency, shared: &[Shared]) -> Members {
    let ids: Vec<MemberId> = (0..shared.len() as u16).map(MemberId).collect();
    let map = PoolMap::new(PARTITIONS, &ids, chunk_bytes).unwrap().with_consistency(consistency);
    let members = Members::default();
    for (id, shared) in ids.into_iter().zip(shared) {
        let environment = Environment {
            store: Arc::new(MemoryStore::new()),
            chunks: Arc::new(ChunkDir::new(Arc::clone(&shared.chunk_dir))),
            peers: Rc::new(Network { members: Rc::downgrade(&members) }),
            inline_bytes_max: INLINE_BYTES_MAX,
            machine: u64::from(id.0),
            has_copies: false,
            clients: Rc::new(Forgetting(Arc::clone(&shared.dirs_version))),
            clock: Rc::new(SystemClock(Instant::now())),
        };
        let member = Member::start(id, map.clone(), environment, (1000, 1000)).unwrap();
        members.borrow_mut().insert(id, member);
    }
    members
}

fn serve(events: &mpsc::Receiver<Event>, chunk_bytes: u32, consistency: Consistency, shared: &[Shared]) {
    let members = start_members(chunk_bytes, consistency, shared);
    let mut executor = LocalPool::new();
    let spawner = executor.spawner();
    while let Ok(event) = events.recv() {
        for event in std::iter::once(event).chain(events.try_iter()) {
            let members = members.borrow();
            match event {
                Event::Request { member, client, operation, reply } => {
                    let performed = Rc::clone(&members[&member]).perform(client, operation);
                    let answered = performed.map(move |result| {
                        // The client may have ended.
                        let _ = reply.send(result);
                    });
                    spawner.spawn_local(answered).unwrap();
                }
                Event::ClientEnded { member, client } => {
                    spawner.spawn_local(Rc::clone(&members[&member]).end_client(client)).unwrap();
                }
            }
        }
        executor.run_until_stalled();
        for member in members.borrow().values() {
            spawner.spawn_local(Rc::clone(member).send_times().map(|sent| sent.unwrap())).unwrap();
        }
        executor.run_until_stalled();
    }
}

impl SimulatedPool {
    /// Starts a pool of `count` members.
    #[allow(dead_code)] // not all tests need it
    pub fn start(count: u16, chunk_bytes: u32) -> SimulatedPool {
        SimulatedPool::start_with(count, chunk_bytes, Consistency::Synchronous)
    }

    /// Starts a pool in which sizes are visible at these times.
    pub fn start_with(count: u16, chunk_bytes: u32, consistency: Consistency) -> SimulatedPool {
        let (sender, receiver) = mpsc::channel();
        let new = |_| Shared { dirs_version: Arc::default(), chunk_dir: MemoryDirs::new().root() };
        let shared: Vec<Shared> = (0..count).map(new).collect();
        let passed = shared.clone();
        let thread = std::thread::spawn(move || serve(&receiver, chunk_bytes, consistency, &passed));
        SimulatedPool {
            events: Some(sender),
            clients: AtomicU64::new(0),
            shared,
            consistency,
            thread: Some(thread),
        }
    }

    /// Returns the names of the local files with the chunks of a member.
    #[allow(dead_code)] // not all tests need it
    pub fn local_files(&self, member: u16) -> Vec<Vec<u8>> {
        self.shared[usize::from(member)].chunk_dir.names().unwrap()
    }

    /// Connects a new client to a member. Every second client sends requests for all data, as if it
    /// could not access the chunks of the member.
    pub fn connect(&self, member: u16) -> Connection {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        let events = self.events.clone().expect("the pool is running");
        let Shared { dirs_version, chunk_dir } = self.shared[usize::from(member)].clone();
        let (member, client) = (MemberId(member), ClientId(number));
        let mut connection =
            Connection { events, member, client, dirs_version, consistency: self.consistency, data: None };
        if number.is_multiple_of(2) {
            let mut own = Partitions::default();
            let receive = |reply: Result<Reply<'_>, Failure>| match reply {
                Ok(Reply::Partitions(partitions)) => own = partitions,
                other => panic!("{other:?}"),
            };
            connection.call(None, &Operation::OwnPartitions, &mut { receive }).unwrap();
            connection.data = Some(LocalData { dir: chunk_dir, partitions: own });
        }
        connection
    }
}

impl Drop for SimulatedPool {
    fn drop(&mut self) {
        self.events = None;
        let ended = self.thread.take().expect("it was started").join();
        if !std::thread::panicking() {
            ended.expect("no member has failed");
        }
    }
}

impl Daemon for Connection {
    fn call(
        &self,
        _: Option<Instant>,
        operation: &Operation<'_>,
        receive: &mut dyn FnMut(Result<Reply<'_>, Failure>),
    ) -> Result<(), Unanswered> {
        let (sender, receiver) = mpsc::channel();
        let (member, client) = (self.member, self.client);
        let unavailable = || Error::new(ErrorKind::Unavailable, "call", "");
        let request = Event::Request { member, client, operation: encode(operation), reply: sender };
        self.events.send(request).map_err(|_| unavailable())?;
        let bytes = receiver.recv().map_err(|_| unavailable())?;
        receive(decode(&bytes)?);
        Ok(())
    }

    fn dirs_version(&self) -> u64 {
        self.dirs_version.load(Ordering::SeqCst)
    }

    fn consistency(&self) -> Consistency {
        self.consistency
    }

    fn local_data(&self) -> Option<&LocalData> {
        self.data.as_ref()
    }

    fn count_direct(&self, _: DirectAccess, _: u64) {}
}

impl Drop for Connection {
    fn drop(&mut self) {
        let (member, client) = (self.member, self.client);
        let _ = self.events.send(Event::ClientEnded { member, client });
    }
}
