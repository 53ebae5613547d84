//! The daemon's half of the local channel, for one service thread.
//!
//! The service thread repeats: [`LocalServer::wait`], [`LocalServer::drain`], its other work, and
//! [`LocalServer::reply`] for requests that are done. No method waits for a client.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::futex;

use super::handshake::{self, FURTHER_MAX, HELLO_BYTES, Status};
use super::layout::{AWAITED, COUNTERS_OF_CLIENT, PAYLOAD_BYTES_MAX, REPLIED, REQUESTED, SLOTS};
use super::memory::{Daemon, Segment, StatusPage};
use super::polling::{LOADS_PER_CHECK, Polling};
use super::reactor::Reactor;
use super::waker::{WakeState, Waker, eventfd};

/// The maximum number of connections whose client has not sent its first message.
const GREETINGS_MAX: usize = 64;
/// The maximum time until a client has sent its first message.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before the next attempt if a connection could not be accepted, because there are no
/// free descriptors or no memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of connections that are accepted at a time, so that requests do not wait for
/// many of them.
const ACCEPTS_AT_A_TIME: usize = 16;
/// The longest time for which a server with requests does not look for new and closed connections,
/// and for requests of clients that it does not watch.
const EVENTS_INTERVAL: Duration = Duration::from_micros(100);
/// A client without requests for this time, or up to twice as long, is not watched any more.
const WATCH_TIME: Duration = Duration::from_millis(10);
/// The maximum number of events that are taken from the kernel at a time.
const EVENTS_AT_A_TIME: usize = 64;
/// The longest time of polling if other connections are served by sleeping only.
const REACTOR_POLL_TIME: Duration = Duration::from_micros(10);
/// The longest time for which a server with requests does not receive messages of other
/// connections.
const TURN_INTERVAL: Duration = Duration::from_micros(50);
/// Polling pays if sleeps are shorter than this multiple of the polling time.
const SHORT_SLEEP: u32 = 4;
/// The connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;

/// The bounds of a server, and the descriptors that it passes to its clients.
#[derive(Debug)]
pub struct ServerOptions {
    /// The maximum number of clients; further ones are refused (`Busy`). Each has 2 descriptors,
    /// and up to 8.7 MB of memory if it sends large requests on all its slots.
    pub clients_max: usize,
    /// How long the service thread polls for the next request before it sleeps, if requests follow
    /// each other so quickly. 0: it always sleeps.
    pub poll_time: Duration,
    /// Descriptors that each client gets, at most 16.
    pub descriptors: Vec<OwnedFd>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions { clients_max: 4096, poll_time: Duration::from_micros(50), descriptors: Vec::new() }
    }
}

/// Identifies a request that is to be answered once, with [`LocalServer::reply`]. If it is dropped
/// without a reply, the call of the client waits until its deadline.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "the client waits for the reply"]
pub struct Ticket {
    client: u32,
    generation: u32,
    slot: u32,
}

impl Ticket {
    /// Returns the client that made the request.
    pub fn client(&self) -> ClientId {
        ClientId { client: self.client, generation: self.generation }
    }
}

/// Identifies a connection to a [`LocalServer`], unlike any other of its last 4 billion
/// connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId {
    client: u32,
    generation: u32,
}

/// A connected client.
#[derive(Debug)]
struct Client {
    segment: Segment,
    generation: u32,
    /// A bit for each slot with a request that was taken and not answered.
    unanswered: u64,
    /// Whether the client is in the list of watched clients.
    is_watched: bool,
    /// Whether the client has sent a request since `unwatch_inactive` was last called.
    is_active: bool,
    /// The values of the client's counters when they were last added to the sums of the server.
    counted: [u64; COUNTERS_OF_CLIENT],
    _socket: OwnedFd,
    doorbell: OwnedFd,
}

/// A connection whose client has not sent its first message completely.
#[derive(Debug)]
struct Greeting {
    number: u32,
    socket: OwnedFd,
    deadline: Instant,
    message: [u8; HELLO_BYTES],
    received: usize,
}

/// The source of an event of epoll(7): the kind, and the number and generation of a client, or the
/// number of a greeting. Events of a client that was disconnected meanwhile are recognized by the
/// generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Listener,
    Waker,
    Greeting(u32),
    Socket(ClientId),
    Doorbell(ClientId),
}

impl Source {
    fn encode(self) -> EventData {
        let kind = |kind: u64, client: u32, number: u32| {
            EventData::new_u64(kind << 56 | u64::from(client) << 32 | u64::from(number))
        };
        match self {
            Source::Listener => kind(0, 0, 0),
            Source::Waker => kind(1, 0, 0),
            Source::Greeting(number) => kind(2, 0, number),
            Source::Socket(ClientId { client, generation }) => kind(3, client, generation),
            Source::Doorbell(ClientId { client, generation }) => kind(4, client, generation),
        }
    }

    fn decode(data: EventData) -> Source {
        let data = data.u64();
        let (client, number) = ((data >> 32) as u32 & 0xff_ffff, data as u32);
        match data >> 56 {
            0 => Source::Listener,
            1 => Source::Waker,
            2 => Source::Greeting(number),
            3 => Source::Socket(ClientId { client, generation: number }),
            _ => Source::Doorbell(ClientId { client, generation: number }),
        }
    }
}

/// Serves the local clients of a daemon. One thread owns it.
///
/// Clients that end are forgotten: their memory is unmapped, and replies to them are dropped. A
/// client that violates the protocol is disconnected.
#[derive(Debug)]
pub struct LocalServer {
    epoll: OwnedFd,
    listener: OwnedFd,
    shared: Arc<WakeState>,
    status_memfd: OwnedFd,
    options: ServerOptions,
    clients: Vec<Option<Client>>,
    /// The clients whose `pending` words the service thread looks at. Each word is in a page of its
    /// own, so that looking at 4,000 clients takes 280 us. Other clients ring their doorbells.
    watched: Vec<u32>,
    /// When to look for watched clients that have become inactive.
    watch_until: Instant,
    /// The number of entries in `clients` that are not empty.
    connected: usize,
    /// The sums of the counters of all clients, as far as they were read.
    counters: [u64; COUNTERS_OF_CLIENT],
    /// Whether a client has connected or disconnected in the current `wait`.
    has_changed: bool,
    /// Numbers clients and greetings.
    next_number: u32,
    greetings: VecDeque<Greeting>,
    /// Whether new connections are closed.
    is_refusing: bool,
    /// When to accept again, if the listener may have connections that were not accepted.
    accept_at: Option<Instant>,
    events_taken: Instant,
    /// Whether there may be more events than were taken.
    has_more_events: bool,
    /// When the reactor last received messages.
    turned: Instant,
    /// Whether requests were taken since the last `wait`.
    has_taken: bool,
    last_activity: Instant,
    polling: Polling,
    /// Whether one of the last requests was made on the processor of the service thread: its client
    /// runs only when the service thread sleeps.
    shares_processor: bool,
    processor: u32,
    request: Box<[u8]>,
    reply: Box<[u8]>,
}

fn failed(operation: &'static str, subject: &'static str) -> impl Fn(Errno) -> Error {
    move |cause| Error::from_io(cause.into(), operation, subject)
}

impl LocalServer {
    /// Creates the socket at `path` and listens on it. The directory must belong to the effective
    /// user and give no permission to others (mode 0700), otherwise `PermissionDenied`. The path
    /// has at most 107 bytes. If the path exists (EADDRINUSE), the caller decides whether its
    /// daemon runs, and removes it; the caller also removes it at the end.
    pub fn bind(path: impl AsRef<Path>, options: ServerOptions) -> Result<LocalServer> {
        let path = path.as_ref();
        let subject = path.as_os_str().as_bytes();
        let failed = |cause: std::io::Error| Error::from_io(cause, "listen on", subject);
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let directory = std::fs::metadata(directory.unwrap_or(Path::new("."))).map_err(failed)?;
        if directory.uid() != rustix::process::geteuid().as_raw() || directory.mode() & 0o077 != 0 {
            return Err(Error::new(ErrorKind::PermissionDenied, "listen on", subject));
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|cause| failed(cause.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|cause| failed(cause.into()))?;
        rustix::net::bind(&listener, &address).map_err(|cause| failed(cause.into()))?;
        rustix::net::listen(&listener, BACKLOG).map_err(|cause| failed(cause.into()))?;
        LocalServer::from_listener(listener, options)
    }

    /// Serves the connections of a listening socket that this process has inherited or made. It
    /// becomes non-blocking and close-on-exec.
    pub fn from_listener(listener: OwnedFd, options: ServerOptions) -> Result<LocalServer> {
        assert!(options.descriptors.len() <= FURTHER_MAX, "at most {FURTHER_MAX} descriptors are passed");
        assert!(options.clients_max <= 1 << 20, "at most 1,048,576 clients");
        let refused = failed("prepare", "the socket of the daemon");
        rustix::io::ioctl_fionbio(&listener, true).map_err(&refused)?;
        rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC).map_err(&refused)?;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("create", "an epoll instance"))?;
        let (status, status_memfd) = StatusPage::create()?;
        let shared = Arc::new(WakeState::new(status)?);
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &listener, Source::Listener.encode(), edge).map_err(&refused)?;
        epoll::add(&epoll, &shared.event, Source::Waker.encode(), edge).map_err(&refused)?;
        let now = Instant::now();
        Ok(LocalServer {
            epoll,
            listener,
            shared,
            status_memfd,
            options,
            clients: Vec::new(),
            watched: Vec::new(),
            watch_until: now,
            connected: 0,
            counters: [0; COUNTERS_OF_CLIENT],
            has_changed: false,
            next_number: 0,
            greetings: VecDeque::new(),
            is_refusing: false,
            // There may be connections that were made before.
            accept_at: Some(now),
            events_taken: now,
            has_more_events: false,
            turned: now,
            has_taken: false,
            last_activity: now,
            polling: Polling::new(now),
            shares_processor: false,
            processor: rustix::thread::sched_getcpu() as u32,
            request: vec![0; PAYLOAD_BYTES_MAX].into(),
            reply: vec![0; PAYLOAD_BYTES_MAX].into(),
        })
    }

    /// Adds a descriptor that clients which connect later get, after the earlier ones.
    ///
    /// Panics if there are 16 already.
    pub fn add_descriptor(&mut self, descriptor: OwnedFd) {
        assert!(self.options.descriptors.len() < FURTHER_MAX, "at most {FURTHER_MAX} descriptors are passed");
        self.options.descriptors.push(descriptor);
    }

    /// Returns an object by which other threads wake the service thread.
    pub fn waker(&self) -> Waker {
        Waker(self.shared.clone())
    }

    /// Returns whether a client is connected. The caller can release the resources that it keeps
    /// for a client when the client is not connected; [`wait`](LocalServer::wait) returns when a
    /// client has disconnected.
    pub fn is_connected(&self, client: ClientId) -> bool {
        let found = self.clients.get(client.client as usize).and_then(Option::as_ref);
        found.is_some_and(|found| found.generation == client.generation)
    }

    /// Returns the number of connected clients.
    pub fn clients(&self) -> usize {
        self.connected
    }

    /// Closes new connections from now on, unless a client is connected or connecting. Returns the
    /// number of these clients.
    pub fn refuse_clients(&mut self) -> usize {
        let clients = self.connected + self.greetings.len();
        self.is_refusing |= clients == 0;
        clients
    }

    /// Accepts clients again after [`refuse_clients`](LocalServer::refuse_clients).
    pub fn accept_clients(&mut self) {
        self.is_refusing = false;
    }

    /// Returns the sums of the numbers that all clients, including clients that have ended, have
    /// added to their counters. The sums never decrease, whatever a client writes to its counters:
    /// a smaller value than before changes no sum, and a sum stops at the largest number. Reads a
    /// cache line of each client, which takes 280 us for 4,096 clients.
    pub fn counters(&mut self) -> [u64; COUNTERS_OF_CLIENT] {
        for client in self.clients.iter_mut().flatten() {
            client.add_counters(&mut self.counters);
        }
        self.counters
    }

    /// Takes all pending requests, and calls `visit` for each with its bytes. Returns their number.
    /// A client has at most 16 requests without a reply.
    pub fn drain(&mut self, visit: &mut dyn FnMut(Ticket, &[u8])) -> usize {
        let (mut taken, mut violators) = (0, Vec::new());
        let mut shares_processor = false;
        self.note_processor();
        for number in &self.watched {
            let Some(client) = &mut self.clients[*number as usize] else { continue };
            if client.segment.pending().load(Ordering::Relaxed) == 0 {
                continue;
            }
            client.is_active = true;
            let mut pending = client.segment.pending().swap(0, Ordering::SeqCst);
            while pending != 0 {
                let slot = pending.trailing_zeros();
                pending &= pending - 1;
                let Some((length, processor)) = client.take(slot as usize) else {
                    violators.push(*number);
                    break;
                };
                shares_processor |= processor == self.processor;
                client.segment.copy_out(slot as usize, &mut self.request[..length]);
                let ticket = Ticket { client: *number, generation: client.generation, slot };
                visit(ticket, &self.request[..length]);
                taken += 1;
            }
        }
        violators.into_iter().for_each(|client| self.disconnect(client));
        if taken != 0 {
            self.has_taken = true;
            self.shares_processor = shares_processor;
        }
        taken
    }

    /// Answers a request: `write` gets a buffer of [`PAYLOAD_BYTES_MAX`] bytes with any content,
    /// and returns the length of the reply, which is then copied to the client. Returns false,
    /// without calling `write`, if the client has disconnected.
    ///
    /// Panics if the length exceeds the buffer.
    pub fn reply(&mut self, ticket: Ticket, write: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let Some(client) = find(&mut self.clients, &ticket) else { return false };
        let length = write(&mut self.reply);
        client.answer(ticket.slot as usize, &self.reply[..length]);
        true
    }

    /// Answers a request with bytes that the caller has, which are copied to the client once.
    /// Returns false if the client has disconnected.
    ///
    /// Panics if there are more than [`PAYLOAD_BYTES_MAX`] bytes.
    pub fn reply_bytes(&mut self, ticket: Ticket, bytes: &[u8]) -> bool {
        let Some(client) = find(&mut self.clients, &ticket) else { return false };
        client.answer(ticket.slot as usize, bytes);
        true
    }

    /// Waits until there are requests, a client has connected or disconnected, a [`Waker`] was
    /// used, or `timeout` has passed (`None`: no limit); it may also return without a reason.
    /// Accepts connections, and forgets clients that have ended.
    ///
    /// Polls before it sleeps, for at most `poll_time` after the last request or use of a
    /// [`Waker`], unless polling had no success the last time, or other programs need the
    /// processor.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.wait_with(None, timeout)
    }

    /// Waits as `wait`, and serves other connections meanwhile. `reactor` has the descriptor that
    /// [`events`](LocalServer::events) returns.
    pub fn wait_with(&mut self, reactor: Option<&dyn Reactor>, timeout: Option<Duration>) -> Result<()> {
        let start = Instant::now();
        // The time that the requests have taken does not count: their clients prepare the next ones
        // only now.
        if std::mem::take(&mut self.has_taken) {
            self.last_activity = start;
        }
        self.has_changed = false;
        self.turn_at(reactor, start)?;
        if !self.has_changed && !self.poll(start, reactor.is_some(), timeout) {
            self.sleep(reactor, timeout)?;
        }
        if self.shared.take_request() {
            self.last_activity = Instant::now();
        }
        Ok(())
    }

    /// Accepts connections, takes the events of doorbells, and receives messages of other
    /// connections, unless this was done recently. To be called between two calls of `wait_with`
    /// that are far apart.
    pub fn turn(&mut self, reactor: Option<&dyn Reactor>) -> Result<()> {
        self.turn_at(reactor, Instant::now())
    }

    fn turn_at(&mut self, reactor: Option<&dyn Reactor>, now: Instant) -> Result<()> {
        if let Some(reactor) = reactor
            && now - self.turned >= TURN_INTERVAL
        {
            reactor.turn();
            self.turned = now;
        }
        if now - self.events_taken >= EVENTS_INTERVAL {
            self.take_events(Some(Duration::ZERO))?;
        }
        if now >= self.watch_until {
            self.watch_until = now + WATCH_TIME;
            self.unwatch_inactive();
        }
        Ok(())
    }

    /// Polls for requests; returns whether there is a reason to return to the caller.
    fn poll(&mut self, start: Instant, has_reactor: bool, timeout: Option<Duration>) -> bool {
        if self.is_ready() {
            return true;
        }
        let end = self.last_activity
            + match has_reactor {
                true => self.options.poll_time.min(REACTOR_POLL_TIME),
                false => self.options.poll_time,
            };
        let end = timeout.map_or(end, |timeout| end.min(start + timeout));
        if self.shares_processor || start >= end {
            return false;
        }
        let Some(mut attempt) = self.polling.begin(start, end) else { return false };
        let scans = (LOADS_PER_CHECK / self.watched.len().max(1) as u32).max(1);
        loop {
            for _ in 0..scans {
                if self.is_ready() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if !attempt.goes_on(Instant::now()) {
                return false;
            }
        }
    }

    fn sleep(&mut self, reactor: Option<&dyn Reactor>, timeout: Option<Duration>) -> Result<()> {
        self.shared.status.set(Daemon::Sleeping);
        let slept = match self.is_ready() {
            true => Ok(()),
            false => {
                let start = Instant::now();
                // Events that were there before do not end the wait of a reactor.
                let returns_at_once =
                    reactor.is_some_and(|reactor| self.has_more_events || reactor.wait(self.limit(timeout)));
                let slept = self.take_events(if returns_at_once { Some(Duration::ZERO) } else { timeout });
                let duration = start.elapsed();
                self.turned = start + duration;
                self.polling.slept(duration, self.options.poll_time * SHORT_SLEEP);
                slept
            }
        };
        self.processor = rustix::thread::sched_getcpu() as u32;
        self.shared.status.set(Daemon::AwakeOn(self.processor));
        slept
    }

    /// Tells the clients on which processor the service thread runs.
    fn note_processor(&mut self) {
        let processor = rustix::thread::sched_getcpu() as u32;
        if processor != self.processor {
            self.processor = processor;
            self.shared.status.set(Daemon::AwakeOn(processor));
        }
    }

    fn is_ready(&self) -> bool {
        let has_request = |number: &u32| {
            let client = self.clients[*number as usize].as_ref();
            client.is_some_and(|client| client.segment.pending().load(Ordering::SeqCst) != 0)
        };
        self.shared.is_requested() || self.watched.iter().any(has_request)
    }

    /// Looks at the `pending` word of a client from now on.
    fn watch(&mut self, number: u32) {
        if let Some(client) = &mut self.clients[number as usize] {
            // The client counts as active, so that it is watched for at least `WATCH_TIME`.
            client.is_active = true;
            if !client.is_watched {
                client.is_watched = true;
                client.segment.watched().store(1, Ordering::SeqCst);
                self.watched.push(number);
                self.shared.status.set_clients(self.watched.len() as u32);
            }
        }
    }

    /// Ends the watch of clients without recent requests.
    fn unwatch_inactive(&mut self) {
        let clients = &mut self.clients;
        self.watched.retain(|number| {
            let Some(client) = &mut clients[*number as usize] else { return false };
            if std::mem::take(&mut client.is_active) {
                return true;
            }
            client.segment.watched().store(0, Ordering::SeqCst);
            // The client may have loaded `watched` before, and not ring.
            client.is_watched = client.segment.pending().load(Ordering::SeqCst) != 0;
            if client.is_watched {
                client.segment.watched().store(1, Ordering::SeqCst);
            }
            client.is_watched
        });
        self.shared.status.set_clients(self.watched.len() as u32);
    }

    /// Returns the limit of a wait: `timeout`, or the time until a connection needs attention.
    fn limit(&self, timeout: Option<Duration>) -> Option<Duration> {
        let greeting = self.greetings.front().map(|greeting| greeting.deadline);
        let next = [greeting, self.accept_at].into_iter().flatten().min();
        let remaining = next.map(|next| next.saturating_duration_since(Instant::now()));
        [timeout, remaining].into_iter().flatten().min()
    }

    /// Returns a descriptor that is readable while there are events that end a sleep, such as new
    /// connections. Only a new event makes it readable again after [`wait`](LocalServer::wait).
    pub fn events(&self) -> Result<OwnedFd> {
        self.epoll.try_clone().map_err(|cause| Error::from_io(cause, "copy", "an epoll instance"))
    }

    /// Waits for events of the kernel, and handles them.
    fn take_events(&mut self, timeout: Option<Duration>) -> Result<()> {
        let timeout = self.limit(timeout).map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let empty = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [empty; EVENTS_AT_A_TIME];
        let count = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(cause) => return Err(failed("wait for", "clients")(cause)),
        };
        self.has_more_events = count == EVENTS_AT_A_TIME;
        for event in &events[..count] {
            match Source::decode(event.data) {
                Source::Listener => self.accept_at = Some(Instant::now()),
                Source::Greeting(number) => self.read_greeting(number),
                Source::Socket(id) if self.is_connected(id) => self.disconnect(id.client),
                Source::Doorbell(id) if self.is_connected(id) => self.watch(id.client),
                Source::Waker | Source::Socket(_) | Source::Doorbell(_) => {}
            }
        }
        let now = Instant::now();
        self.events_taken = now;
        while self.greetings.front().is_some_and(|greeting| greeting.deadline <= now) {
            self.greetings.pop_front();
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept(now)?;
        }
        Ok(())
    }

    fn accept(&mut self, now: Instant) -> Result<()> {
        self.accept_at = Some(now);
        for _ in 0..ACCEPTS_AT_A_TIME {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => self.greet(socket, now),
                Err(Errno::AGAIN) => {
                    self.accept_at = None;
                    break;
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    break;
                }
                Err(cause) => return Err(failed("accept", "a client")(cause)),
            }
        }
        Ok(())
    }

    /// Begins the handshake with a client. A connection that cannot be served is closed.
    fn greet(&mut self, socket: OwnedFd, now: Instant) {
        if self.is_refusing || !handshake::is_same_user(&socket).unwrap_or(false) {
            return;
        }
        let number = self.next_number();
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if epoll::add(&self.epoll, &socket, Source::Greeting(number).encode(), flags).is_err() {
            return;
        }
        if self.greetings.len() == GREETINGS_MAX {
            self.greetings.pop_front();
        }
        let (message, deadline) = ([0; HELLO_BYTES], now + GREETING_TIMEOUT);
        self.greetings.push_back(Greeting { number, socket, deadline, message, received: 0 });
        // The message may have arrived with the connection.
        self.read_greeting(number);
    }

    fn read_greeting(&mut self, number: u32) {
        let Some(at) = self.greetings.iter().position(|greeting| greeting.number == number) else { return };
        let greeting = &mut self.greetings[at];
        while greeting.received < HELLO_BYTES {
            let rest = &mut greeting.message[greeting.received..];
            match rustix::net::recv(&greeting.socket, rest, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => break,
                Ok((_, received)) => greeting.received += received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => break,
            }
        }
        let Some(greeting) = self.greetings.remove(at) else { return };
        if greeting.received == HELLO_BYTES
            && let Some(status) = handshake::check_hello(&greeting.message)
        {
            let socket = greeting.socket;
            // An error closes the connection: the client has ended, or there are no descriptors or
            // no memory for it. The client reports that the daemon closed the connection.
            let _ = self.connect(socket, status);
        }
    }

    fn connect(&mut self, socket: OwnedFd, status: Status) -> Result<()> {
        let is_full = self.connected >= self.options.clients_max;
        let status = if status == Status::Accepted && is_full { Status::Full } else { status };
        if status != Status::Accepted {
            return handshake::send_welcome(&socket, status, &[]);
        }
        let (segment, memfd) = Segment::create()?;
        let doorbell = eventfd()?;
        let vacant = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        let generation = self.next_number();
        let id = ClientId { client: vacant as u32, generation };
        let registered = failed("register", "a client");
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&self.epoll, &doorbell, Source::Doorbell(id).encode(), edge).map_err(&registered)?;
        let source = Source::Socket(id).encode();
        epoll::modify(&self.epoll, &socket, source, EventFlags::RDHUP | EventFlags::ET)
            .map_err(&registered)?;
        let fixed = [memfd.as_fd(), doorbell.as_fd(), self.status_memfd.as_fd()];
        let descriptors: Vec<BorrowedFd<'_>> =
            fixed.into_iter().chain(self.options.descriptors.iter().map(AsFd::as_fd)).collect();
        let sent = handshake::send_welcome(&socket, status, &descriptors);
        if sent.is_err() {
            self.forget_doorbell(&doorbell);
            return sent;
        }
        let (is_watched, is_active, unanswered) = (false, false, 0);
        let connected = Client {
            segment,
            generation,
            unanswered,
            is_watched,
            is_active,
            counted: [0; COUNTERS_OF_CLIENT],
            _socket: socket,
            doorbell,
        };
        match self.clients.get_mut(vacant) {
            Some(entry) => *entry = Some(connected),
            None => self.clients.push(Some(connected)),
        }
        self.connected += 1;
        self.has_changed = true;
        Ok(())
    }

    /// Forgets a client: closing the socket tells it.
    fn disconnect(&mut self, number: u32) {
        if let Some(mut client) = self.clients[number as usize].take() {
            client.add_counters(&mut self.counters);
            self.connected -= 1;
            self.has_changed = true;
            self.watched.retain(|watched| *watched != number);
            self.shared.status.set_clients(self.watched.len() as u32);
            self.forget_doorbell(&client.doorbell);
        }
    }

    /// Ends the events of a doorbell. Closing it does not suffice while the client has it open.
    fn forget_doorbell(&self, doorbell: &OwnedFd) {
        // The call fails only for a descriptor that is not registered.
        let _ = epoll::delete(&self.epoll, doorbell);
    }

    fn next_number(&mut self) -> u32 {
        self.next_number = self.next_number.wrapping_add(1);
        self.next_number
    }
}

impl AsFd for LocalServer {
    /// Returns the listening socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Returns the client of a request that was not answered.
fn find<'a>(clients: &'a mut [Option<Client>], ticket: &Ticket) -> Option<&'a mut Client> {
    let client = clients.get_mut(ticket.client as usize)?.as_mut()?;
    (client.generation == ticket.generation).then_some(client)
}

impl Client {
    /// Takes the request of a slot whose bit was set; returns its length and the processor on which
    /// it was made, or `None` if the client violated the protocol.
    fn take(&mut self, slot: usize) -> Option<(usize, u32)> {
        if slot >= SLOTS || self.unanswered & (1 << slot) != 0 {
            return None;
        }
        let state = self.segment.state(slot).load(Ordering::Acquire);
        let length = self.segment.request_bytes(slot).load(Ordering::Relaxed) as usize;
        if !matches!(state, REQUESTED | AWAITED) || length > PAYLOAD_BYTES_MAX {
            return None;
        }
        self.unanswered |= 1 << slot;
        Some((length, self.segment.processor(slot).load(Ordering::Relaxed)))
    }

    /// Adds the increases of the counters since the last call.
    fn add_counters(&mut self, sums: &mut [u64; COUNTERS_OF_CLIENT]) {
        for (number, (sum, counted)) in sums.iter_mut().zip(&mut self.counted).enumerate() {
            let value = self.segment.counter(number).load(Ordering::Relaxed);
            *sum = sum.saturating_add(value.saturating_sub(*counted));
            *counted = value;
        }
    }

    fn answer(&mut self, slot: usize, bytes: &[u8]) {
        self.segment.copy_in(slot, bytes);
        self.segment.reply_bytes(slot).store(bytes.len() as u32, Ordering::Relaxed);
        self.unanswered &= !(1 << slot);
        let state = self.segment.state(slot);
        if state.swap(REPLIED, Ordering::AcqRel) == AWAITED {
            // The call fails only for an invalid address.
            let _ = futex::wake(state, futex::Flags::empty(), 1);
        }
    }
}
