//! Connections between members of this process without a network: the smallest implementation of
//! `Transport`, which shows that the tests of the contract demand nothing that only TCP has.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use quell_transport::peer::{
    CollectedSends, Done, Handler, MemberId, PAYLOAD_BYTES_MAX, Reply, ReplySink, Request, Traffic,
    Transport, not_executed,
};
use quell_vfs::{Error, ErrorKind, Result};

/// The members that run, by their addresses.
#[derive(Debug, Default)]
pub struct Nodes(Mutex<HashMap<SocketAddr, Arc<State>>>);

/// The connections of one member.
#[derive(Debug)]
pub struct MemoryTransport {
    address: SocketAddr,
    nodes: Arc<Nodes>,
    state: Arc<State>,
}

struct State {
    id: MemberId,
    handler: Arc<dyn Handler>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    members: HashMap<MemberId, SocketAddr>,
    /// Calls of this member without a result.
    calls: HashMap<u64, Call>,
    next_id: u64,
    /// Requests that the handler has not answered.
    begun: usize,
    refuses_requests: bool,
    is_stopping: bool,
    traffic: Traffic,
}

struct Call {
    to: MemberId,
    deadline: Instant,
    reply_bytes_max: u32,
    done: Done,
}

/// Passes replies from the member that executes requests to the member that has sent them.
struct Replies {
    from: Arc<State>,
    to: Arc<State>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ReplySink for Replies {
    fn answer(&self, _session: u64, id: u64, reply: Option<Vec<u8>>) {
        let bytes = reply.as_ref().map_or(0, Vec::len) as u64;
        self.to.inner().traffic.sent_bytes += bytes;
        self.from.inner().traffic.received_bytes += bytes;
        let call = self.from.inner().calls.remove(&id);
        if let Some(call) = call {
            let result = match reply {
                Some(reply) if reply.len() <= call.reply_bytes_max as usize => Ok(reply),
                Some(_) => Err(failure(ErrorKind::InvalidInput, call.to)),
                None => Err(failure(ErrorKind::Unavailable, call.to)),
            };
            (call.done)(result);
        }
        // The reply has arrived, so the member can stop.
        self.to.inner().begun -= 1;
    }
}

fn failure(kind: ErrorKind, to: MemberId) -> Error {
    Error::new(kind, "call", to.to_string())
}

impl State {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Ends the calls that have a property.
    fn end(&self, kind: ErrorKind, has_ended: impl Fn(&Call) -> bool) {
        let ended: Vec<Call> =
            self.inner().calls.extract_if(|_, call| has_ended(call)).map(|(_, call)| call).collect();
        ended.into_iter().for_each(|call| (call.done)(Err(failure(kind, call.to))));
    }
}

impl MemoryTransport {
    pub fn start(id: u64, nodes: &Arc<Nodes>, handler: Arc<dyn Handler>) -> MemoryTransport {
        let state = Arc::new(State { id: MemberId(id), handler, inner: Mutex::default() });
        let mut running = nodes.0.lock().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1 + running.len() as u16));
        running.insert(address, Arc::clone(&state));
        drop(running);
        let watched = Arc::downgrade(&state);
        std::thread::spawn(move || {
            while let Some(state) = watched.upgrade() {
                let now = Instant::now();
                state.end(ErrorKind::TimedOut, |call| call.deadline <= now);
                drop(state);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        MemoryTransport { address, nodes: Arc::clone(nodes), state }
    }

    /// Returns the member that a request goes to, which does not stop before its answer.
    fn route(&self, to: MemberId) -> std::result::Result<Arc<State>, &'static str> {
        let inner = self.state.inner();
        let address = *inner.members.get(&to).ok_or("it is not a member of the pool")?;
        if inner.is_stopping {
            return Err("the connections are closed");
        }
        drop(inner);
        let other = self.nodes.0.lock().unwrap().get(&address).cloned().ok_or("there is no connection")?;
        let mut inner = other.inner();
        if inner.refuses_requests {
            return Err("the member is stopping");
        }
        inner.begun += 1;
        drop(inner);
        Ok(other)
    }
}

impl Transport for MemoryTransport {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn set_members(&self, members: &HashMap<MemberId, SocketAddr>) -> Result<()> {
        self.state.inner().members = members.clone();
        self.state.end(ErrorKind::Unavailable, |call| !members.contains_key(&call.to));
        Ok(())
    }

    fn call(&self, to: MemberId, request: Arc<Vec<u8>>, reply_bytes_max: u32, deadline: Instant, done: Done) {
        if request.len() > PAYLOAD_BYTES_MAX || reply_bytes_max as usize > PAYLOAD_BYTES_MAX {
            return done(Err(failure(ErrorKind::InvalidInput, to)));
        }
        let other = match self.route(to) {
            Ok(other) => other,
            Err(reason) => return done(Err(not_executed(ErrorKind::Unavailable, &to, reason))),
        };
        other.inner().traffic.received_bytes += request.len() as u64;
        let mut inner = self.state.inner();
        inner.traffic.sent_bytes += request.len() as u64;
        inner.next_id += 1;
        let id = inner.next_id;
        inner.calls.insert(id, Call { to, deadline, reply_bytes_max, done });
        drop(inner);
        let sink = Arc::new(Replies { from: Arc::clone(&self.state), to: Arc::clone(&other) });
        let (reply, reply_bytes_max) = (Reply::new(sink, 0, id), reply_bytes_max as usize);
        let request =
            Request { from: self.state.id, bytes: Arc::unwrap_or_clone(request), deadline, reply_bytes_max };
        // A panic of a handler drops its `Reply`, which is the answer.
        drop(catch_unwind(AssertUnwindSafe(|| other.handler.handle(request, reply))));
    }

    fn collect(&self) -> Box<dyn CollectedSends> {
        Box::new(Nothing)
    }

    fn traffic(&self) -> Traffic {
        self.state.inner().traffic
    }

    fn stop(&self, limit: Duration) {
        let end = Instant::now() + limit;
        self.state.inner().refuses_requests = true;
        while self.state.inner().begun > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.state.inner().is_stopping = true;
        self.state.end(ErrorKind::Unavailable, |_| true);
    }
}

/// Every request is sent at once.
#[derive(Debug)]
struct Nothing;

impl CollectedSends for Nothing {
    fn send(&self) {}
}
