//! The connections of one member to all others: its listener, its list of members, and the tasks
//! that connect, listen and end calls.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::{sleep, sleep_until};

use super::connection::{Failure, Proved, initiate, respond, serve};
use super::driver::Driver;
use super::handler::Handler;
use super::handshake::Refusal;
use super::not_executed::not_executed;
use super::peer_state::{CollectedPeers, Peer, PeerCounters};
use super::settings::{MemberId, Settings};
use super::stream::{Endpoint, Stream};
use super::transport::{CollectedSends, Done, Traffic, Transport};
use crate::local::Reactor;

/// The pause after the first failure to connect, or to accept.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The interval in which `stop` looks whether all requests are answered.
pub(super) const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// How long `stop` waits until the other side has closed the connection after the `Goodbye` frame.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// The connections of one member to all others, by TCP. They are served by threads of their own.
pub struct PeerNetwork {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// `None` after `stop`.
    driver: Mutex<Option<Arc<Driver>>>,
    listener: AbortHandle,
}

struct Shared {
    settings: Settings,
    handler: Arc<dyn Handler>,
    peers: RwLock<HashMap<MemberId, Arc<Peer>>>,
    /// The traffic with members that are no longer listed. Locked after `peers`.
    ended: Mutex<Traffic>,
    /// Connections that have not proved the key, the oldest first.
    unproved: Mutex<VecDeque<(u64, AbortHandle)>>,
    refused: AtomicU64,
    is_stopping: AtomicBool,
}

impl fmt::Debug for PeerNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerNetwork").field("address", &self.address).finish_non_exhaustive()
    }
}

impl PeerNetwork {
    /// Listens on the address of the settings. Requests of other members go to `handler`.
    ///
    /// Fails with `InvalidInput` for settings out of bounds, and with the error of the system if
    /// the address cannot be used or no thread can be created.
    pub fn start(settings: Settings, handler: Arc<dyn Handler>) -> Result<PeerNetwork> {
        settings.check()?;
        let failed = |cause| Error::from_io(cause, "listen on", settings.listen.to_string());
        let listener = std::net::TcpListener::bind(settings.listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let driver = Driver::start(settings.threads)
            .map_err(|cause| Error::from_io(cause, "start threads for", "peer connections"))?;
        let listener = {
            let _context = driver.runtime.enter();
            TcpListener::from_std(listener).map_err(failed)?
        };
        let shared = Arc::new(Shared {
            settings,
            handler,
            peers: RwLock::default(),
            ended: Mutex::default(),
            unproved: Mutex::default(),
            refused: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
        });
        let listener = driver.runtime.spawn(listen(shared.clone(), listener)).abort_handle();
        Ok(PeerNetwork { shared, address, driver: Mutex::new(Some(driver)), listener })
    }

    /// Returns the counters of each member.
    pub fn counters(&self) -> Vec<(MemberId, PeerCounters)> {
        self.shared.peers().iter().map(|(id, peer)| (*id, peer.counters())).collect()
    }

    /// Returns the number of connections to this member that were refused before they proved the
    /// key.
    pub fn refused_connections(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    fn driver(&self) -> MutexGuard<'_, Option<Arc<Driver>>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for PeerNetwork {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn set_members(&self, members: &HashMap<MemberId, SocketAddr>) -> Result<()> {
        let driver = self.driver();
        let Some(runtime) = driver.as_ref().map(|driver| &driver.runtime) else { return Ok(()) };
        let mut peers = self.shared.peers.write().unwrap_or_else(PoisonError::into_inner);
        let mut removed = Vec::new();
        peers.retain(|id, peer| {
            let is_listed = members.contains_key(id);
            if !is_listed {
                self.shared.ended().add(&peer.counters());
                removed.push(peer.clone());
            }
            is_listed
        });
        let own = self.shared.settings.member;
        for (id, address) in members.iter().filter(|(id, _)| **id != own) {
            if let Some(peer) = peers.get(id) {
                peer.set_address(Endpoint::Tcp(*address));
                continue;
            }
            let settings = &self.shared.settings;
            let handler = self.shared.handler.clone();
            let peer = Peer::new(settings, *id, random_number()?, Endpoint::Tcp(*address), handler, None);
            peers.insert(*id, peer.clone());
            runtime.spawn(end_calls(peer.clone()));
            if own < *id {
                runtime.spawn(connect(self.shared.settings.clone(), peer));
            }
        }
        drop(peers);
        for peer in removed {
            peer.remove();
        }
        Ok(())
    }

    fn call(&self, to: MemberId, request: Arc<Vec<u8>>, reply_bytes_max: u32, deadline: Instant, done: Done) {
        let peer = self.shared.peers().get(&to).cloned();
        match peer {
            Some(peer) => peer.call(request, reply_bytes_max, deadline, done),
            None => done(Err(not_executed(ErrorKind::Unavailable, &to, "it is not a member of the pool"))),
        }
    }

    fn collect(&self) -> Box<dyn CollectedSends> {
        Box::new(CollectedPeers::begin())
    }

    fn reactor(&self, events: OwnedFd) -> Result<Option<Box<dyn Reactor>>> {
        let driver = self.driver();
        match driver.as_ref().filter(|_| !self.shared.peers().is_empty()) {
            Some(driver) => {
                driver.lend(events).map_err(|cause| Error::from_io(cause, "watch", "the clients of a daemon"))
            }
            None => Ok(None),
        }
    }

    fn traffic(&self) -> Traffic {
        let peers = self.shared.peers();
        let mut traffic = *self.shared.ended();
        peers.values().for_each(|peer| traffic.add(&peer.counters()));
        traffic
    }

    fn stop(&self, limit: Duration) {
        let Some(driver) = self.driver().take() else { return };
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.listener.abort();
        let peers: Vec<Arc<Peer>> = self.shared.peers().values().cloned().collect();
        peers.iter().for_each(|peer| peer.refuse_requests());
        drain(&driver.runtime, &peers, limit);
        peers.iter().for_each(|peer| peer.remove());
        // Tasks end at their next wait; a handler that blocks does not hold this thread.
        driver.end(DRAIN_INTERVAL.saturating_mul(500));
    }
}

/// Waits until all requests are answered, refuses calls, sends `Goodbye` frames, and waits until
/// the other sides have closed the connections.
pub(super) fn drain(runtime: &Runtime, peers: &[Arc<Peer>], limit: Duration) {
    let end = Instant::now() + limit;
    runtime.block_on(async {
        while !peers.iter().all(|peer| peer.is_drained()) && Instant::now() < end {
            sleep(DRAIN_INTERVAL).await;
        }
        peers.iter().for_each(|peer| peer.begin_stop());
        let mut left: Vec<_> = peers.iter().collect();
        loop {
            left.retain(|peer| !peer.say_goodbye());
            if left.is_empty() || Instant::now() >= end {
                break;
            }
            sleep(DRAIN_INTERVAL).await;
        }
        // A connection that this side closes first can end at the other side before the `Goodbye`
        // frame is read there.
        let end = end.min(Instant::now() + GOODBYE_LIMIT);
        while peers.iter().any(|peer| peer.is_connected()) && Instant::now() < end {
            sleep(DRAIN_INTERVAL).await;
        }
    });
}

impl Drop for PeerNetwork {
    /// Ends the threads and all calls, as the end of the process would. Only `stop` answers the
    /// requests that were begun.
    fn drop(&mut self) {
        if let Some(driver) = self.driver().take() {
            self.shared.is_stopping.store(true, Ordering::SeqCst);
            let peers: Vec<Arc<Peer>> = self.shared.peers().values().cloned().collect();
            peers.iter().for_each(|peer| peer.remove());
            driver.end(Duration::ZERO);
        }
    }
}

impl Traffic {
    fn add(&mut self, counters: &PeerCounters) {
        self.sent_bytes += counters.bytes_sent;
        self.received_bytes += counters.bytes_received;
        self.sent_saved_bytes += counters.bytes_saved_sent;
        self.received_saved_bytes += counters.bytes_saved_received;
    }
}

impl Shared {
    fn peers(&self) -> std::sync::RwLockReadGuard<'_, HashMap<MemberId, Arc<Peer>>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, Traffic> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unproved(&self) -> MutexGuard<'_, VecDeque<(u64, AbortHandle)>> {
        self.unproved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the initiator of a connection. Its number must be the smaller one.
    fn initiator(&self, id: MemberId) -> Result<Arc<Peer>, Refusal> {
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(Refusal::Stopping);
        }
        let peer = self.peers().get(&id).filter(|_| id < self.settings.member).cloned();
        peer.ok_or(Refusal::UnknownInitiator)
    }
}

pub(super) fn random_number() -> Result<u64> {
    let mut bytes = [0; 8];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty());
    filled.map_err(|e| Error::from_io(e.into(), "draw a random number", ""))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Accepts connections.
async fn listen(shared: Arc<Shared>, listener: TcpListener) {
    let mut number = 0;
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // For example no free descriptor: others must close theirs first.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(BACKOFF_MIN).await;
                continue;
            }
        };
        number += 1;
        let mut unproved = shared.unproved();
        if unproved.len() >= shared.settings.unproved_connections_max
            && let Some((_, oldest)) = unproved.pop_front()
        {
            oldest.abort();
            shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        // The task removes its entry, which is added before the lock is released.
        let task = tokio::spawn(take_connection(shared.clone(), stream, from, number));
        unproved.push_back((number, task.abort_handle()));
    }
}

/// Serves a connection that another member has opened.
async fn take_connection(shared: Arc<Shared>, stream: TcpStream, from: SocketAddr, number: u64) {
    let responded = match Stream::tcp(stream) {
        Ok(stream) => respond(&shared.settings, stream, |id, _| shared.initiator(id)).await,
        Err(error) => Err(error.into()),
    };
    shared.unproved().retain(|(listed, _)| *listed != number);
    match responded {
        Ok((peer, proved)) => {
            serve(&shared.settings, &peer, proved, false, || ()).await;
        }
        Err(failure) => {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%from, %failure, "refused a connection");
        }
    }
}

/// Keeps a connection to a process whose number is larger, until the peer is removed or stops.
pub(super) async fn connect(settings: Settings, peer: Arc<Peer>) {
    let (mut connection, mut pause) = (0, BACKOFF_MIN);
    while !peer.is_removed() && !peer.is_stopping() {
        connection += 1;
        let failure = match initiate(&settings, &peer, connection).await {
            Ok(proved) => serve_own(&settings, &peer, proved, &mut pause).await,
            Err(failure) => failure,
        };
        if let Failure::Refused(refusal) = failure {
            peer.refused(Some(refusal));
        }
        tracing::debug!(peer = %peer.id, %failure, "no connection");
        tokio::select! {
            () = sleep(pause) => {}
            () = peer.connector.notified() => {}
        }
        pause = (pause * 2).min(settings.backoff_max);
    }
}

async fn serve_own(settings: &Settings, peer: &Arc<Peer>, proved: Proved, pause: &mut Duration) -> Failure {
    serve(settings, peer, proved, true, || *pause = BACKOFF_MIN).await
}

/// Ends the calls to a member at their deadline.
pub(super) async fn end_calls(peer: Arc<Peer>) {
    while !peer.is_removed() {
        match peer.end_calls(Instant::now()) {
            Some(next) => tokio::select! {
                () = sleep_until(next.into()) => {}
                () = peer.timer.notified() => {}
            },
            None => peer.timer.notified().await,
        }
    }
}
