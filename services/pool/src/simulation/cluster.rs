//! Members in one process, each with a disk that survives the end of the member, and the network
//! between them, which delays and reorders messages, loses requests and replies, and can be
//! interrupted between two members.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::future::{Either, LocalBoxFuture, select};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{MemberId, Operation, Reply, Stamp};
use quell_wire::{Failure, decode, encode};

use super::replicas::{Replicas, SimulatedDaemons};
use super::storage::{Disk, Life};
use super::time::{SimulationRuntime, Sleep};
use crate::replies::into_owned;
use crate::{ClientCounts, ClientId, Clients, Clock, Environment, Member, Peers, PoolMap, Replication};

pub const CHUNK_BYTES: u32 = 64;
/// The limit is less than a chunk, so that only writes at the beginning of a file are inline.
pub const INLINE_BYTES_MAX: usize = 40;
const PARTITIONS: u16 = 16;
/// The same values as for the connections between daemons.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);
/// The interval at which a wait checks whether a member runs and can be reached.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// One start of a member.
pub struct Incarnation {
    pub member: Rc<Member>,
    pub replication: Rc<Replication>,
    pub life: Arc<Life>,
    /// The process does nothing before this time.
    stopped_until: Cell<Duration>,
    /// Whether the member is moving to another daemon, or has moved there.
    pub is_released: Cell<bool>,
    /// The number of requests that were begun and have not ended.
    pub performing: Cell<usize>,
}

struct Node {
    disk: RefCell<Rc<Disk>>,
    clock_offset: Rc<Cell<i64>>,
    running: RefCell<Option<Rc<Incarnation>>>,
}

/// The members of a pool.
pub struct Cluster {
    pub runtime: Rc<SimulationRuntime>,
    map: PoolMap,
    nodes: Vec<Node>,
    /// Pairs of members that cannot reach each other.
    disconnected: RefCell<BTreeSet<(u16, u16)>>,
    /// Whether messages are lost, or delayed for a long time.
    pub loses: Cell<bool>,
    /// Whether the members have copies, so that requests are repeated.
    has_copies: bool,
    /// The daemons that run the members, and the backups.
    pub replicas: Replicas,
    next_client: Cell<u64>,
}

impl Cluster {
    pub fn start(runtime: &Rc<SimulationRuntime>, members: u16, has_copies: bool) -> Rc<Cluster> {
        let ids: Vec<MemberId> = (0..members).map(MemberId).collect();
        let node = |_| Node {
            disk: RefCell::new(Rc::new(Disk::new())),
            clock_offset: Rc::default(),
            running: RefCell::default(),
        };
        let cluster = Rc::new(Cluster {
            runtime: Rc::clone(runtime),
            map: PoolMap::new(PARTITIONS, &ids, CHUNK_BYTES).unwrap(),
            nodes: ids.iter().map(node).collect(),
            disconnected: RefCell::default(),
            loses: Cell::new(false),
            has_copies,
            replicas: Replicas::new(members),
            next_client: Cell::new(0),
        });
        (0..members).for_each(|member| cluster.restart(member));
        cluster
    }

    pub fn members(&self) -> u16 {
        self.nodes.len() as u16
    }

    pub fn disk(&self, member: u16) -> Rc<Disk> {
        Rc::clone(&self.nodes[usize::from(member)].disk.borrow())
    }

    /// Replaces the storage of a member that has ended by a backup.
    pub fn replace_disk(&self, member: u16, disk: Rc<Disk>) {
        *self.nodes[usize::from(member)].disk.borrow_mut() = disk;
    }

    /// Returns the running member, unless it was killed.
    pub fn running(&self, member: u16) -> Option<Rc<Incarnation>> {
        let running = self.nodes[usize::from(member)].running.borrow();
        running.as_ref().filter(|running| running.life.is_alive()).map(Rc::clone)
    }

    /// Starts a member that was killed.
    pub fn restart(self: &Rc<Cluster>, number: u16) {
        if self.running(number).is_some() {
            return;
        }
        let node = &self.nodes[usize::from(number)];
        let life = Arc::<Life>::default();
        let disk = self.disk(number);
        let (store, chunks) = disk.open(&life);
        let clock: Rc<dyn Clock> = Rc::new(SimulatedClock {
            runtime: Rc::clone(&self.runtime),
            offset: Rc::clone(&node.clock_offset),
        });
        let daemons = SimulatedDaemons { cluster: Rc::downgrade(self), from: number };
        let replication = Replication::new(store, chunks, Rc::clone(&clock), Rc::new(daemons));
        let network = Network { cluster: Rc::downgrade(self), from: number, life: Arc::clone(&life) };
        let environment = Environment {
            store: replication.store(),
            chunks: replication.chunks(),
            peers: replication.peers(Rc::new(network)),
            inline_bytes_max: INLINE_BYTES_MAX,
            machine: u64::from(number),
            has_copies: self.has_copies,
            clients: Rc::new(NoClients),
            clock,
        };
        let Ok(member) = Member::start(MemberId(number), self.map.clone(), environment, (1000, 1000)) else {
            // The start fails because the disk is full.
            assert!(disk.is_full.load(std::sync::atomic::Ordering::Relaxed));
            return;
        };
        let running = Rc::new(Incarnation {
            member,
            replication,
            life,
            stopped_until: Cell::default(),
            is_released: Cell::default(),
            performing: Cell::default(),
        });
        *node.running.borrow_mut() = Some(Rc::clone(&running));
        let (runtime, process) = (Rc::clone(&self.runtime), Rc::clone(&running));
        let maintain = async move {
            loop {
                runtime.sleep(MAINTENANCE_INTERVAL).await;
                process.member.end_waits();
                process.replication.retry();
                // Errors are ignored, because members may not be reachable.
                let (member, sender) = (Rc::clone(&process.member), Rc::clone(&process.member));
                process.spawn(&runtime, member.maintain().map(drop));
                process.spawn(&runtime, sender.send_times().map(drop));
            }
        };
        running.spawn(&self.runtime, maintain);
    }

    pub fn kill(&self, member: u16) {
        if let Some(running) = self.running(member) {
            running.life.end();
        }
    }

    /// Stops a process for a while.
    pub fn stop(&self, member: u16, duration: Duration) {
        if let Some(running) = self.running(member) {
            running.stopped_until.set(self.runtime.now() + duration);
        }
    }

    pub fn move_clock(&self, member: u16, seconds: i64) {
        let offset = &self.nodes[usize::from(member)].clock_offset;
        offset.set(offset.get() + seconds);
    }

    pub fn disconnect(&self, one: u16, other: u16) {
        self.disconnected.borrow_mut().insert((one.min(other), one.max(other)));
    }

    pub fn reconnect(&self, one: u16, other: u16) {
        self.disconnected.borrow_mut().remove(&(one.min(other), one.max(other)));
    }

    pub fn is_disconnected(&self, one: u16, other: u16) -> bool {
        self.disconnected.borrow().contains(&(one.min(other), one.max(other)))
    }

    /// Ends all faults.
    pub fn heal(self: &Rc<Cluster>) {
        self.disconnected.borrow_mut().clear();
        self.loses.set(false);
        for member in 0..self.members() {
            self.disk(member).set_full(false);
            match self.running(member) {
                Some(running) => {
                    running.stopped_until.set(Duration::ZERO);
                    running.life.end_after_commits(0);
                }
                None => self.restart(member),
            }
        }
    }

    pub fn delay(&self) -> Duration {
        let runtime = &self.runtime;
        match runtime.below(if self.loses.get() { 100 } else { 50 }) {
            0 => runtime.below_time(Duration::from_millis(500)),
            // A request can arrive after its sender has abandoned it.
            99 => runtime.below_time(Duration::from_secs(45)),
            _ => runtime.below_time(Duration::from_micros(500)),
        }
    }

    pub fn is_lost(&self) -> bool {
        self.loses.get() && self.runtime.one_in(60)
    }

    /// Sends a request of one start of a member to another member. If it has no reply and can be
    /// repeated, it is sent again until the time limit.
    async fn call_repeatedly(
        self: Rc<Cluster>,
        from: u16,
        life: Arc<Life>,
        to: u16,
        request: Vec<u8>,
        is_repeatable: bool,
    ) -> Result<Vec<u8>> {
        let given_up = self.runtime.now() + REPLY_LIMIT;
        loop {
            let sent = Rc::clone(&self).call(from, Arc::clone(&life), to, request.clone(), given_up);
            match sent.await {
                Err(error)
                    if error.kind == ErrorKind::Unavailable
                        && self.has_copies
                        && is_repeatable
                        && life.is_alive()
                        && self.runtime.now() < given_up =>
                {
                    self.runtime.sleep(LOOK_INTERVAL).await;
                }
                reply => return reply,
            }
        }
    }

    /// Sends a request of one start of a member to another member, once.
    async fn call(
        self: Rc<Cluster>,
        from: u16,
        life: Arc<Life>,
        to: u16,
        request: Vec<u8>,
        given_up: Duration,
    ) -> Result<Vec<u8>> {
        let failed = |kind| Err(Error::new(kind, "call", to.to_string()));
        let runtime = Rc::clone(&self.runtime);
        let unreachable = runtime.now() + UNREACHABLE_AFTER;
        let receiver = loop {
            let running = self.running(to);
            // Requests to a member that is moving wait.
            let is_moving = running.as_ref().is_some_and(|running| running.is_released.get());
            if let Some(receiver) = running.filter(|_| !self.is_disconnected(from, to) && !is_moving) {
                break receiver;
            }
            if runtime.now() >= if is_moving { given_up } else { unreachable } {
                return failed(ErrorKind::Unavailable);
            }
            runtime.sleep(LOOK_INTERVAL).await;
        };
        if !life.is_alive() {
            return failed(ErrorKind::Unavailable);
        }
        let (sender, reply) = oneshot::channel();
        let (cluster, served) = (Rc::clone(&self), Rc::clone(&receiver));
        let runtime = Rc::clone(&self.runtime);
        let answered = async move {
            cluster.runtime.sleep(cluster.delay()).await;
            if cluster.is_lost() || cluster.is_disconnected(from, to) && cluster.runtime.one_in(2) {
                return;
            }
            let Some(served) = cluster.present(to, served).await else { return };
            let process = Rc::clone(&served);
            let serve = async move {
                process.begin();
                let reply = Rc::clone(&process.member).serve(&request).await;
                process.replication.settled().await;
                process.end();
                cluster.runtime.sleep(cluster.delay()).await;
                if !cluster.is_lost() {
                    // The sender may have abandoned the request.
                    let _ = sender.send(reply);
                }
            };
            served.spawn(&runtime, serve);
        };
        self.runtime.spawn(answered);
        let runtime = &self.runtime;
        let mut reply = reply;
        loop {
            match select(reply, runtime.sleep(LOOK_INTERVAL * 10)).await {
                Either::Left((Ok(reply), _)) => return Ok(reply),
                // The connection was lost.
                Either::Left((Err(_), _)) => {
                    runtime.sleep(runtime.below_time(UNREACHABLE_AFTER)).await;
                    return failed(ErrorKind::Unavailable);
                }
                Either::Right((_, _)) if !receiver.life.is_alive() && !receiver.is_released.get() => {
                    return failed(ErrorKind::Unavailable);
                }
                Either::Right((_, _)) if runtime.now() >= given_up => return failed(ErrorKind::TimedOut),
                Either::Right((_, waiting)) => reply = waiting,
            }
        }
    }

    /// Returns the process that performs a request that has arrived at a member: `receiver`, or the
    /// next process if the member has moved. `None` if the receiver has failed.
    async fn present(self: &Rc<Cluster>, member: u16, receiver: Rc<Incarnation>) -> Option<Rc<Incarnation>> {
        let mut receiver = receiver;
        while receiver.is_released.get() {
            self.runtime.sleep(LOOK_INTERVAL).await;
            receiver = self.running(member)?;
        }
        Some(receiver)
    }

    /// Returns a client of a running member.
    pub fn connect(self: &Rc<Cluster>, member: u16) -> Option<Client> {
        let running = self.running(member).filter(|running| !running.is_released.get())?;
        self.next_client.set(self.next_client.get() + 1);
        let client = ClientId(self.next_client.get());
        Some(Client { cluster: Rc::clone(self), running, client })
    }
}

impl Incarnation {
    fn begin(&self) {
        self.performing.set(self.performing.get() + 1);
    }

    fn end(&self) {
        self.performing.set(self.performing.get() - 1);
    }

    /// Starts a task of the process. It makes progress only while the process is neither stopped
    /// nor ended.
    pub fn spawn(
        self: &Rc<Incarnation>,
        runtime: &Rc<SimulationRuntime>,
        task: impl Future<Output = ()> + 'static,
    ) {
        let process = Rc::clone(self);
        let guarded = Guarded { runtime: Rc::clone(runtime), process, pause: None, task: Box::pin(task) };
        runtime.spawn(guarded);
    }
}

/// A task that makes progress only while its process runs.
struct Guarded {
    runtime: Rc<SimulationRuntime>,
    process: Rc<Incarnation>,
    pause: Option<Sleep>,
    task: LocalBoxFuture<'static, ()>,
}

impl Future for Guarded {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.process.life.is_alive() {
            return Poll::Ready(());
        }
        let until = self.process.stopped_until.get();
        if self.runtime.now() < until {
            let mut pause = self.runtime.sleep_until(until);
            if Pin::new(&mut pause).poll(context).is_pending() {
                self.pause = Some(pause);
                return Poll::Pending;
            }
        }
        self.pause = None;
        self.task.as_mut().poll(context)
    }
}

/// The connections of one start of a member.
struct Network {
    cluster: Weak<Cluster>,
    from: u16,
    life: Arc<Life>,
}

impl Peers for Network {
    fn call(
        &self,
        to: MemberId,
        request: Vec<u8>,
        _: u32,
        is_repeatable: bool,
    ) -> LocalBoxFuture<'static, Result<Vec<u8>>> {
        let cluster = self.cluster.upgrade().expect("the simulation is running");
        let life = Arc::clone(&self.life);
        cluster.call_repeatedly(self.from, life, to.0, request, is_repeatable).boxed_local()
    }
}

/// Clients without cached directories.
struct NoClients;

impl Clients for NoClients {
    fn forget_dirs(&self) {}

    fn counts(&self) -> ClientCounts {
        ClientCounts::default()
    }
}

struct SimulatedClock {
    runtime: Rc<SimulationRuntime>,
    offset: Rc<Cell<i64>>,
}

impl Clock for SimulatedClock {
    fn now(&self) -> Stamp {
        let now = self.runtime.now();
        Stamp { seconds: now.as_secs() as i64 + self.offset.get(), nanoseconds: now.subsec_nanos() }
    }

    fn monotonic(&self) -> Duration {
        self.runtime.now()
    }
}

/// A client of one start of a member.
pub struct Client {
    cluster: Rc<Cluster>,
    running: Rc<Incarnation>,
    client: ClientId,
}

impl Client {
    pub fn is_connected(&self) -> bool {
        self.running.life.is_alive()
    }

    /// Performs an operation. `None` if the member has ended.
    pub async fn perform(&self, operation: &Operation<'_>) -> Option<Result<Reply<'static>>> {
        let runtime = &self.cluster.runtime;
        if self.running.is_released.get() {
            return None;
        }
        let (client, operation) = (self.client, encode(operation));
        let process = Rc::clone(&self.running);
        process.begin();
        let performed = async move {
            let reply = Rc::clone(&process.member).perform(client, operation).await;
            process.replication.settled().await;
            process.end();
            reply
        };
        let (sender, mut reply) = oneshot::channel();
        let life = Arc::clone(&self.running.life);
        let answered = performed.map(move |reply| {
            if life.is_alive() {
                // The client waits until the member ends, so it receives the reply.
                let _ = sender.send(reply);
            }
        });
        self.running.spawn(runtime, answered);
        loop {
            match select(reply, runtime.sleep(LOOK_INTERVAL)).await {
                Either::Left((Ok(reply), _)) => {
                    let result: Result<Reply<'_>, Failure> = decode(&reply).unwrap();
                    return Some(result.map(into_owned).map_err(|failure| failure.into_error("", b"")));
                }
                Either::Left((Err(_), _)) => return None,
                Either::Right((_, _)) if !self.is_connected() => return None,
                Either::Right((_, waiting)) => reply = waiting,
            }
        }
    }

    /// Ends the client, as the end of its process would.
    pub fn end(self) {
        let ended = Rc::clone(&self.running.member).end_client(self.client);
        self.running.spawn(&self.cluster.runtime, ended);
    }
}
